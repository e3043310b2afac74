"""What the benchmarks' parent and its helper processes say to each other: one JSON object a line.

A helper gets its setup first, answers `Ready`, then one answer for each order; it ends with its stdin. When
something is wrong that voids the run it answers `Failed` and ends.
"""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import Struct, field

Address = tuple[str, int]


class Audience(Struct, frozen=True, kw_only=True):
    """Setup of a receiver: connections `first`.. of an audience. Connection i has topic i modulo `topics`."""

    dialect: str
    addresses: list[Address]  # one is chosen at random for each connection
    connections: int
    first: int = 0
    topics: int = 100
    prefix: str = "bench"
    sources: list[str] = field(default_factory=list)  # addresses to connect from, in turn; empty: the kernel's choice
    at_once: int = 200  # connections that may be opening at the same time
    stays: bool = False  # a connection that ends is made again, elsewhere, with its position; else the run is void
    seed: int = 1


class Hear(Struct, frozen=True, tag=True):
    """Report, and begin a new window of latencies if `anew`."""

    anew: bool = False


class Close(Struct, frozen=True, tag=True):
    """End all connections; answered when they are gone."""


class Open(Struct, frozen=True, tag=True):
    """Make all connections that are not there, `at_once` of them at a time; answered when every one is subscribed."""

    at_once: int = 200


class Heard(Struct, kw_only=True):
    """Counts since the start; `latency` since the window began."""

    connected: int = 0
    subscribed: list[int] = field(default_factory=list)  # connections by address
    deliveries: int = 0
    bytes: int = 0
    lost: int = 0  # numbers that were left out
    repeated: int = 0  # numbers that came again
    disconnected: int = 0  # links that ended without having been asked to
    refused: int = 0  # attempts to connect that failed
    error: str = ""  # the last of those
    resumes: list[float] = field(default_factory=list)  # seconds from each lost link to the receipt, since the window
    counts: list[int] = field(default_factory=list)  # of the histogram of migratory_loadtest
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    user: float = 0.0  # CPU seconds of the receiver itself
    system: float = 0.0


class Publishers(Struct, frozen=True, kw_only=True):
    """Setup of a publisher: topic i belongs to connection i modulo `connections`."""

    dialect: str
    addresses: list[Address]
    connections: int = 4
    topics: int = 100
    prefix: str = "bench"
    payload: int = 140


class Schedule(Struct, frozen=True, tag=True):
    """Open loop: every topic `rate` times a second, topics staggered, for `seconds`; then waits for the answers."""

    rate: float
    seconds: float
    settle: float  # for the answers, behind the last publication


class Pipeline(Struct, frozen=True, tag=True):
    """Closed loop: each connection has up to `window` publications without an answer."""

    window: int
    seconds: float


class Published(Struct, kw_only=True):
    scheduled: int = 0
    sent: int = 0
    late: int = 0
    latest: float = 0.0  # seconds behind its time
    answered: int = 0
    seconds: float = 0.0
    times: list[float] = field(default_factory=list)  # of single publications: seconds from send to answer (window 1)
    user: float = 0.0
    system: float = 0.0


class Ready(Struct, tag=True):
    pass


class Failed(Struct, tag=True):
    text: str


Order = Hear | Close | Open | Schedule | Pipeline
Answer = Heard | Published


def line(message: Struct) -> bytes:
    return msgspec.json.encode(message) + b"\n"


def topic_names(topics: int, prefix: str) -> list[str]:
    width = len(str(topics - 1))
    return [f"{prefix}/{topic:0{width}d}" for topic in range(topics)]


Kind = Literal["benchmarks.receiver", "benchmarks.publisher"]
