"""Starts the operator: kopf watches clusters and reports and wakes the work queues, and the resync loop lists
everything regularly.

kopf runs standalone, without its peering: Leases decide which operator serves a namespace (`leases.py`). The handlers
write no annotation and no finalizer, so a namespace can always be deleted.
"""

from __future__ import annotations

import asyncio
import logging
import socket
import sys
import uuid
from typing import Any

import kopf

from migratory_operator.api.cluster_pods import BrokerStatusClient
from migratory_operator.api.kubernetes import CLUSTER, REPORT, KubernetesApi, load_configuration
from migratory_operator.leases import Leases
from migratory_operator.names import PREFIX
from migratory_operator.reconcile.cluster import ClusterReconciler
from migratory_operator.reconcile.queue import WorkQueue
from migratory_operator.reports.controller import ReportController
from migratory_operator.resync import ResyncLoop
from migratory_operator.settings import OperatorSettings, SettingsError, read_settings
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_operator.telemetry.server import TelemetryServer


def main() -> None:
    """Log to stderr, read the settings from the environment, and run the operator until a signal arrives. Errors of
    `operate` are raised.

    :raises SystemExit: with status 2 when the environment is invalid.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s", stream=sys.stderr)
    # It logs a line per request.
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)
    try:
        settings = read_settings()
    except SettingsError as error:
        print(f"migratory-operator: {error}", file=sys.stderr)
        sys.exit(2)
    asyncio.run(operate(settings))


async def operate(settings: OperatorSettings) -> None:
    """Run the operator until a signal arrives or the resync loop ends. Then stop reconciling, give the Leases up and
    close all connections.

    :raises NoKubernetes: no API server is configured.
    :raises Exception: the error with which the resync loop, kopf or the HTTP server failed.
    """
    metrics = OperatorMetrics()
    api = KubernetesApi(settings.namespaces, await load_configuration())
    brokers = BrokerStatusClient(settings.broker_secret)
    reconciler = ClusterReconciler(api, brokers, settings, metrics)
    leases = Leases(api, settings.identity or f"outside/{socket.gethostname()}/{uuid.uuid4().hex[:8]}", metrics)
    queue = WorkQueue(leases.guarded(reconciler.reconcile), metrics)
    reports = ReportController(api, settings, metrics, leases)
    server = TelemetryServer(settings.listen, metrics)
    loop = ResyncLoop(api, queue, reports, leases, server, metrics, settings.resync)
    resync = asyncio.create_task(loop.run(), name="resync")
    stop = asyncio.Event()
    resync.add_done_callback(lambda _: stop.set())
    try:
        await server.start()
        await kopf.operator(
            registry=handlers(queue, reports.queue),
            settings=kopf_settings(),
            standalone=True,
            clusterwide=not settings.namespaces,
            namespaces=settings.namespaces,
            stop_flag=stop,
        )
    finally:
        resync.cancel()
        # A cancelled resync loop gives the Leases up before it ends.
        await asyncio.wait([resync], timeout=10)
        await queue.close()
        await reports.close()
        await server.close()
        await brokers.close()
        await api.close()
    if not resync.cancelled() and (error := resync.exception()) is not None:
        raise error


def handlers(clusters: WorkQueue, reports: WorkQueue) -> kopf.OperatorRegistry:
    """Return kopf's handlers. One logs in to the API server, with the pod's service account or else with a kubeconfig.
    The others wake the queue of the cluster or report that changed."""
    registry = kopf.OperatorRegistry()

    @kopf.on.login(registry=registry)
    def login(**arguments: Any) -> kopf.ConnectionInfo | None:
        return kopf.login_with_service_account(**arguments) or kopf.login_with_kubeconfig(**arguments)

    for kind, queue in ((CLUSTER, clusters), (REPORT, reports)):
        kopf.on.event(kind.group, kind.version, kind.plural, registry=registry)(_wake_on_change(queue))
    return registry


def _wake_on_change(queue: WorkQueue) -> Any:
    """Return a handler that wakes the queue for a resource at its first event, at its deletion, and when its uid,
    generation (the version of its spec), annotations, labels or deletion time changed. Events that change only the
    status are ignored.

    The operator itself writes statuses, and each would trigger one more reconciliation.
    """
    last_seen: dict[tuple[str, str], list[Any]] = {}

    # Asynchronous, so that it runs in the event loop: kopf calls other handlers in threads, where there is no queue.
    async def changed(namespace: str | None, name: str | None, meta: kopf.Meta, type: str | None, **_: Any) -> None:
        key = (str(namespace), str(name))
        # Copies: kopf's mappings are views that change.
        current = [meta.get(part) for part in ("uid", "generation", "deletionTimestamp")]
        current += [dict(meta.get(part) or {}) for part in ("annotations", "labels")]
        if last_seen.get(key) == current and type != "DELETED":
            return
        last_seen[key] = current
        if type == "DELETED":
            del last_seen[key]
        queue.wake(*key)

    return changed


def kopf_settings() -> kopf.OperatorSettings:
    """Return kopf's settings: Migratory's prefix for anything that kopf might store in a resource, no scan for new
    kinds, no Events from kopf, and time limits for watches and requests."""
    settings = kopf.OperatorSettings()
    settings.persistence.finalizer = f"{PREFIX}/kopf"
    settings.persistence.progress_storage = kopf.AnnotationsProgressStorage(prefix=f"kopf.{PREFIX}")
    settings.persistence.diffbase_storage = kopf.AnnotationsDiffBaseStorage(prefix=f"kopf.{PREFIX}")
    settings.scanning.disabled = True
    settings.posting.enabled = False
    # A watch whose connection the network has dropped silently is restarted after this time.
    settings.watching.server_timeout = 60
    settings.watching.client_timeout = 75
    settings.watching.connect_timeout = 10
    settings.networking.request_timeout = 15
    return settings
