"""The result of a demo: decides whether it succeeded, and if not, why.

A demo fails if the load generator's verifier finds a fault, which compares every acknowledged publication with every
delivery; if an objective of the SLA report was missed, which Spark makes from the recorded metrics alone; if the killed
process did not become ready again; or if no client noticed the kill. In the JSON of the result, `verified` is the
verdict of the verifier, and `verdict` that of the report.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
from migratory_loadtest.api import LoadResult
from migratory_resources import Objective

from migratory_local.demo.options import DemoOptions, KillTarget


@dataclass
class KilledProcess:
    """The process that the demo killed, and how it recovered. `failure` says why it did not rejoin, "" if it did."""

    kind: KillTarget
    name: str
    at: float
    """The time of the kill, in seconds since 1970."""
    rejoined: float | None = None
    """Seconds from the kill until the process was ready again; None if it was not."""
    failure: str = ""


@dataclass
class DemoResult:
    """The outcome of a demo: the verified load, the SLA report as plain data, the killed process (None without a kill),
    and the options of the demo."""

    load: LoadResult
    report: dict[str, Any]
    killed: KilledProcess | None
    options: DemoOptions
    failures: list[str] = field(default_factory=list)
    """The reasons for which the demo failed, one sentence each. Empty on success."""

    @property
    def success(self) -> bool:
        return not self.failures

    def to_json(self) -> dict[str, Any]:
        """Return the result as plain data. docs/start/local.md describes the keys."""
        result: dict[str, Any] = msgspec.to_builtins(self.load)
        # A broker without clients is listed as well.
        brokers = sorted({name for clients in result["connections"].values() for name in clients})
        for phase, clients in result["connections"].items():
            result["connections"][phase] = dict.fromkeys(brokers, 0) | clients
        result["verified"] = result.pop("verdict")
        result["verdict"] = self.report["verdict"]
        result["success"] = self.success
        result["failures"] = self.failures
        result["seed"] = self.options.seed
        result["kill"] = {"kind": self.options.kill}
        if self.killed is not None:
            result["kill"].update(
                target=self.killed.name, at=round(self.killed.at, 3), rejoined_seconds=self.killed.rejoined
            )
        result["report"] = self.report
        return result


def describe_caveats(load: LoadResult) -> list[str]:
    """Return the facts that a reader of the report must know about this run, one sentence each: at present only that
    publications were sent late (`load.generator_late`), so that the latency does not measure the brokers. Return none
    if they were sent in time."""
    if not load.generator_late:
        return []
    return [
        "the latency does not measure the brokers, because this machine was too busy to publish in time "
        f"({load.late_sends:,} of {load.scheduled:,} sends late)"
    ]


def find_failures(
    load: LoadResult,
    killed: KilledProcess | None,
    report: dict[str, Any],
    options: DemoOptions,
    objectives: Sequence[Objective] = (),
) -> list[str]:
    """Return the reasons for which the demo failed, one sentence each; none on success.

    Reasons are the verifier's findings, a process that did not rejoin, a kill of a broker after which no client lost
    its connection, and missed objectives. If the only finding is that the load generator was late, it is no reason.
    `objectives` describe the missed ones in more detail, and decide nothing.
    """
    objective_of = {objective.name: objective for objective in objectives}
    failures = []
    for problem in load.problems:
        positions = ", ".join(problem.positions)
        subscriber = "" if problem.subscriber is None else f" at subscriber {problem.subscriber}"
        text = (
            f"{problem.kind}: topic {problem.topic}{subscriber}, {problem.count} at {positions or '?'} {problem.text}"
        )
        failures.append(text.rstrip())
    if not is_only_late(load):
        failures += load.reasons
    if load.verdict != "met" and not failures and not is_only_late(load):
        failures.append(f"the verifier's verdict is {load.verdict}")
    if killed is not None and killed.failure:
        failures.append(killed.failure)
    if options.kill in ("broker", "coordinator") and not load.reconnect_reasons.get("broken"):
        failures.append("no client lost its connection: the kill had no effect")
    failures += [
        f"objective {result['name']} was missed: {describe_missed(result, objective_of.get(result['name']))}"
        for result in report["objectives"]
        if result["verdict"] == "missed"
    ]
    return failures


def describe_missed(result: dict[str, Any], objective: Objective | None) -> str:
    """Return the result of a missed objective in words, such as "73.86% of deliveries within 500 ms, target 90%". If
    the report gives a reason of its own, return only that. `result` is the objective's entry in the report. Without
    `objective` the text names no threshold."""
    if result["reason"]:
        return str(result["reason"])
    share, target = result["compliance"] * 100, float(result["target"])
    # Use as many digits as it takes to tell the share from the target.
    shown = next((text for digits in (2, 4, 6) if float(text := f"{share:.{digits}f}") < target), f"{share!r}")
    counted = {
        "latency": "deliveries",
        "delivery": "expected deliveries once and in order",
        "resume": "resumes",
        "publish": "publish gaps",
        "availability": "publications acknowledged",
    }[result["type"]]
    if objective is not None and objective.slices is not None:
        slices = objective.slices
        counted = f"slices of {slices.length:g} s"
        if slices.threshold is not None:  # availability has no threshold: a slice is good by its share
            counted += f" with P{slices.percentile} within {_format_duration(slices.threshold)}"
    elif objective is not None and objective.threshold is not None:
        counted += f" within {_format_duration(objective.threshold)}"
    return f"{shown}% of {counted}, target {target:g}%"


def _format_duration(seconds: float) -> str:
    return f"{seconds * 1000:g} ms" if seconds < 1 else f"{seconds:g} s"


def is_only_late(load: LoadResult) -> bool:
    """Return whether the only problem of the run is that the machine was too busy to publish in time.

    The latency then includes the load generator's own delays and cannot be judged. The verification of deliveries and
    resumes is as exact as ever.
    """
    return load.verdict == "insufficient" and load.generator_late and len(load.reasons) == 1
