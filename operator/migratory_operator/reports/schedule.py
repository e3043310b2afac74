"""Decides when a cluster gets a scheduled report, and which old reports are deleted; pure.

A slot is a time of the schedule. A report's name contains its slot, so a slot never gets two reports. When several
slots were missed, only the newest gets a report. The next slot waits until the previous report has ended.
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

from migratory_operator.names import FIELD_MANAGER, Object, ResourceOwner
from migratory_operator.reports.run import CLUSTER_LABEL, SLOT_ANNOTATION
from migratory_operator.status import format_time, parse_time


@dataclass(frozen=True)
class ScheduleDecision:
    """The scheduled reports of a cluster to create and delete now."""

    slot: str | None = None
    """The new value of the status field `lastSlot`. Once `create` has been carried out, every slot up to this time has
    its report or was missed. None if there is no schedule."""
    create: Object | None = None
    delete: tuple[Object, ...] = ()


def decide_schedule(
    cluster: Object, sla: KubernetesSlaSpec, reports: Sequence[Object], now: datetime
) -> ScheduleDecision:
    """Return the scheduled reports of a cluster to create and to delete now. No report is created without a schedule,
    before the next slot, or while a scheduled report has not ended. A new schedule begins now, and so has missed no
    slot.

    Of the ended reports, the newest `sla.history_limit` stay and the others are deleted.

    :param reports: all reports about this cluster.
    """
    owner = ResourceOwner.of(cluster)
    scheduled = [report for report in reports if is_scheduled(owner, report)]
    scheduled.sort(key=_slot_of)
    ended = [report for report in scheduled if report.get("status", {}).get("phase") in FINAL_PHASES]
    delete = tuple(ended[: max(0, len(ended) - sla.history_limit)])
    if sla.schedule is None:
        return ScheduleDecision(delete=delete)
    last_slot = cluster.get("status", {}).get("lastSlot")
    newest = newest_slot(sla.schedule, sla.zone, now)
    if newest is None or last_slot is None:
        # A new schedule has missed no slot.
        return ScheduleDecision(slot=last_slot or format_time(now), delete=delete)
    known = max([last_slot, *(_slot_of(report) for report in scheduled)])
    if format_time(newest) <= known:
        return ScheduleDecision(slot=known, delete=delete)
    if len(ended) < len(scheduled):
        return ScheduleDecision(slot=last_slot, delete=delete)
    return ScheduleDecision(slot=format_time(newest), create=_report(owner, newest), delete=delete)


def is_scheduled(cluster: ResourceOwner, report: Object) -> bool:
    """Return whether a report was made by the schedule of this cluster, and not by hand."""
    return SLOT_ANNOTATION in report["metadata"].get("annotations", {}) and cluster.owns(report)


def newest_slot(cron: str, zone: str, now: datetime) -> datetime | None:
    """Return the last slot at or before the minute of `now`, in UTC; None if there was none for decades.

    :param cron: the schedule in cron syntax.
    :param zone: the time zone in which the schedule is read.
    """
    # The library starts with the minute before the one that it is given.
    next_minute = now.replace(second=0, microsecond=0) + timedelta(minutes=1)
    slot = next(CronSim(cron, next_minute.astimezone(ZoneInfo(zone)), reverse=True), None)
    return None if slot is None else slot.astimezone(UTC)


def _report(owner: ResourceOwner, slot: datetime) -> Object:
    """Return the scheduled report for a slot. Its window ends at the slot."""
    return {
        "apiVersion": API_VERSION,
        "kind": REPORT_KIND,
        "metadata": {
            "name": f"{owner.name}-{slot.strftime('%Y%m%d%H%M')}",
            "namespace": owner.namespace,
            "labels": {"app.kubernetes.io/managed-by": FIELD_MANAGER, CLUSTER_LABEL: owner.name},
            "annotations": {SLOT_ANNOTATION: format_time(slot)},
            "ownerReferences": [owner.reference],
        },
        "spec": {"cluster": owner.name, "end": format_time(slot)},
    }


def _slot_of(report: Object) -> str:
    """Return the slot of a scheduled report in the form of `format_time`, or "" if its annotation is missing or was
    edited."""
    slot = report["metadata"].get("annotations", {}).get(SLOT_ANNOTATION, "")
    try:
        return format_time(parse_time(slot))
    except ValueError:
        return ""  # the annotation was edited
