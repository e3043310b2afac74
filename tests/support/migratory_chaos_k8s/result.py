"""What a run leaves: the load generator's result, an entry for each fault, the report, whether the promise was kept.
Pure. docs/chaos-kubernetes.md names the keys.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from statistics import median
from typing import Any

from migratory_chaos_k8s.timeline import Moment, clients_whole, reconnects

NEVER = ("lost", "duplicates", "reordered", "unexpected", "conflicts")
"""Of acknowledged publications."""
NO_REPORT = "no report"


@dataclass
class Struck:
    """A fault as it was. Times are seconds since the load began; `over`: from then on the cluster was left to itself;
    `whole`: when it was as its resource asks for and every client was served, None when that did not come in time.
    `marks`: which of the load's marks are its own, from and before."""

    kind: str
    options: dict[str, Any]
    targets: list[str]
    began: float
    over: float
    whole: float | None
    proofs: list[dict[str, Any]]
    marks: tuple[int, int] = (0, 0)
    notes: dict[str, Any] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    error: str = ""

    @property
    def recovery_seconds(self) -> float | None:
        return None if self.whole is None else round(self.whole - self.over, 2)

    def problems(self) -> list[str]:
        name = f"{self.kind} at {self.began:g} s"
        found = [
            f"{name} was not proved: {proof['what']}: expected {proof['expected']}, seen {proof['seen']}"
            for proof in self.proofs
            if not proof["holds"]
        ]
        if self.error:
            found.append(f"{name}: {self.error}")
        elif not self.proofs:
            found.append(f"{name} proved nothing")
        if self.whole is None:
            found.append(f"{name}: not whole in time: {'; '.join(self.wrong) or 'nobody looked'}")
        return found


@dataclass
class Run:
    """All of a run. `load` is the load generator's result as docs/loadtest.md has it; empty when there is none."""

    seed: int
    cluster: str
    namespace: str
    operator: str
    left_out: list[str] = field(default_factory=list)
    load: dict[str, Any] = field(default_factory=dict)
    moments: list[Moment] = field(default_factory=list)
    faults: list[Struck] = field(default_factory=list)
    recount: dict[str, int] = field(default_factory=dict)
    report: dict[str, Any] = field(default_factory=lambda: {"verdict": NO_REPORT, "reason": "the run ended before"})
    errors: list[str] = field(default_factory=list)

    @property
    def missed(self) -> list[str]:
        """What was promised and not kept."""
        load = self.load
        found = [f"{load[key]} {key}" for key in NEVER if load.get(key)]
        if load.get("failed"):
            found.append(f"{load['failed']} publications were refused")
        if load.get("unanswered"):
            found.append(f"{load['unanswered']} publications were never answered")
        for mark in load.get("marks", ()):
            if mark["resumed"] < mark["disconnected"]:
                found.append(f"{mark['disconnected'] - mark['resumed']} clients of {mark['broker']} never resumed")
        return found

    @property
    def lacking(self) -> list[str]:
        """Why it shows nothing, or less than it should."""
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
            f"counted again: {count} {key}, the load generator counted {load[key]}"
            for key, count in self.recount.items()
            if count != load[key]
        ]
        if not self.recount:
            found.append("nothing was counted again")
        if not self.faults:
            found.append("no fault struck")
        found += [problem for fault in self.faults for problem in fault.problems()]
        return found + self._report_problems()

    def _report_problems(self) -> list[str]:
        """A report must tell the same as the load generator. What it says of the cluster's objectives is a finding
        about the cluster under faults, no failure of the run."""
        if self.report["verdict"] == NO_REPORT:
            return [f"the SLA report: {self.report['reason']}"] if self.report.get("failed") else []
        told = self.report.get("delivery") or {}
        return [
            f"the SLA report counts {told[key]} {key}, the load generator {self.load[key]}"
            for key in ("expected", "lost", "duplicates", "reordered")
            if key in told and told[key] != self.load[key]
        ]

    @property
    def verdict(self) -> str:
        return "missed" if self.missed else "insufficient" if self.lacking else "met"

    def entry(self, fault: Struck) -> dict[str, Any]:
        """As the result has it."""
        marks = self.load.get("marks", [])[slice(*fault.marks)]
        gaps = [mark["publish_gap_seconds"]["max"] for mark in marks if mark["publish_gap_seconds"]["max"] is not None]
        end = fault.whole if fault.whole is not None else (self.moments[-1].elapsed if self.moments else fault.over)
        scenario = self.load.get("scenario", {})
        subscribers, publishers = int(scenario.get("subscribers", 0)), int(scenario.get("publishers", 0))
        left = reconnects(self.moments, fault.began, end)
        slowest = [mark["slowest"] for mark in marks if mark["slowest"] is not None]
        data = asdict(fault)
        del data["marks"], data["wrong"]
        return {
            **data,
            "recovery_seconds": fault.recovery_seconds,
            "clients_seconds": clients_whole(self.moments, fault.began, end, subscribers, publishers),
            "publish_gap_seconds": round(max(gaps), 3) if gaps else None,
            "reconnects": left,
            "reconnects_per_client": round(left / max(1, subscribers + publishers), 2),
            "slowest_resume_seconds": round(max(slowest), 3) if slowest else None,
        }

    def to_json(self) -> dict[str, Any]:
        """The keys of `migratory demo --json` (docs/local.md), `faults` in the place of `kill`."""
        result = dict(self.load)
        result["verified"] = result.pop("verdict", "insufficient")
        return {
            **result,
            "verdict": self.verdict,
            "success": self.verdict == "met",
            "failures": [*self.missed, *self.lacking],
            "seed": self.seed,
            "cluster": self.cluster,
            "namespace": self.namespace,
            "operator": self.operator,
            "left_out": self.left_out,
            "faults": [self.entry(fault) for fault in self.faults],
            "recount": self.recount,
            "report": self.report,
        }


def table(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Rows of docs/chaos-kubernetes.md, by kind, over any number of results. Lost, doubled and reordered publications
    are those of the runs that the kind was part of."""
    rows = []
    kinds = sorted({fault["kind"] for result in results for fault in result["faults"]})
    for kind in kinds:
        of_kind = [fault for result in results for fault in result["faults"] if fault["kind"] == kind]
        runs = [result for result in results if any(fault["kind"] == kind for fault in result["faults"])]
        wrong = "/".join(str(sum(run[key] for run in runs)) for key in ("lost", "duplicates", "reordered"))
        proved = sum(bool(one["proofs"]) and all(proof["holds"] for proof in one["proofs"]) for one in of_kind)
        rows.append(
            f"| {kind} | {len(of_kind)} | {proved} | {_middle(of_kind, 'recovery_seconds')} | "
            f"{_middle(of_kind, 'clients_seconds')} | {_middle(of_kind, 'publish_gap_seconds')} | "
            f"{_middle(of_kind, 'reconnects_per_client', 2)} | {wrong} |"
        )
    return rows


def _middle(faults: Sequence[Mapping[str, Any]], key: str, digits: int = 1) -> str:
    """Median and largest."""
    values = [fault[key] for fault in faults if fault[key] is not None]
    never = len(faults) - len(values)
    text = f"{median(values):.{digits}f}, {max(values):.{digits}f}" if values else "none"
    return f"{text} ({never} never)" if never and key.startswith(("recovery", "clients")) else text
