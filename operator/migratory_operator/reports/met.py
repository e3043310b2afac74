"""What its reports say of a cluster: the condition SLAMet, the last report, and the Events of what turned; pure.

The newest report that has ended counts, of those that judge the cluster's own objectives: what somebody asks for with
objectives of their own says nothing about what the cluster promises.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime

from migratory_resources.cluster.kubernetes import KubernetesSlaSpec
from migratory_resources.report.status import FINAL_PHASES

from migratory_operator.decide import Event
from migratory_operator.names import Object
from migratory_operator.verdict import Verdict, written

TYPE = "SLAMet"
_STATUS = {"met": ("True", "ObjectivesMet"), "missed": ("False", "ObjectivesMissed")}
_OTHERWISE = ("Unknown", "InsufficientData")


def status(
    cluster: Object, sla: KubernetesSlaSpec, reports: Sequence[Object], now: datetime
) -> tuple[Object, tuple[Event, ...]]:
    """The part of the cluster's status that is about reports; empty where there is none and none will come."""
    before = (cluster.get("status") or {}).get("conditions", [])
    generation = cluster["metadata"].get("generation", 1)
    counted = sorted((one for one in reports if _counts(one)), key=_age)
    if not counted:
        if sla.schedule is None:
            return {}, ()
        verdict = Verdict(TYPE, "Unknown", "NoReport", "no report of the cluster's objectives has ended yet")
        return {"conditions": [written(verdict, before, generation, now)]}, ()
    newest = counted[-1]
    verdict = _verdict(newest)
    part = {
        "conditions": [written(verdict, before, _judged_at(newest, cluster, generation), now)],
        "lastReport": {
            "name": newest["metadata"]["name"],
            "verdict": newest["status"].get("verdict", "failed"),
            "time": _age(newest)[0],
        },
    }
    return part, _events(verdict, before, counted)


def _judged_at(newest: Object, cluster: Object, generation: int) -> int:
    """The generation of the cluster's spec by which the report was first counted: a later edit has not been judged."""
    status = cluster.get("status") or {}
    if (status.get("lastReport") or {}).get("name") != newest["metadata"]["name"]:
        return generation
    told = (one.get("observedGeneration") for one in status.get("conditions", ()) if one.get("type") == TYPE)
    return next(told, None) or generation


def _counts(report: Object) -> bool:
    return report.get("status", {}).get("phase") in FINAL_PHASES and not report.get("spec", {}).get("objectives")


def _age(report: Object) -> tuple[str, str]:
    """By the end of what it judged, then by when it was asked for."""
    asked = report["metadata"]["creationTimestamp"]
    return report.get("spec", {}).get("end") or asked, asked


def _verdict(report: Object) -> Verdict:
    name, found = report["metadata"]["name"], report["status"]
    complete: Object = next((one for one in found.get("conditions", ()) if one["type"] == "Complete"), {})
    said = complete.get("message", "")
    if "verdict" not in found:
        return Verdict(TYPE, "Unknown", "ReportFailed", f"{name}: {complete.get('reason', '?')}: {said}")
    truth, reason = _STATUS.get(found["verdict"], _OTHERWISE)
    return Verdict(TYPE, truth, reason, f"{name}: {said}")


def _events(verdict: Verdict, before: Sequence[Object], counted: Sequence[Object]) -> tuple[Event, ...]:
    old = next((one["status"] for one in before if one.get("type") == TYPE), None)
    if verdict.status == "False" and old != "False":
        return (Event("Warning", "SLAMissed", verdict.message),)
    if verdict.status == "True" and old != "True":
        # Between the miss and now there may have been reports that said nothing.
        judged = [one["status"]["verdict"] for one in counted[:-1] if one["status"].get("verdict") in _STATUS]
        if old == "False" or (judged and judged[-1] == "missed"):
            return (Event("Normal", "SLARecovered", verdict.message),)
    return ()
