"""What a demo is asked for, and whether that is enough for what it promises: said before anything is started."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from migratory_resources import MigratoryCluster, Objective

from migratory_local.errors import LocalError

Kill = Literal["broker", "coordinator", "zookeeper-leader", "none"]

KILL_AFTER = 0.4
"""Share of the measured time before the kill."""
SHORTEST_WITH_KILL = 20.0
"""Seconds to measure when something is killed: 8 before the kill, then 2 dead, the session's 4 until it counts as dead,
the takeover, and some time in which the cluster is seen to be well again."""
ROOMY = 60.0
"""Seconds of warm-up and measuring of which scrapes miss less than 5% also where some of them come late."""


@dataclass(frozen=True)
class DemoOptions:
    """Durations in seconds, payload in bytes, rate per topic and second."""

    kill: Kill = "broker"
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
    """Where the report goes as a page with plots."""


def objectives_of(resource: MigratoryCluster, options: DemoOptions) -> list[Objective]:
    """The cluster's, with the resume limit that was asked for."""
    return [
        objective.model_copy(update={"threshold": options.resume_limit}) if objective.type == "resume" else objective
        for objective in resource.spec.sla.objectives
    ]


def check_time(options: DemoOptions) -> None:
    """:raises LocalError: when a kill would have no time."""
    if options.kill != "none" and options.duration < SHORTEST_WITH_KILL:
        raise LocalError(
            f"--duration {options.duration:g}: with a kill at least {SHORTEST_WITH_KILL:g} s, for the kill comes after "
            f"{KILL_AFTER:.0%} of it, and the brokers need several seconds to find out, take over and have all clients "
            "back (--kill none may be shorter)"
        )


def too_little(resource: MigratoryCluster, options: DemoOptions) -> list[str]:
    """What the report may not be able to judge afterwards, one sentence each."""
    found = []
    measured = options.warmup + options.duration
    if measured < ROOMY:
        found.append(
            f"--duration {options.duration:g} is short for the SLA report, which gives no verdict when scrapes miss 5% "
            f"of the time: {measured * 0.05:.1f} s here, which a busy machine soon does "
            f"({ROOMY - options.warmup:g} leave room)"
        )
    if options.kill not in ("broker", "coordinator"):
        return found
    clients = options.subscribers // resource.spec.brokers.replicas
    for objective in objectives_of(resource, options):
        allowed = 1 - objective.target / 100
        if objective.type == "resume" and allowed and clients < (needed := math.ceil(1 / allowed)):
            found.append(
                f"--subscribers {options.subscribers}: about {clients} of them will lose their broker, and objective "
                f"{objective.name} ({objective.target}%) has no verdict with less than {needed}"
            )
    return found
