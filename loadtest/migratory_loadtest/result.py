"""The types of a run's progress events and of its result, which is also written as JSON.

docs/how-to/loadtest.md explains how the counts are made and judged.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import msgspec
from msgspec import Struct, field

# ---- progress ---------------------------------------------------------------------------------------------------

Phase = Literal["connecting", "warmup", "measuring", "draining", "verifying", "done"]


class LoadEvent(Struct, frozen=True, kw_only=True):
    """The state of a run, emitted about every second, at each change of phase and at each mark."""

    phase: Phase
    elapsed: float  # seconds since the first scheduled publication; 0 before it
    total: float  # seconds of warm-up and measurement together
    connected: int  # subscribers that have their receipt
    subscribers: int
    published: int
    acknowledged: int
    received: int
    expected: int
    reconnects: int
    publishers: int = 0  # connected publishers
    oldest: float = 0.0  # seconds since the oldest unanswered publication was sent
    late: int  # publications sent more than 50 ms after their due time
    connections: dict[str, int] = field(default_factory=dict)  # per broker
    latency_ms: dict[str, float] = field(default_factory=dict)  # median and p99 of deliveries since the previous event
    error: str = ""  # the last problem of a client, if clients are still not connected after some seconds
    mark: str = ""  # the name of the mark that caused this event, if one did


OnEvent = Callable[[LoadEvent], None]

# ---- result -----------------------------------------------------------------------------------------------------

Verdict = Literal["met", "missed", "insufficient"]


class DurationSummary(Struct, kw_only=True):
    """Number, P50, P99 and maximum of durations in seconds; None for all but `count` if nothing was measured."""

    count: int = 0
    p50: float | None = None
    p99: float | None = None
    max: float | None = None


class LatencySummary(Struct, kw_only=True):
    """Latencies of deliveries in milliseconds, from the due time of a publication to its delivery; None for all but
    `count` if nothing was delivered."""

    count: int = 0
    median: float | None = None
    mean: float | None = None
    stdev: float | None = None
    p90: float | None = None
    p95: float | None = None
    p99: float | None = None
    max: float | None = None


class LatencyPhases(Struct, kw_only=True):
    """Latencies by due time within the measured time: before the first mark (all of them without a mark), within
    `settle` seconds after it, and later."""

    before: LatencySummary = field(default_factory=LatencySummary)
    during: LatencySummary = field(default_factory=LatencySummary)
    after: LatencySummary = field(default_factory=LatencySummary)


class ConnectionCounts(Struct, kw_only=True):
    """Numbers of connected subscribers by broker: before the first mark (at the start if there is none), and after the
    run."""

    before: dict[str, int] = field(default_factory=dict)
    after: dict[str, int] = field(default_factory=dict)


class DeliveryProblem(Struct, kw_only=True):
    """A violation of the delivery guarantees, by kind, topic and subscriber. `subscriber` is None if it concerns the
    whole topic.

    `positions` ("epoch:sequence", or "unknown") names only the first ones; `count` is exact.
    """

    kind: Literal["lost", "duplicate", "reordered", "unexpected", "conflict"]
    topic: str
    subscriber: int | None = None
    count: int = 0
    positions: list[str] = field(default_factory=list)
    text: str = ""


class FaultRecovery(Struct, kw_only=True):
    """The recovery of the clients from one marked fault: the number of `clients` of the marked broker (0 without one),
    and of those that lost their link, that resumed, and that resumed within the limit."""

    name: str
    broker: str | None
    clients: int
    disconnected: int
    resumed: int
    within_limit: int
    slowest: float | None = None  # seconds
    others_disconnected: int = 0  # all other clients that lost their link after the mark
    # "2": clients that changed connections twice before the next mark; clients without a change are left out
    clients_by_reconnects: dict[str, int] = field(default_factory=dict)
    silent_groups: int = 0  # pairs of publisher and group without an acknowledgement after the mark
    publish_gap_seconds: DurationSummary = field(default_factory=DurationSummary)


class GeneratorUsage(Struct, kw_only=True):
    """CPU and memory that the load workers used together. Brokers on the same machine cannot use these."""

    workers: int = 0
    cpu_seconds: float = 0.0  # since the first publication was due
    cpu_us_per_delivery: float | None = None
    peak_mib: float = 0.0  # sum of the workers' peak sizes


class LoadResult(Struct, kw_only=True):
    """The result of a run: counts, latencies, recoveries from faults, problems, and the verdict with its reasons."""

    published: int = 0
    acknowledged: int = 0
    unanswered: int = 0  # or answered with `outcome_unknown`
    failed: int = 0
    expected: int = 0
    delivered: int = 0  # of `expected`, each counted once: lost = expected - delivered
    received: int = 0  # all deliveries
    lost: int = 0
    gaps: int = 0  # of `lost`: those that a truncated or reset receipt reported to the subscriber
    duplicates: int = 0
    reordered: int = 0
    unexpected: int = 0
    conflicts: int = 0  # positions with two contents
    repeated: int = 0  # received twice and dropped by the client, as it should
    unknown: int = 0  # deliveries of `unanswered` publications, which is allowed
    reconnects: int = 0
    reconnect_reasons: dict[str, int] = field(default_factory=dict)
    clients_by_reconnects: dict[str, int] = field(default_factory=dict)  # "2": clients that changed twice
    resume_seconds: DurationSummary = field(default_factory=DurationSummary)
    publish_gap_seconds: DurationSummary = field(default_factory=DurationSummary)
    publish_seconds: DurationSummary = field(default_factory=DurationSummary)
    latency_ms: LatencyPhases = field(default_factory=LatencyPhases)
    connections: ConnectionCounts = field(default_factory=ConnectionCounts)
    traffic_gbps: float = 0.0  # bytes of WebSocket frames received by subscribers, over the measured time
    scheduled: int = 0
    late_sends: int = 0  # sent more than 50 ms late
    latest_send_ms: float = 0.0
    generator_late: bool = False  # over 1% of the sends were late: the latency includes the generator's own
    generator: GeneratorUsage = field(default_factory=GeneratorUsage)
    marks: list[FaultRecovery] = field(default_factory=list)
    problems: list[DeliveryProblem] = field(default_factory=list)
    errors: list[str] = field(default_factory=list)  # errors reported by clients, each text once
    reasons: list[str] = field(default_factory=list)  # why the verdict is not "met"
    verdict: Verdict = "insufficient"
    scenario: dict[str, object] = field(default_factory=dict)
    seconds: float = 0.0  # from the first scheduled publication to the end

    def to_json(self) -> bytes:
        """Return the result as indented JSON."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2) + b"\n"
