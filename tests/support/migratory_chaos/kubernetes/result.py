"""The result of a run: the load generator's result, an entry for each fault, the SLA report, and the verdict. Pure.
docs/contributing/chaos.md describes the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from migratory_chaos.engine import FaultRecord
from migratory_chaos.kubernetes.timeline import Moment, clients_recovery, count_reconnects

VIOLATIONS = ("lost", "duplicates", "reordered", "unexpected", "conflicts")
"""Counts of the load generator that must be 0."""
NO_REPORT = "no report"


@dataclass
class KubernetesRunResult:
    """Everything about a run. `load` is the load generator's result (docs/how-to/loadtest.md), or empty."""

    seed: int
    cluster: str
    namespace: str
    operator: str
    left_out: list[str] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    faults: list[FaultRecord] = field(default_factory=list)
    recount: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=lambda: {"verdict": NO_REPORT, "reason": "the run ended before"})
    errors: list[str] = field(default_factory=list)

    @property
    def broken_promises(self) -> list[str]:
        """The promises of the product that it did not keep."""
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
        """The evidence that the run failed to give."""
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
        """Compare the SLA report with the load generator. Its verdict on objectives is a finding about a cluster
        under faults, and fails no run."""
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
        """Return a fault's entry in the result."""
        marks = self.load.get("marks", [])[slice(*fault.marks)]
        gaps = [mark["publish_gap_seconds"]["max"] for mark in marks if mark["publish_gap_seconds"]["max"] is not None]
        last = self.moments[-1].elapsed if self.moments else fault.released
        end = last if fault.healthy is None else fault.healthy
        scenario = self.load.get("scenario", {})
        subscribers, publishers = int(scenario.get("subscribers", 0)), int(scenario.get("publishers", 0))
        reconnects = count_reconnects(self.moments, fault.began, end)
        slowest = [mark["slowest"] for mark in marks if mark["slowest"] is not None]
        return {
            **fault.as_data(),
            "clients_seconds": clients_recovery(self.moments, fault.began, end, subscribers, publishers),
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


def table_rows(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the rows of the table in docs/contributing/chaos.md, by kind, over any number of results. Lost, duplicate
    and reordered publications are those of the runs that a kind was part of."""
    rows = []
    for kind in sorted({fault["kind"] for result in results for fault in result["faults"]}):
        of_kind = [fault for result in results for fault in result["faults"] if fault["kind"] == kind]
        runs = [result for result in results if any(fault["kind"] == kind for fault in result["faults"])]
        wrong = "/".join(str(sum(run[key] for run in runs)) for key in ("lost", "duplicates", "reordered"))
        proved = sum(bool(one["proofs"]) and all(proof["holds"] for proof in one["proofs"]) for one in of_kind)
        rows.append(
            f"| {kind} | {len(of_kind)} | {proved} | {_median_and_max(of_kind, 'recovery_seconds')} | "
            f"{_median_and_max(of_kind, 'clients_seconds')} | {_median_and_max(of_kind, 'publish_gap_seconds')} | "
            f"{_median_and_max(of_kind, 'reconnects_per_client', 2)} | {wrong} |"
        )
    return rows


def _median_and_max(faults: Sequence[Mapping[str, Any]], key: str, digits: int = 1) -> str:
    values = [fault[key] for fault in faults if fault[key] is not None]
    never = len(faults) - len(values)
    text = f"{median(values):.{digits}f}, {max(values):.{digits}f}" if values else "none"
    return f"{text} ({never} never)" if never and key.startswith(("recovery", "clients")) else text
