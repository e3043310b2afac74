"""The main loop: every so often all clusters are listed and looked at; watches of what belongs to them only hasten it.

So a watch that has gone silent costs seconds and never a change.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping

from migratory_operator.api import CHILDREN, CLUSTER, POD, REPORT, Api, ApiError, Kind
from migratory_operator.metrics import Metrics
from migratory_operator.names import FIELD_MANAGER, Object
from migratory_operator.pages import Pages
from migratory_operator.queue import Queue
from migratory_operator.reports.care import Reports
from migratory_operator.reports.run import REPORT_LABEL

_MANAGED = {"app.kubernetes.io/managed-by": FIELD_MANAGER}
_AFTER_FAILURE = 5.0
_log = logging.getLogger(__name__)


class Care:
    def __init__(self, api: Api, queue: Queue, reports: Reports, pages: Pages, metrics: Metrics, every: float) -> None:
        self._api = api
        self._queue = queue
        self._reports = reports
        self._pages = pages
        self._metrics = metrics
        self._every = every

    async def run(self) -> None:
        """Until it is cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._lists())
            for kind in (*CHILDREN, POD):
                for namespace in self._api.namespaces or (None,):
                    group.create_task(self._watch(kind, namespace))

    async def _lists(self) -> None:
        while True:
            self._pages.beat()
            wait = self._every
            try:
                await self._list()
            except ApiError as error:
                _log.warning("the clusters were not listed: %s", error)
                wait = _AFTER_FAILURE
            await asyncio.sleep(wait)

    async def _list(self) -> None:
        clusters, reports = await self._all(CLUSTER), await self._all(REPORT)
        present = {(one["metadata"]["namespace"], one["metadata"]["name"]) for one in clusters}
        for cluster in present:
            self._queue.wake(*cluster)
        for cluster in set(self._queue.known()) - present:
            await self._queue.forget(*cluster)
            self._metrics.forget(*cluster)
        self._metrics.listed(time.time())
        self._pages.ready()
        await self._reports.tend(clusters, reports, self._pages.beat)

    async def _all(self, kind: Kind) -> list[Object]:
        return await self._api.list_everywhere(kind)

    async def _watch(self, kind: Kind, namespace: str | None) -> None:
        while True:
            try:
                async for thing in self._api.watch(kind, namespace, _MANAGED):
                    self._wake(thing["metadata"]["namespace"], thing["metadata"].get("labels", {}))
            except ApiError as error:
                _log.info("the watch of %s ended: %s", kind.plural, error)
                await asyncio.sleep(_AFTER_FAILURE)

    def _wake(self, namespace: str, labels: Mapping[str, str]) -> None:
        # Only of clusters and reports that were listed: labels alone make none.
        for queue, label in ((self._queue, "app.kubernetes.io/instance"), (self._reports.queue, REPORT_LABEL)):
            if (namespace, labels.get(label, "")) in queue.known():
                queue.wake(namespace, labels[label])
