"""Messages between a benchmark and its helper processes (receivers, publishers, attackers): one JSON object a line.

A helper reads its setup from stdin first and answers `HelperReady`. Then it answers each command with one report, and
ends with its stdin. On an error that voids the run it answers `HelperFailed` and ends. The second half of the module is
the helpers' end of the conversation.
"""

from __future__ import annotations

import os
import resource
import sys
from typing import Any, Literal

import msgspec
from msgspec import Struct, field

Address = tuple[str, int]

HelperModule = Literal["benchmarks.receiver", "benchmarks.publisher", "benchmarks.attacker"]

AttackKind = Literal[
    "stalled readers", "slow handshakes", "slow TLS handshakes", "connects", "hostile frames", "publications",
    "subscriptions",
]  # fmt: skip

# ---- setups ------------------------------------------------------------------------------------------------------


class ReceiverSetup(Struct, frozen=True, kw_only=True):
    """Setup of a receiver, which holds the connections from `first` on. Connection i has the topic i modulo
    `topics`."""

    protocol: str
    addresses: list[Address]  # one is chosen at random for each connection
    connections: int
    first: int = 0
    topics: int = 100
    prefix: str = "bench"
    sources: list[str] = field(default_factory=list)  # addresses to connect from, in turn; empty: the kernel's choice
    max_pending: int = 200  # connections that may be opening at the same time
    reconnects: bool = False  # a lost connection is opened again with its position; else it voids the run
    seed: int = 1
    authority: str = ""  # the file of the authority that signed the servers' certificates; empty: no TLS
    token: str = ""  # what all clients show of themselves


class PublisherSetup(Struct, frozen=True, kw_only=True):
    """Setup of a publisher. Topic i belongs to the connection i modulo `connections`."""

    protocol: str
    addresses: list[Address]
    connections: int = 4
    topics: int = 100
    prefix: str = "bench"
    payload: int = 140
    authority: str = ""  # as of a receiver
    token: str = ""


class AttackerSetup(Struct, frozen=True, kw_only=True):
    """Setup of an attacker. `rate` is per second: connections, frames, publications or topics."""

    kind: AttackKind
    address: Address
    source: str
    connections: int
    rate: float


# ---- commands ----------------------------------------------------------------------------------------------------


class GetReport(Struct, frozen=True, tag=True):
    """Report, and then start a new window of latencies and resumes if `reset`."""

    reset: bool = False


class CloseAll(Struct, frozen=True, tag=True):
    """Close all connections, then report."""


class OpenAll(Struct, frozen=True, tag=True):
    """Open all missing connections, at most `max_pending` at a time; report when all are subscribed."""

    max_pending: int = 200


class OpenLoop(Struct, frozen=True, tag=True):
    """Publish on each topic `rate` times a second for `seconds`, topics staggered, whatever the answers do. Then wait
    up to `settle` seconds for the answers."""

    rate: float
    seconds: float
    settle: float


class ClosedLoop(Struct, frozen=True, tag=True):
    """Publish for `seconds` as fast as answers allow, with up to `window` unanswered publications a connection."""

    window: int
    seconds: float


class Attack(Struct, frozen=True, tag=True):
    """Attack for `seconds`, end all connections, then report."""

    seconds: float


class Burn(Struct, frozen=True, tag=True):
    """Use `cpu` seconds of CPU, evenly over `seconds`, and report."""

    cpu: float
    seconds: float


Command = GetReport | CloseAll | OpenAll | OpenLoop | ClosedLoop | Attack | Burn

# ---- answers -----------------------------------------------------------------------------------------------------


class ReceiverReport(Struct, kw_only=True):
    """Counts of a receiver since its start; latencies and resumes since the window began."""

    connected: int = 0
    subscribed: list[int] = field(default_factory=list)  # connections by address
    deliveries: int = 0
    bytes: int = 0
    lost: int = 0  # sequence numbers that were skipped
    repeated: int = 0  # sequence numbers that arrived again
    disconnected: int = 0  # connections that ended without a command
    refused: int = 0  # failed attempts to connect
    error: str = ""  # of the last failed attempt
    resumes: list[float] = field(default_factory=list)  # seconds from each lost connection to the receipt
    counts: list[int] = field(default_factory=list)  # of the latency histogram of migratory_loadtest
    total: float = 0.0
    squares: float = 0.0
    largest: float = 0.0
    user: float = 0.0  # CPU seconds of the receiver itself
    system: float = 0.0


class PublishReport(Struct, kw_only=True):
    """Result of one loop of a publisher."""

    scheduled: int = 0
    sent: int = 0
    late: int = 0
    latest: float = 0.0  # seconds by which the latest publication was late
    answered: int = 0
    seconds: float = 0.0
    times: list[float] = field(default_factory=list)  # with a window of 1: seconds from each publication to its answer
    user: float = 0.0  # CPU seconds of the publisher itself
    system: float = 0.0


class AttackReport(Struct, kw_only=True):
    """Counts of an attack, and the CPU seconds of it or of burning."""

    opened: int = 0  # connections
    closed: int = 0  # of these by the server
    sent: int = 0  # messages besides the first of each connection
    user: float = 0.0
    system: float = 0.0


class HelperReady(Struct, tag=True):
    """The helper has its connections."""


class HelperFailed(Struct, tag=True):
    """An answer: the run is void for the reason `text`."""

    text: str


def encode_line(message: Struct) -> bytes:
    """Return a message as a line."""
    return msgspec.json.encode(message) + b"\n"


def topic_names(topics: int, prefix: str) -> list[str]:
    """Return the names of the topics, all of the same length."""
    width = len(str(topics - 1))
    return [f"{prefix}/{topic:0{width}d}" for topic in range(topics)]


# ---- the helper's end --------------------------------------------------------------------------------------------

_COMMAND = msgspec.json.Decoder(Command)


def read_setup(kind: type[Any]) -> Any:
    """Return the setup, which is the first line of stdin. End the process when stdin ends."""
    data = b""
    while not data.endswith(b"\n"):
        byte = os.read(0, 1)
        if not byte:
            raise SystemExit(0)
        data += byte
    return msgspec.json.decode(data, type=kind)


class CommandReader:
    """The commands that arrive on stdin, read without blocking."""

    def __init__(self) -> None:
        self._data = b""

    def read(self) -> list[Command] | None:
        """Read stdin, which must be readable, and return the commands that are complete; None at the end of stdin."""
        data = os.read(0, 65536)
        if not data:
            return None
        *lines, self._data = (self._data + data).split(b"\n")
        return [_COMMAND.decode(line) for line in lines]


def send(message: Struct) -> None:
    """Write an answer to stdout."""
    sys.stdout.buffer.write(encode_line(message))
    sys.stdout.buffer.flush()


def fail(text: str) -> None:
    """Answer `HelperFailed` and end the process."""
    send(HelperFailed(text))
    raise SystemExit(1)


def cpu_seconds() -> tuple[float, float]:
    """Return the CPU seconds of this process: user, system."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime, usage.ru_stime
