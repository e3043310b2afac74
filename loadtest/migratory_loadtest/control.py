"""What the parent and its workers tell each other: one JSON line a message, over the worker's stdin and stdout.

A worker that reads the end of its stdin ends: it can't outlive its parent. Times are nanoseconds of the monotonic
clock, which all processes of a machine share.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from migratory_loadtest.account import TopicAccount
from migratory_loadtest.scenario import Scenario

# ---- to a worker -----------------------------------------------------------------------------------------------


class Begin(Struct, tag=True):
    """Serve metrics, connect this worker's clients. `run` is in no other run's client ids."""

    scenario: Scenario
    number: int
    workers: int
    run: str


class Go(Struct, tag=True):
    """The first publication is due at `at`."""

    at: int


class Mark(Struct, tag=True):
    number: int
    at: int
    name: str
    broker: str | None = None


class Cease(Struct, tag=True):
    """Nothing more is published: the measured time ends at `at`."""

    at: int


class Report(Struct, tag=True):
    """The run is over: say everything, one `Topic` each, then `Summary`."""


class Verified(Struct, tag=True):
    """For /metrics: what the verifier found. Given to one worker only."""

    lost: dict[str, int]  # by broker
    duplicates: int
    reordered: int


ToWorker = Begin | Go | Mark | Cease | Report | Verified

# ---- from a worker ---------------------------------------------------------------------------------------------


class Hello(Struct, tag=True):
    metrics: str = ""  # host:port


class Progress(Struct, tag=True, kw_only=True):
    """Every half second. Totals since the start but for `latencies`: bucket -> deliveries since the progress before."""

    connected: int = 0
    publishers: int = 0
    published: int = 0
    acknowledged: int = 0
    waiting: int = 0  # published, not answered yet
    oldest: float = 0.0  # seconds since the first of these was sent
    done: bool = False  # everything that was due is published
    received: int = 0
    expected: int = 0
    reconnects: int = 0
    late: int = 0
    connections: dict[str, int] = field(default_factory=dict)
    latencies: dict[int, int] = field(default_factory=dict)
    error: str = ""  # the last problem that a client reported


class Marked(Struct, tag=True):
    number: int
    clients: int  # on the marked broker
    connections: dict[str, int]


class Topic(Struct, tag=True):
    account: TopicAccount


class Buckets(Struct, array_like=True):
    """A histogram on its way to the parent."""

    counts: list[int]
    total: float
    squares: float
    largest: float


class MarkSummary(Struct):
    number: int
    clients: int = 0
    disconnected: int = 0
    others_disconnected: int = 0
    resumes: list[float] = field(default_factory=list)  # seconds, of the disconnected that resumed
    gaps: list[float] = field(default_factory=list)  # publish gaps around this mark, per publisher and group
    open_gaps: int = 0  # publishers and groups that got no acknowledgement behind it
    changes: dict[int, int] = field(default_factory=dict)  # clients, by how many links each lost or left, if any


class Summary(Struct, tag=True, kw_only=True):
    latency: dict[str, Buckets]  # by window
    publish: Buckets
    resumes: list[float]
    reconnects: dict[str, int]  # by reason
    changes: dict[int, int]  # clients, by how many links each lost or left
    connections: dict[str, int]
    measured_bytes: int  # received within the measured time
    repeated: int  # deliveries that came again and that the clients dropped, as they should
    scheduled: int
    published: int
    late: int
    latest: float
    errors: list[str]
    marks: list[MarkSummary]
    cpu: float = 0.0  # seconds that the worker itself took since the first publication was due
    peak_bytes: int = 0  # of its memory


FromWorker = Hello | Progress | Marked | Topic | Summary

_encoder = msgspec.json.Encoder()
_to_worker = msgspec.json.Decoder(ToWorker)
_from_worker = msgspec.json.Decoder(FromWorker)


def line(message: ToWorker | FromWorker) -> bytes:
    return _encoder.encode(message) + b"\n"


def read_order(data: bytes) -> ToWorker:
    order: ToWorker = _to_worker.decode(data)
    return order


def read_answer(data: bytes) -> FromWorker:
    answer: FromWorker = _from_worker.decode(data)
    return answer
