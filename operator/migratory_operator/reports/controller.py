"""Reconciles reports: carries out the decision about each, creates those that schedules ask for, and sets the clusters'
condition SLAMet.

The resync loop calls `resync` with all clusters and reports regularly. Waking the queue only shortens the delay.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from migratory_resources.report.status import FINAL_PHASES
from migratory_resources.validation.custom_resources import read_cluster
from migratory_resources.validation.problems import ClusterFileError

from migratory_operator.api.kubernetes import (
    CLUSTER,
    JOB,
    KINDS_BY_NAME,
    POD,
    REPORT,
    ROLE_KINDS,
    SECRET,
    ApiError,
    KubernetesApi,
    ResourceKind,
)
from migratory_operator.leases import Leases
from migratory_operator.names import FIELD_MANAGER, Object, ResourceOwner
from migratory_operator.reconcile.queue import WorkQueue
from migratory_operator.reports.decide import ReportPlan, decide
from migratory_operator.reports.resolve import secret_name
from migratory_operator.reports.run import REPORT_LABEL, ObservedReport, ReportRun
from migratory_operator.reports.schedule import decide_schedule
from migratory_operator.reports.sla_condition import SLA_MET, sla_status
from migratory_operator.reports.spark import AUTH_KEY
from migratory_operator.settings import OperatorSettings
from migratory_operator.status import KubernetesEvent, status_differs
from migratory_operator.telemetry.events import post_events
from migratory_operator.telemetry.metrics import OperatorMetrics

REPORTS_MANAGER = f"{FIELD_MANAGER}-reports"
"""Field manager of the part of a cluster's status that is about reports. The cluster reconciler writes the rest."""
_KINDS = {**KINDS_BY_NAME, JOB.kind: JOB, POD.kind: POD, **{kind.kind: kind for kind in ROLE_KINDS}}
_MIN_REQUEUE_SECONDS = 0.5
_log = logging.getLogger(__name__)


