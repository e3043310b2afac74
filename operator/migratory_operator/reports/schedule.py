"""When a cluster is due for a report, and which of the old ones go; pure.

A slot is a time of the schedule. A report's name is made of it, so there are never two for one. Of slots that were
missed only the newest counts, and while a report is being made the next one waits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

from cronsim import CronSim
from migratory_resources.cluster.kubernetes import KubernetesSlaSpec
from migratory_resources.cluster.spec import API_VERSION
from migratory_resources.report.spec import REPORT_KIND
from migratory_resources.report.status import FINAL_PHASES

from migratory_operator.names import FIELD_MANAGER, Object, Owner
from migratory_operator.reports.asked import moment
from migratory_operator.reports.run import CLUSTER_LABEL, SLOT_ANNOTATION
from migratory_operator.verdict import time_text


@dataclass(frozen=True)
class Schedule:
    """`slot`: the newest one that has been dealt with once `create` was carried out."""

    slot: str | None = None
    create: Object | None = None
    delete: tuple[Object, ...] = ()


def schedule(cluster: Object, sla: KubernetesSlaSpec, reports: Sequence[Object], now: datetime) -> Schedule:
    """:param reports: of this cluster."""
    owner = Owner.of(cluster)
    ours = [one for one in reports if SLOT_ANNOTATION in one["metadata"].get("annotations", {}) and owner.owns(one)]
    ours.sort(key=_slot_of)
    done = [one for one in ours if one.get("status", {}).get("phase") in FINAL_PHASES]
    delete = tuple(done[: max(0, len(done) - sla.history_limit)])
    if sla.schedule is None:
        return Schedule(delete=delete)
    last = cluster.get("status", {}).get("lastSlot")
    newest = newest_slot(sla.schedule, sla.zone, now)
    if newest is None or last is None:
        # A schedule that is new has missed nothing.
        return Schedule(slot=last or time_text(now), delete=delete)
    known = max([last, *(_slot_of(one) for one in ours)])
    if time_text(newest) <= known:
        return Schedule(slot=known, delete=delete)
    if len(done) < len(ours):
        return Schedule(slot=last, delete=delete)
    return Schedule(slot=time_text(newest), create=_report(owner, newest), delete=delete)


def newest_slot(cron: str, zone: str, now: datetime) -> datetime | None:
    """The last one up to `now`, in UTC; None where there was none for decades."""
    # The library counts minutes before the one that it is given.
    after = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    found = next(CronSim(cron, after.astimezone(ZoneInfo(zone)), reverse=True), None)
    return None if found is None else found.astimezone(UTC)


def _report(owner: Owner, slot: datetime) -> Object:
    return {
        "apiVersion": API_VERSION,
        "kind": REPORT_KIND,
        "metadata": {
            "name": f"{owner.name}-{slot.strftime('%Y%m%d%H%M')}",
            "namespace": owner.namespace,
            "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER, CLUSTER_LABEL: owner.name},
            "annotations": {SLOT_ANNOTATION: time_text(slot)},
            "ownerReferences": [owner.reference],
        },
        "spec": {"cluster": owner.name, "end": time_text(slot)},
    }


def _slot_of(report: Object) -> str:
    slot = report["metadata"].get("annotations", {}).get(SLOT_ANNOTATION, "")
    try:
        return time_text(moment(slot))
    except ValueError:
        return ""  # somebody wrote something else there
