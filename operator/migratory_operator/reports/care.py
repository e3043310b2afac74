"""Carries out what is decided about reports: looks at each, makes what the schedules ask for, tells of verdicts.

`tend` is called with everything that there is, as often as the clusters are listed; to wake the queue only hastens.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from datetime import UTC, datetime

from migratory_resources.report.status import FINAL_PHASES
from migratory_resources.validation.custom_resources import read_cluster
from migratory_resources.validation.problems import ClusterFileError

from migratory_operator.api import BY_NAME, CLUSTER, JOB, POD, REPORT, ROLE_KINDS, Api, ApiError
from migratory_operator.decide import Event
from migratory_operator.events import tell
from migratory_operator.metrics import Metrics
from migratory_operator.names import FIELD_MANAGER, Object, Owner
from migratory_operator.queue import Queue
from migratory_operator.reports import met
from migratory_operator.reports.decide import Plan, decide
from migratory_operator.reports.observe import Observed
from migratory_operator.reports.run import REPORT_LABEL, Run
from migratory_operator.reports.schedule import schedule
from migratory_operator.settings import Settings

MANAGER = f"{FIELD_MANAGER}-reports"
"""Of what a cluster's status says about reports: the rest is written by who looks at clusters."""
_KINDS = {**BY_NAME, JOB.kind: JOB, POD.kind: POD, **{kind.kind: kind for kind in ROLE_KINDS}}
_SOON = 0.5
_log = logging.getLogger(__name__)


