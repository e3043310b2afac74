"""Starts the operator: kopf watches the resources, everything else hangs on the main loop (`care.py`).

kopf runs standalone: no peering, for there is one operator, which its Deployment ensures. Its handlers only wake the
queue: they leave no annotation and no finalizer behind, so a namespace can always be deleted.
"""

from __future__ import annotations

import asyncio
import logging
import sys
from typing import Any

import kopf

from migratory_operator.api import CLUSTER, REPORT, Api
from migratory_operator.brokers import Brokers
from migratory_operator.care import Care
from migratory_operator.metrics import Metrics
from migratory_operator.names import PREFIX
from migratory_operator.pages import Pages
from migratory_operator.queue import Queue
from migratory_operator.reconcile import Reconciler
from migratory_operator.reports.care import Reports
from migratory_operator.settings import Settings, SettingsError, read_settings

_log = logging.getLogger(__name__)


def main() -> None:
    """:raises SystemExit: 2 when the environment makes no sense."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    # a line for each request is no news
    for noisy in ("httpx2", "kopf.objects"):
        logging.getLogger(noisy).setLevel(logging.WARNING)
    try:
        settings = read_settings()
    except SettingsError as error:
        print(f"migratory-operator: {error}", file=sys.stderr)
        sys.exit(2)
    asyncio.run(operate(settings))


async def operate(settings: Settings) -> None:
    """Until a signal comes."""
    metrics = Metrics()
    api, brokers = Api(settings.namespaces), Brokers()
    reconciler = Reconciler(api, brokers, settings, metrics)
    queue = Queue(reconciler.cluster, metrics)
    reports = Reports(api, settings, metrics)
    pages = Pages(settings.listen, metrics)
    care = asyncio.create_task(Care(api, queue, reports, pages, metrics, settings.resync).run(), name="care")
    stop = asyncio.Event()
    care.add_done_callback(lambda _: stop.set())
    try:
        await pages.start()
        await kopf.operator(
            registry=handlers(queue, reports.queue),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            stop_flag=stop,
        )
    finally:
        care.cancel()
        await asyncio.wait([care], timeout=5)
        await queue.close()
        await reports.close()
        await pages.close()
        await brokers.close()
        await api.close()
    if not care.cancelled() and (error := care.exception()) is not None:
        raise error


def handlers(queue: Queue, reports: Queue) -> kopf.OperatorRegistry:
    """What kopf is to do: log in, and say which cluster or report changed."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    for kind, woken in ((CLUSTER, queue), (REPORT, reports)):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(_waking(woken))
    return registry


def _waking(queue: Queue) -> Any:
    """A handler that wakes the queue of what a person changed. Statuses are the operator's own: each look writes what
    brokers say of their clients, and would lead to the next one."""
    seen: dict[tuple[str, str], list[Any]] = {}

    # asynchronous, so that it runs in the loop: kopf calls others in threads, where there is no queue
    async def changed(namespace: str | None, name: str | None, meta: kopf.Meta, type: str | None, **_: Any) -> None:
        place = (str(namespace), str(name))
        # dicts of their own: kopf's are views
        now = [meta.get(part) for part in ("uid", "generation", "deletionTimestamp")]
        now += [dict(meta.get(part) or {}) for part in ("annotations", "labels")]
        if seen.get(place) == now and type != "DELETED":
            return
        seen[place] = now
        if type == "DELETED":
            del seen[place]
        queue.wake(*place)

    return changed


def kopf_settings() -> kopf.OperatorSettings:
    """Our own prefixes, should anything ever be kept in a resource, and limits for every wait."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{PREFIX}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{PREFIX}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{PREFIX}")
    settings.scanning.disabled = True
    settings.posting.enabled = False
    # A watch that the network has swallowed is begun anew: neither side waits for longer.
    settings.watching.server_timeout = 60
    settings.watching.client_timeout = 75
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 15
    return settings
