"""The result of a run, as a value and as JSON. docs/loadtest.md describes every field."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct, field

Verdict = Literal["met", "missed", "insufficient"]


class Spread(Struct, kw_only=True):
    """Seconds; None when nothing was measured."""

    count: int = 0
    p50: float | None = None
    p99: float | None = None
    max: float | None = None


class Latency(Struct, kw_only=True):
    """Milliseconds from the scheduled send to the delivery; None when nothing was delivered."""

    count: int = 0
    median: float | None = None
    mean: float | None = None
    stdev: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class Phases(Struct, kw_only=True):
    """By the scheduled send: before the first mark, in the `settle` seconds behind it, after those."""

    before: Latency = field(default_factory=Latency)
    during: Latency = field(default_factory=Latency)
    after: Latency = field(default_factory=Latency)


class Connections(Struct, kw_only=True):
    """Connections per broker at the first mark (without one: at the start) and at the end."""

    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)


class Problem(Struct, kw_only=True):
    """One thing that went wrong. `positions` are "epoch:sequence"; `first` of them are named, `count` is exact."""

    kind: Literal["lost", "duplicate", "reordered", "unexpected", "conflict"]
    topic: str
    subscriber: int | None = None
    count: int = 0
    positions: list[str] = field(default_factory=list)
    text: str = ""


class Resumed(Struct, kw_only=True):
    """The clients that were on a broker at its mark."""

    name: str
    broker: str | None
    clients: int
    disconnected: int
    resumed: int
    within_limit: int
    slowest: float | None = None
    others_disconnected: int = 0  # clients of other brokers that lost their link behind the mark
    # "2": clients that changed twice up to the next mark; those that never did are not in it
    clients_by_reconnects: dict[str, int] = field(default_factory=dict)
    silent_groups: int = 0  # publishers and groups that got no acknowledgement behind it
    publish_gap_seconds: Spread = field(default_factory=Spread)


class Generator(Struct, kw_only=True):
    """What the load generator itself took, over its workers: on one machine with the brokers that is theirs to miss."""

    workers: int = 0
    cpu_seconds: float = 0.0  # since the first publication was due
    cpu_us_per_delivery: float | None = None
    peak_mib: float = 0.0  # sum of the workers' largest sizes


class LoadResult(Struct, kw_only=True):
    published: int = 0
    acknowledged: int = 0
    unanswered: int = 0
    failed: int = 0
    expected: int = 0
    delivered: int = 0  # of `expected`, each counted once: lost = expected - delivered
    received: int = 0  # everything that arrived
    lost: int = 0
    gaps: int = 0  # of `lost`: those that a truncated or reset receipt told the subscriber of
    duplicates: int = 0
    reordered: int = 0
    unexpected: int = 0
    conflicts: int = 0  # positions with two contents
    repeated: int = 0  # came twice over the wire and was dropped by the client, as it should be
    unknown: int = 0  # deliveries of publications that were never answered: allowed
    reconnects: int = 0
    reconnect_reasons: dict[str, int] = field(default_factory=dict)
    clients_by_reconnects: dict[str, int] = field(default_factory=dict)  # "2": clients that changed twice
    resume_seconds: Spread = field(default_factory=Spread)
    publish_gap_seconds: Spread = field(default_factory=Spread)
    publish_seconds: Spread = field(default_factory=Spread)
    latency_ms: Phases = field(default_factory=Phases)
    connections: Connections = field(default_factory=Connections)
    traffic_gbps: float = 0.0  # received by subscribers, WebSocket frames, over the measured time
    scheduled: int = 0
    late_sends: int = 0  # left more than 50 ms late
    latest_send_ms: float = 0.0
    generator_late: bool = False  # over 1% of the sends were late: the latency is the generator's as well
    generator: Generator = field(default_factory=Generator)
    marks: list[Resumed] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # what clients reported, each text once
    reasons: list[str] = field(default_factory=list)  # why the verdict is not "met"
    verdict: Verdict = "insufficient"
    scenario: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0  # from the first scheduled publication to the end

    def to_json(self) -> bytes:
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"
