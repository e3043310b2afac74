"""The result of a run: the load generator's result, an entry for each fault, the SLA report, and the verdict. Without
I/O.

docs/contributing/chaos.md describes the keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from migratory_loadtest import LoadEvent

from migratory_chaos.engine import FaultRecord

VIOLATIONS = ("lost", "duplicates", "reordered", "unexpected", "conflicts")
"""Counts of the load generator that must be 0."""
NO_REPORT = "no report"
ANSWER_SECONDS = 2.0
"""Seconds within which a publication of a healthy cluster is answered."""
DELIVERY_SECONDS = 1.5
"""Seconds within which a publication of a healthy cluster is delivered."""


@dataclass
class KubernetesRunResult:
    """Everything about a run. `load` is the load generator's result (docs/how-to/loadtest.md), or empty."""

    seed: int
    cluster: str
    namespace: str
    operator: str
    left_out: list[str] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    moments: list[LoadEvent] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    recount: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=lambda: {"verdict": NO_REPORT, "reason": "the run ended before"})
    errors: list[str] = field(default_factory=list)

    @property
    def broken_promises(self) -> list[str]:
        """One text for each of the product's promises that was broken in the run."""
        load = self.load
        found = [f"{load[key]} {key}" for key in VIOLATIONS if load.get(key)]
        if load.get("failed"):
            found.append(f"{load['failed']} publications were refused")
        if load.get("unanswered"):
            found.append(f"{load['unanswered']} publications were never answered")
        for mark in load.get("marks", ()):
            if mark["resumed"] < mark["disconnected"]:
                found.append(f"{mark['disconnected'] - mark['resumed']} clients of {mark['broker']} never resumed")
        return found

    @property
    def missing_evidence(self) -> list[str]:
        """One text for each piece of evidence that the run lacks: without it, kept promises show nothing."""
        load = self.load
        found = list(self.errors)
        if not load:
            return [*found, "there is no account of the load"]
        if not load["acknowledged"] or not load["expected"]:
            found.append("nothing was acknowledged, or nothing delivered")
        if load["delivered"] + load["lost"] != load["expected"]:
            found.append(f"{load['delivered']} delivered and {load['lost']} lost are not {load['expected']} expected")
        if load["acknowledged"] + load["unanswered"] + load["failed"] != load["published"]:
            found.append(f"of {load['published']} published only {load['acknowledged']} are accounted for")
        found += [
            f"the second count found {count} {key}, the load generator {load[key]}"
            for key, count in self.recount.items()
            if count != load[key]
        ]
        if not self.recount:
            found.append("the account was not counted a second time")
        if not self.faults:
            found.append("no fault was injected")
        found += [problem for fault in self.faults for problem in fault.problems()]
        return found + self._report_problems()

    def _report_problems(self) -> list[str]:
        """Return the differences between the counts of the SLA report and of the load generator, or why a report is
        missing. The report's verdict on objectives is not judged: the cluster was under faults."""
        if self.report["verdict"] == NO_REPORT:
            return [f"the SLA report: {self.report['reason']}"] if self.report.get("failed") else []
        delivery = self.report.get("delivery") or {}
        return [
            f"the SLA report counts {delivery[key]} {key}, the load generator {self.load[key]}"
            for key in ("expected", "lost", "duplicates", "reordered")
            if key in delivery and delivery[key] != self.load[key]
        ]

    @property
    def verdict(self) -> str:
        return "missed" if self.broken_promises else "insufficient" if self.missing_evidence else "met"

    def fault_entry(self, fault: FaultRecord) -> dict[str, Any]:
        """Return a fault's entry in the result: its record, and how long clients and publishers were interrupted."""
        marks = self.load.get("marks", [])[slice(*fault.marks)]
        gaps = [mark["publish_gap_seconds"]["max"] for mark in marks if mark["publish_gap_seconds"]["max"] is not None]
        last = self.moments[-1].elapsed if self.moments else fault.began
        end = last if fault.healthy is None else fault.healthy
        scenario = self.load.get("scenario", {})
        subscribers, publishers = int(scenario.get("subscribers", 0)), int(scenario.get("publishers", 0))
        reconnects = count_reconnects(self.moments, fault.began, end)
        slowest = [mark["slowest"] for mark in marks if mark["slowest"] is not None]
        return {
            **fault.as_data(),
            "clients_seconds": clients_recovery(self.moments, fault.began, end, publishers),
            "publish_gap_seconds": round(max(gaps), 3) if gaps else None,
            "reconnects": reconnects,
            "reconnects_per_client": round(reconnects / max(1, subscribers + publishers), 2),
            "slowest_resume_seconds": round(max(slowest), 3) if slowest else None,
        }

    def as_data(self) -> dict[str, Any]:
        """Return the keys of `migratory demo --json` (docs/start/local.md), with `faults` in the place of `kill`."""
        result = dict(self.load)
        result["verified"] = result.pop("verdict", "insufficient")
        return {
            **result,
            "verdict": self.verdict,
            "success": self.verdict == "met",
            "failures": [*self.broken_promises, *self.missing_evidence],
            "seed": self.seed,
            "cluster": self.cluster,
            "namespace": self.namespace,
            "operator": self.operator,
            "left_out": self.left_out,
            "faults": [self.fault_entry(fault) for fault in self.faults],
            "recount": self.recount,
            "report": self.report,
        }


# ---- the load's progress, second by second ---------------------------------------------------------------------------


def find_unserved(moments: Sequence[LoadEvent], index: int, publishers: int) -> list[str]:
    """Return what was wrong for clients at the entry `index`; empty when all subscribers and publishers were served."""
    now = moments[index]
    found = []
    if now.connected < now.subscribers:
        found.append(f"{now.subscribers - now.connected} subscribers have no broker")
    if now.publishers < publishers:
        found.append(f"{publishers - now.publishers} publishers have no broker")
    if now.oldest > ANSWER_SECONDS:
        found.append(f"a publication waits for {now.oldest:g} s")
    due = [moment.expected for moment in moments[: index + 1] if moment.elapsed <= now.elapsed - DELIVERY_SECONDS]
    missing = (due[-1] if due else 0) - now.received
    if missing > 0:
        found.append(f"{missing} deliveries are behind")
    return found


def clients_recovery(moments: Sequence[LoadEvent], began: float, ended: float, publishers: int) -> float | None:
    """Return the seconds from `began` until all clients were served again and stayed so up to `ended`. Times are
    seconds since the load began.

    0 means that nothing was wrong at any entry between (one a second), None that clients were not served at the end.
    """
    last = None
    between = [index for index, moment in enumerate(moments) if began <= moment.elapsed <= ended]
    for number, index in enumerate(between):
        if find_unserved(moments, index, publishers):
            if number + 1 == len(between):
                return None
            last = moments[between[number + 1]].elapsed
    return 0.0 if last is None else round(last - began, 2)


def count_reconnects(moments: Sequence[LoadEvent], began: float, ended: float) -> int:
    """Return how many connections clients lost or left between two times, in seconds since the load began."""

    def total(at: float) -> int:
        before = [moment.reconnects for moment in moments if moment.elapsed <= at]
        return before[-1] if before else 0

    return total(ended) - total(began)