class Reports:
    def __init__(self, api: Api, settings: Settings, metrics: Metrics) -> None:
        self._api = api
        self._settings = settings
        self._metrics = metrics
        self.queue = Queue(self.look, metrics)
        self._settled: set[str] = set()
        # Two looks at one cluster's reports would both tell of what turned.
        self._one_at_a_time = asyncio.Lock()

    async def close(self) -> None:
        await self.queue.close()

    async def tend(
        self, clusters: Sequence[Object], reports: Sequence[Object], beat: Callable[[], None] = lambda: None
    ) -> None:
        """:param beat: called before each cluster: many of them take long where the API server is slow."""
        present = {_place(one) for one in reports}
        for gone in set(self.queue.known()) - present:
            await self.queue.forget(*gone)
        self._settled &= {one["metadata"]["uid"] for one in reports}
        for one in reports:
            if one["metadata"]["uid"] not in self._settled:
                self.queue.wake(*_place(one))
        for cluster in clusters:
            beat()
            try:
                await self._cluster(*_place(cluster))
            except ApiError as error:
                # No reason to leave the others alone; the next time makes up for it.
                if not error.too_late:
                    _log.warning("%s/%s: %s", *_place(cluster), error)

    async def look(self, namespace: str, name: str) -> float:
        """One look at one report. Seconds after which there is more to see; 0 when something must change first.

        :raises ApiError: something was refused or not answered; a later look makes up for it.
        """
        try:
            return await self._look(namespace, name)
        except ApiError as error:
            if error.too_late:
                return 0.0
            raise

    async def _look(self, namespace: str, name: str) -> float:
        resource = await self._api.get(REPORT, namespace, name)
        if resource is None:
            return 0.0
        observed = await self._observe(resource)
        plan = decide(observed, self._settings)
        await self._carry_out(observed, plan)
        phase = plan.status.get("phase") or observed.status.get("phase")
        if phase in FINAL_PHASES:
            if plan.status:
                await self._cluster(namespace, resource["spec"]["cluster"])
                return _SOON  # for what it leaves behind
            if not plan.delete:
                self._settled.add(resource["metadata"]["uid"])
            return _SOON if plan.delete else 0.0
        if plan.look_at is None:
            return 0.0
        return max(_SOON, (plan.look_at - observed.now).total_seconds())

    async def _observe(self, resource: Object) -> Observed:
        # In this order: see Observed.
        owner = Owner.of(resource)
        run = Run(owner)
        cluster = await self._api.get(CLUSTER, owner.namespace, resource.get("spec", {}).get("cluster", ""))
        job = await self._api.get(JOB, owner.namespace, run.job)
        pods = await self._api.list(POD, owner.namespace, {REPORT_LABEL: owner.name})
        result = await self._api.get(BY_NAME["ConfigMap"], owner.namespace, run.result)
        return Observed(resource, datetime.now(UTC), cluster, job, tuple(pods), result)

    async def _carry_out(self, observed: Observed, plan: Plan) -> None:
        owner = observed.run.owner
        if plan.make and plan.status.get("startTime") != observed.status.get("startTime"):
            # The time is kept before anything is made: a deadline that begins anew with each operator is none.
            await self._status(observed.resource, plan.status)
        for thing in plan.make:
            if thing["kind"] == JOB.kind:
                await self._begin(thing)
            else:
                await self._api.apply(_KINDS[thing["kind"]], thing)
        for thing in plan.delete:
            await self._api.delete(_KINDS[thing["kind"]], thing)
        if plan.status and _differs(plan.status, observed.status):
            await self._status(observed.resource, plan.status)
            await tell(self._api, owner, plan.events, observed.now)

    async def _begin(self, job: Object) -> None:
        try:
            await self._api.create(JOB, job)
            _log.info("begun Job %s", job["metadata"]["name"])
        except ApiError as error:
            # An operator before this one made it, and was not to see it.
            if error.code != 409:
                raise
            _log.info("adopted Job %s", job["metadata"]["name"])

    async def _status(self, resource: Object, status: Object) -> None:
        try:
            await self._api.apply_status(REPORT, resource, status)
        except ApiError as error:
            # deleted meanwhile, or deleted and made anew
            if error.code not in (404, 409):
                raise

    async def _cluster(self, namespace: str, name: str) -> None:
        """What a cluster's schedule asks for, and what its reports say of it.

        :raises ApiError:
        """
        async with self._one_at_a_time:
            cluster = await self._api.get(CLUSTER, namespace, name)
            if cluster is None or "deletionTimestamp" in cluster["metadata"]:
                return
            try:
                sla = read_cluster(cluster).spec.sla
            except ClusterFileError:
                return  # its conditions say so
            reports = await self._api.list(REPORT, namespace)
            reports = [one for one in reports if one.get("spec", {}).get("cluster") == name]
            now = datetime.now(UTC)
            due = schedule(cluster, sla, reports, now)
            if due.create is not None:
                await self._create(due.create)
            for old in due.delete:
                await self._api.delete(REPORT, old)
            part, events = met.status(cluster, sla, reports, now)
            if part:
                self._metrics.says(namespace, name, part["conditions"])
            else:
                self._metrics.unsays(namespace, name, met.TYPE)
            if due.slot is not None:
                part = {**part, "lastSlot": due.slot}
            await self._say(cluster, part, events, now)

    async def _create(self, report: Object) -> None:
        try:
            await self._api.create(REPORT, report)
            _log.info("%s is due", report["metadata"]["name"])
        except ApiError as error:
            if error.code != 409:
                raise

    async def _say(self, cluster: Object, part: Object, events: Sequence[Event], now: datetime) -> None:
        before = cluster.get("status") or {}
        if not (_differs(part, before) or _ours(before) - _ours(part)):
            return
        try:
            await self._api.apply_status(CLUSTER, cluster, part, MANAGER)
        except ApiError as error:
            if error.code not in (404, 409):
                raise
            return
        await tell(self._api, Owner.of(cluster), events, now)


def _place(thing: Object) -> tuple[str, str]:
    return thing["metadata"]["namespace"], thing["metadata"]["name"]


def _ours(status: Object) -> set[str]:
    """What is said in a cluster's status about reports."""
    kept = {"lastReport", "lastSlot"} & status.keys()
    return kept | {one["type"] for one in status.get("conditions", ()) if one["type"] == met.TYPE}


def _differs(wanted: Object, present: Object) -> bool:
    conditions = present.get("conditions", [])
    return any(present.get(key) != value for key, value in wanted.items() if key != "conditions") or any(
        one not in conditions for one in wanted.get("conditions", ())
    )
