"""Derives a cluster's condition SLAMet, its last report, and Events when SLAMet becomes False or True again; pure.

The newest ended report of the cluster's own schedule decides. A report that somebody made by hand, about any window and
with any settings, says nothing about what the cluster promises; neither does one with objectives of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from migratory_resources.cluster.kubernetes import KubernetesSlaSpec
from migratory_resources.report.status import FINAL_PHASES

from migratory_operator.names import Object, ResourceOwner
from migratory_operator.reports.schedule import is_scheduled
from migratory_operator.status import ConditionValue, KubernetesEvent, condition_object

SLA_MET = "SLAMet"
_BY_VERDICT = {"met": ("True", "ObjectivesMet"), "missed": ("False", "ObjectivesMissed")}
_WITHOUT_VERDICT = ("Unknown", "InsufficientData")


def sla_status(
    cluster: Object, sla: KubernetesSlaSpec, reports: Sequence[Object], now: datetime
) -> tuple[Object, tuple[KubernetesEvent, ...]]:
    """Return the part of the cluster's status about reports, and Events; both empty if no report of the cluster's
    schedule has ended and there is no schedule. SLAMet is Unknown if no report has ended, or the newest failed or had
    too little data.

    :param reports: all reports about this cluster.
    """
    previous = (cluster.get("status") or {}).get("conditions", [])
    generation = cluster["metadata"].get("generation", 1)
    owner = ResourceOwner.of(cluster)
    counted = sorted((report for report in reports if _counts(owner, report)), key=_age_key)
    if not counted:
        if sla.schedule is None:
            return {}, ()
        message = "no report of the cluster's schedule has ended yet"
        condition = ConditionValue(SLA_MET, "Unknown", "NoReport", message)
        return {"conditions": [condition_object(condition, previous, generation, now)]}, ()
    newest = counted[-1]
    condition = _condition(newest)
    status = {
        "conditions": [condition_object(condition, previous, _judged_generation(newest, cluster, generation), now)],
        "lastReport": {
            "name": newest["metadata"]["name"],
            "verdict": newest["status"].get("verdict", "failed"),
            "time": _age_key(newest)[0],
        },
    }
    return status, _events(condition, previous, counted)


def _judged_generation(newest: Object, cluster: Object, generation: int) -> int:
    """Return the generation of the cluster's spec that the report judged: the present one (`generation`) if the report
    is not yet the last report of the status, else the one that the status has. Later edits have not been judged."""
    status = cluster.get("status") or {}
    if (status.get("lastReport") or {}).get("name") != newest["metadata"]["name"]:
        return generation
    observed_generations = (
        condition.get("observedGeneration")
        for condition in status.get("conditions", ())
        if condition.get("type") == SLA_MET
    )
    return next(observed_generations, None) or generation


def _counts(cluster: ResourceOwner, report: Object) -> bool:
    """Return whether a report decides about SLAMet: it has ended, comes from the cluster's schedule, and has no
    objectives of its own."""
    is_final = report.get("status", {}).get("phase") in FINAL_PHASES
    return is_final and is_scheduled(cluster, report) and not report.get("spec", {}).get("objectives")


def _age_key(report: Object) -> tuple[str, str]:
    """Return the sort key of a report's age: the end of its window, then its creation time, as text. Without an end in
    the spec, the window ends at the creation."""
    created = report["metadata"]["creationTimestamp"]
    return report.get("spec", {}).get("end") or created, created


def _condition(report: Object) -> ConditionValue:
    """Return the condition SLAMet, by the verdict of this ended report."""
    name, status = report["metadata"]["name"], report["status"]
    complete: Object = next(
        (condition for condition in status.get("conditions", ()) if condition["type"] == "Complete"), {}
    )
    message = complete.get("message", "")
    if "verdict" not in status:
        return ConditionValue(SLA_MET, "Unknown", "ReportFailed", f"{name}: {complete.get('reason', '?')}: {message}")
    truth, reason = _BY_VERDICT.get(status["verdict"], _WITHOUT_VERDICT)
    return ConditionValue(SLA_MET, truth, reason, f"{name}: {message}")


def _events(
    condition: ConditionValue, previous: Sequence[Object], counted: Sequence[Object]
) -> tuple[KubernetesEvent, ...]:
    """Return an Event if SLAMet becomes False, or if it becomes True and the verdict before was missed. Reports without
    a verdict in between do not count.

    :param counted: the reports that decide about SLAMet, the oldest first.
    """
    old = next((condition["status"] for condition in previous if condition.get("type") == SLA_MET), None)
    if condition.status == "False" and old != "False":
        return (KubernetesEvent("Warning", "SLAMissed", condition.message),)
    if condition.status == "True" and old != "True":
        # Reports without a verdict may have come between the miss and now.
        verdicts = [
            report["status"]["verdict"] for report in counted[:-1] if report["status"].get("verdict") in _BY_VERDICT
        ]
        if old == "False" or (verdicts and verdicts[-1] == "missed"):
            return (KubernetesEvent("Normal", "SLARecovered", condition.message),)
    return ()
