"""The resync loop: regularly lists all clusters and reports, takes the Leases of their namespaces, and wakes the work
queues. It posts an Event about each cluster that another installation's operator serves.

Watches of the pods and other objects of clusters and reports only shorten the delay. So a watch that has gone silent
delays a change by seconds and loses none.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from migratory_operator.api.kubernetes import CLUSTER, REPORT, WATCHED_KINDS, ApiError, KubernetesApi, ResourceKind
from migratory_operator.leases import Leases
from migratory_operator.names import FIELD_MANAGER, Object, ResourceOwner
from migratory_operator.reconcile.queue import WorkQueue
from migratory_operator.reports.controller import ReportController
from migratory_operator.reports.run import REPORT_LABEL
from migratory_operator.status import KubernetesEvent
from migratory_operator.telemetry.events import post_events
from migratory_operator.telemetry.metrics import OperatorMetrics
from migratory_operator.telemetry.server import TelemetryServer

_MANAGED = {"app.kubernetes.io/managed-by": FIELD_MANAGER}
TWO_OPERATORS = "TwoOperators"
"""Reason of the Event that says that another installation's operator serves a cluster."""
_RETRY_SECONDS = 5.0
"""Seconds until a failed list or watch is retried."""
_log = logging.getLogger(__name__)


class ResyncLoop:
    """The main loop of the operator, which wakes the work queues of clusters and reports.

    :param clusters: the work queue of clusters.
    :param reports: the controller of reports, with their work queue.
    :param leases: the Leases of the namespaces. This loop also renews them.
    :param server: is told that this loop makes progress, and that the clusters have been listed.
    :param interval: seconds between two lists of all clusters and reports.
    """

    def __init__(
        self,
        api: KubernetesApi,
        clusters: WorkQueue,
        reports: ReportController,
        leases: Leases,
        server: TelemetryServer,
        metrics: OperatorMetrics,
        interval: float,
    ) -> None:
        self._api = api
        self._clusters = clusters
        self._reports = reports
        self._leases = leases
        # Events that were posted: the cluster's uid, and the holder of the Lease.
        self._told: set[tuple[str, str]] = set()
        self._server = server
        self._metrics = metrics
        self._interval = interval

    async def run(self) -> None:
        """Run until cancelled, and give the Leases up then.

        At each interval, list all clusters and reports, and take the Leases of their namespaces. Wake the queues for
        every cluster and every unfinished report, and remove deleted ones from the queues. Reconcile the report
        schedules of the clusters in namespaces that this operator serves, and post an Event about clusters that another
        installation serves.

        Also wake the queue of a cluster or report when one of its objects or pods changes, and renew the Leases. Failed
        lists and watches are logged, and repeated after 5 s.
        """
        async with asyncio.TaskGroup() as group:
            group.create_task(self._leases.run())
            group.create_task(self._list_regularly())
            for kind in WATCHED_KINDS:
                for namespace in self._api.namespaces or (None,):
                    group.create_task(self._watch(kind, namespace))

    async def _list_regularly(self) -> None:
        """Call `_resync` at each interval until cancelled; after a failed request, which is logged, after
        _RETRY_SECONDS."""
        while True:
            self._server.beat()
            delay = self._interval
            try:
                await self._resync()
            except ApiError as error:
                _log.warning("listing the clusters failed: %s", error)
                delay = _RETRY_SECONDS
            await asyncio.sleep(delay)

    async def _resync(self) -> None:
        """List all clusters and reports once, and take the Leases of their namespaces. Wake the queues and remove
        deleted resources from them, reconcile the report schedules, post Events about clusters of other installations,
        set the metrics, and let /readyz succeed. Raise ApiError if a list failed."""
        clusters = await self._api.list_everywhere(CLUSTER)
        reports = await self._api.list_everywhere(REPORT)
        served = await self._leases.keep({item["metadata"]["namespace"] for item in (*clusters, *reports)})
        ours = [item for item in clusters if item["metadata"]["namespace"] in served]
        await self._tell_waiting([item for item in clusters if item["metadata"]["namespace"] not in served])
        present = {(cluster["metadata"]["namespace"], cluster["metadata"]["name"]) for cluster in clusters}
        for key in present:
            self._clusters.wake(*key)
        for key in set(self._clusters.resource_keys()) - present:
            await self._clusters.forget(*key)
            self._metrics.forget(*key)
        for namespace, name in present:
            if namespace not in served:
                self._metrics.forget(namespace, name)
        self._metrics.listed(time.time())
        self._server.set_ready()
        await self._reports.resync(ours, reports, self._server.beat)

    async def _tell_waiting(self, clusters: Sequence[Object]) -> None:
        """Post an Event about each of these clusters whose namespace an operator of another installation serves, once
        for each holder of the Lease. Clusters of which no holder is known, or which a replica of this operator serves,
        get none."""
        uids = {cluster["metadata"]["uid"] for cluster in clusters}
        self._told = {(uid, holder) for uid, holder in self._told if uid in uids}
        for cluster in clusters:
            owner = ResourceOwner.of(cluster)
            holder = self._leases.holder(owner.namespace)
            if not holder or self._leases.is_replica(holder) or (owner.uid, holder) in self._told:
                continue
            self._told.add((owner.uid, holder))
            message = (
                f"the operator {self._leases.identity} waits, because {holder} serves namespace {owner.namespace}; "
                "uninstall one of them, or give them namespaces of their own"
            )
            await post_events(self._api, owner, [KubernetesEvent("Warning", TWO_OPERATORS, message)], datetime.now(UTC))

    async def _watch(self, kind: ResourceKind, namespace: str | None) -> None:
        """Wake the queues for each object of this kind that the operator created and that exists, appears, changes or
        is deleted, until cancelled. A watch that ended is started again, after _RETRY_SECONDS if it failed.

        :param namespace: None for all namespaces.
        """
        while True:
            try:
                async for changed in self._api.watch(kind, namespace, _MANAGED):
                    self._wake(changed["metadata"]["namespace"], changed["metadata"].get("labels", {}))
            except ApiError as error:
                _log.info("the watch of %s ended: %s", kind.plural, error)
                await asyncio.sleep(_RETRY_SECONDS)

    def _wake(self, namespace: str, labels: Mapping[str, str]) -> None:
        """Wake the queue of the cluster and of the report that an object's labels name, if the queue has that cluster
        or report."""
        # Only clusters and reports that were listed: anybody can put these labels on an object.
        for queue, label in ((self._clusters, "app.kubernetes.io/instance"), (self._reports.queue, REPORT_LABEL)):
            if (namespace, labels.get(label, "")) in queue.resource_keys():
                queue.wake(namespace, labels[label])
