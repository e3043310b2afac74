"""How a run comes along, as a progress display is told."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from msgspec import Struct, field

Phase = Literal["connecting", "warmup", "measuring", "draining", "verifying", "done"]


class LoadEvent(Struct, frozen=True, kw_only=True):
    """What a progress display wants to know; one comes about every second and at each change of phase."""

    phase: Phase
    elapsed: float  # seconds since the first scheduled publication, 0 before
    total: float  # seconds that warm-up and measurement take together
    connected: int  # subscribers that have their receipt
    subscribers: int
    published: int
    acknowledged: int
    received: int
    expected: int
    reconnects: int
    publishers: int = 0  # that are connected
    oldest: float = 0.0  # seconds for which the oldest unanswered publication waits
    late: int  # publications that left more than 50 ms after their scheduled time
    connections: dict[str, int] = field(default_factory=dict)  # per broker
    latency_ms: dict[str, float] = field(default_factory=dict)  # median, p99 of the deliveries since the event before
    error: str = ""  # why clients that are not connected after some seconds are not: the last problem of one
    mark: str = ""  # of the event that a mark caused: its name


OnEvent = Callable[[LoadEvent], None]
