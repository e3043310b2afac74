"""The options of a demo, and checks of whether they suffice for a verdict, before anything is started."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from migratory_resources import MigratoryCluster, Objective

from migratory_local import LocalError

KillTarget = Literal["broker", "coordinator", "zookeeper-leader", "none"]
"""The process that a demo kills: a broker that the seed chooses, the broker that coordinates the most groups, the
leader of ZooKeeper, or none."""

KILL_AFTER = 0.4
"""Share of the measured time that passes before the kill."""
MIN_DURATION_WITH_KILL = 20.0
"""Seconds to measure with a kill: 8 before it, 2 until the restart, 4 until the session expires, the takeover, and some
time after the recovery."""
AMPLE_SECONDS = 60.0
"""Seconds of warm-up and measurement that leave room for late scrapes: the report needs scrapes of 95% of the time."""


@dataclass(frozen=True)
class DemoOptions:
    """The options of a demo. Durations are in seconds, payload is in bytes, rate is per topic and second.
    `resume_limit` is the longest accepted resume time. `ports` is as for `LocalCluster`."""

    kill: KillTarget = "broker"
    subscribers: int = 2000
    topics: int = 100
    duration: float = 60.0
    warmup: float = 5.0
    payload: int = 140
    rate: float = 1.0
    seed: int = 1
    resume_limit: float = 5.0
    ports: int | None = None
    html: Path | None = None
    """The file for the report as a page with plots."""


def objectives_of(resource: MigratoryCluster, options: DemoOptions) -> list[Objective]:
    """Return the cluster's objectives. Those of type resume are copies that have the demo's resume limit as their
    threshold."""
    return [
        objective.model_copy(update={"threshold": options.resume_limit}) if objective.type == "resume" else objective
        for objective in resource.spec.sla.objectives
    ]


def check_duration(options: DemoOptions) -> None:
    """Check that the demo is long enough for the kill, if there is one, and for the recovery.

    :raises LocalError: there is a kill, and `duration` is below `MIN_DURATION_WITH_KILL`.
    """
    if options.kill != "none" and options.duration < MIN_DURATION_WITH_KILL:
        raise LocalError(
            f"--duration {options.duration:g} is too short for a kill; use {MIN_DURATION_WITH_KILL:g} or more, or "
            f"--kill none (the kill comes after {KILL_AFTER:.0%} of the time, and the recovery takes several seconds)"
        )


def report_warnings(resource: MigratoryCluster, options: DemoOptions) -> list[str]:
    """Return a sentence for each reason for which the SLA report may have too little data for a verdict; none if the
    options suffice."""
    warnings = []
    measured = options.warmup + options.duration
    if measured < AMPLE_SECONDS:
        warnings.append(
            f"--duration {options.duration:g} is short: on a busy machine scrapes may miss {measured * 0.05:.1f} s, 5% "
            f"of the time, and then the SLA report has no verdict; use {AMPLE_SECONDS - options.warmup:g} or more"
        )
    if options.kill not in ("broker", "coordinator"):
        return warnings
    clients = options.subscribers // resource.spec.brokers.replicas
    for objective in objectives_of(resource, options):
        allowed = 1 - objective.target / 100
        if objective.type == "resume" and allowed and clients < (needed := math.ceil(1 / allowed)):
            warnings.append(
                f"--subscribers {options.subscribers}: about {clients} of them will lose their broker, but objective "
                f"{objective.name} ({objective.target}%) needs {needed} for a verdict"
            )
    return warnings