class ReportController:
    """The reconciler of reports, with their work queue, and of the clusters' report schedules and SLAMet."""

    def __init__(
        self, api: KubernetesApi, settings: OperatorSettings, metrics: OperatorMetrics, leases: Leases
    ) -> None:
        self._api = api
        self._settings = settings
        self._metrics = metrics
        self.queue = WorkQueue(leases.guarded(self.reconcile), metrics)
        self._finished_uids: set[str] = set()
        # Two concurrent passes over one cluster's reports would both post an Event.
        self._cluster_lock = asyncio.Lock()

    async def close(self) -> None:
        """Cancel all reconciliations of reports."""
        await self.queue.close()

    async def resync(
        self, clusters: Sequence[Object], reports: Sequence[Object], beat: Callable[[], None] = lambda: None
    ) -> None:
        """Wake the queue for every report that may still need a change, remove deleted reports from it, and reconcile
        every cluster's schedule and SLAMet. A failure with one cluster is logged, and the others continue.

        :param clusters: the clusters that the operator watches, in the namespaces that it serves.
        :param reports: all reports that the operator watches.
        :param beat: called before each cluster, because many clusters take long if the API server is slow.
        """
        present = {_resource_key(report) for report in reports}
        for deleted in set(self.queue.resource_keys()) - present:
            await self.queue.forget(*deleted)
        self._finished_uids &= {report["metadata"]["uid"] for report in reports}
        for report in reports:
            if report["metadata"]["uid"] not in self._finished_uids:
                self.queue.wake(*_resource_key(report))
        for cluster in clusters:
            beat()
            try:
                await self._reconcile_cluster(*_resource_key(cluster))
            except ApiError as error:
                # The other clusters continue; the next resync repeats this one.
                if not error.is_namespace_terminating:
                    _log.warning("%s/%s: %s", *_resource_key(cluster), error)

    async def reconcile(self, namespace: str, name: str) -> float:
        """Reconcile one report: create or delete the objects of its run, and write its status. When the report ends,
        also reconcile the schedule and SLAMet of its cluster.

        Return the seconds until the next reconciliation; 0 if none is needed before something that is watched changes,
        if the report has ended and left nothing behind, or if it is gone, being deleted, or in a namespace that is.

        :raises ApiError: a request was rejected or not answered; the next reconciliation repeats it.
        """
        try:
            return await self._reconcile_report(namespace, name)
        except ApiError as error:
            if error.is_namespace_terminating:
                return 0.0
            raise

    async def _reconcile_report(self, namespace: str, name: str) -> float:
        """Do what `reconcile` does, but raise ApiError also when the namespace is being deleted."""
        resource = await self._api.get(REPORT, namespace, name)
        if resource is None:
            return 0.0
        observed = await self._observe(resource)
        plan = decide(observed, self._settings)
        await self._apply(observed, plan)
        phase = plan.status.get("phase") or observed.status.get("phase")
        if phase in FINAL_PHASES:
            if plan.status:
                await self._reconcile_cluster(namespace, resource["spec"]["cluster"])
                return _MIN_REQUEUE_SECONDS  # to delete the leftovers
            if not plan.delete:
                self._finished_uids.add(resource["metadata"]["uid"])
            return _MIN_REQUEUE_SECONDS if plan.delete else 0.0
        if plan.requeue_at is None:
            return 0.0
        return max(_MIN_REQUEUE_SECONDS, (plan.requeue_at - observed.now).total_seconds())

    async def _observe(self, resource: Object) -> ObservedReport:
        """Return the observed state of a report and its run. Raise ApiError if a request failed."""
        # The order matters: see ObservedReport.
        owner = ResourceOwner.of(resource)
        run = ReportRun(owner)
        cluster = await self._api.get(CLUSTER, owner.namespace, resource.get("spec", {}).get("cluster", ""))
        job = await self._api.get(JOB, owner.namespace, run.job)
        pods = await self._api.list(POD, owner.namespace, {REPORT_LABEL: owner.name})
        result = await self._api.get(KINDS_BY_NAME["ConfigMap"], owner.namespace, run.result)
        secret = None
        # Without reports the operator may not read Secrets.
        if job is None and self._settings.reports_enabled and (name := secret_name(resource, cluster)) is not None:
            secret = await self._api.get(SECRET, owner.namespace, name, only_metadata=True)
        return ObservedReport(resource, datetime.now(UTC), cluster, job, tuple(pods), result, secret)

    async def _apply(self, observed: ObservedReport, plan: ReportPlan) -> None:
        """Create and delete the objects of the plan, write the report's status if it changes, and post Events about a
        changed status. Raise ApiError at the first request that failed."""
        if plan.create and plan.status.get("startTime") != observed.status.get("startTime"):
            # The start time is written before anything is created: otherwise a restarted operator would start the
            # deadline again.
            await self._write_report_status(observed.resource, plan.status)
        for item in plan.create:
            if item["kind"] == JOB.kind:
                await self._create(JOB, item)
            elif item["kind"] == SECRET.kind:
                await self._create(SECRET, {**item, "stringData": {AUTH_KEY: secrets.token_hex(32)}})
            else:
                await self._api.apply(_KINDS[item["kind"]], item)
        for item in plan.delete:
            await self._api.delete(_KINDS[item["kind"]], item)
        if plan.status and status_differs(plan.status, observed.status):
            await self._write_report_status(observed.resource, plan.status)
            await post_events(self._api, observed.run.owner, plan.events, observed.now)

    async def _create(self, kind: ResourceKind, item: Object) -> None:
        """Create an object; one that exists already stays as it is. Raise ApiError if the request failed for another
        reason."""
        try:
            await self._api.create(kind, item)
            _log.info("created %s %s", kind.kind, item["metadata"]["name"])
        except ApiError as error:
            # A previous operator created it, after this one had observed that there was no Job.
            if error.code != 409:
                raise
            _log.info("adopted %s %s", kind.kind, item["metadata"]["name"])

    async def _write_report_status(self, resource: Object, status: Object) -> None:
        """Write the status of a report. Do nothing if the report is gone. Raise ApiError if the request failed."""
        try:
            await self._api.apply_status(REPORT, resource, status)
        except ApiError as error:
            # 404: deleted meanwhile; 409: deleted and created again.
            if error.code not in (404, 409):
                raise

    async def _reconcile_cluster(self, namespace: str, name: str) -> None:
        """Create the report that the cluster's schedule asks for, delete old ones, and write SLAMet, the last report
        and the last slot to the cluster's status. Set the metric of SLAMet.

        Do nothing for a cluster that is missing, being deleted or invalid.

        :raises ApiError: a request was rejected or not answered.
        """
        async with self._cluster_lock:
            cluster = await self._api.get(CLUSTER, namespace, name)
            if cluster is None or "deletionTimestamp" in cluster["metadata"]:
                return
            try:
                sla = read_cluster(cluster).spec.sla
            except ClusterFileError:
                return  # the cluster's conditions say so
            reports = await self._api.list(REPORT, namespace)
            reports = [report for report in reports if report.get("spec", {}).get("cluster") == name]
            now = datetime.now(UTC)
            decision = decide_schedule(cluster, sla, reports, now)
            if decision.create is not None:
                await self._create_report(decision.create)
            for report in decision.delete:
                await self._api.delete(REPORT, report)
            status, events = sla_status(cluster, sla, reports, now)
            if status:
                self._metrics.set_conditions(namespace, name, status["conditions"])
            else:
                self._metrics.remove_condition(namespace, name, SLA_MET)
            if decision.slot is not None:
                status = {**status, "lastSlot": decision.slot}
            await self._write_cluster_status(cluster, status, events, now)

    async def _create_report(self, report: Object) -> None:
        """Create a scheduled report; do nothing if one for this slot exists."""
        try:
            await self._api.create(REPORT, report)
            _log.info("created the scheduled report %s", report["metadata"]["name"])
        except ApiError as error:
            if error.code != 409:
                raise

    async def _write_cluster_status(
        self, cluster: Object, status: Object, events: Sequence[KubernetesEvent], now: datetime
    ) -> None:
        """Write the part of a cluster's status that is about reports, and post the Events. Do nothing, not even post,
        if that part is unchanged or the cluster is gone."""
        present = cluster.get("status") or {}
        if not (status_differs(status, present) or _report_parts(present) - _report_parts(status)):
            return
        try:
            await self._api.apply_status(CLUSTER, cluster, status, REPORTS_MANAGER)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return
        await post_events(self._api, ResourceOwner.of(cluster), events, now)


def _resource_key(resource: Object) -> tuple[str, str]:
    return resource["metadata"]["namespace"], resource["metadata"]["name"]


def _report_parts(status: Object) -> set[str]:
    """Return which parts of a cluster's status that ReportController writes are present: the fields `lastReport` and
    `lastSlot`, and the condition `SLAMet`."""
    fields = {"lastReport", "lastSlot"} & status.keys()
    return fields | {condition["type"] for condition in status.get("conditions", ()) if condition["type"] == SLA_MET}
