"""The messages between the parent process of a run and its workers: one line of JSON each.

Commands go to a worker's standard input, messages come from its standard output. A worker ends when it reads the end of
its standard input, so it cannot outlive its parent. Times are nanoseconds of the monotonic clock, which all processes
of a machine have in common.
"""

from __future__ import annotations

import msgspec
from msgspec import Struct, field

from migratory_loadtest.records import TopicRecord
from migratory_loadtest.scenario import Scenario

# ---- commands to a worker --------------------------------------------------------------------------------------


class StartWorker(Struct, tag=True):
    """The command to serve metrics and connect this worker's clients. The worker is `number` of `workers`; `run` makes
    client ids unique among all runs."""

    scenario: Scenario
    number: int
    workers: int
    run: str


class StartPublishing(Struct, tag=True):
    """The command to publish from `at` on, the due time of the first publication in nanoseconds of the monotonic
    clock."""

    at: int


class MarkFault(Struct, tag=True):
    """The command to record that a fault begins at `at` (nanoseconds of the monotonic clock), and which clients are
    connected to `broker`. The worker answers FaultMarked."""

    number: int
    at: int
    name: str
    broker: str | None = None


class StopPublishing(Struct, tag=True):
    """The command to publish nothing more: the measured time ends at `at`, nanoseconds of the monotonic clock."""

    at: int


class ReportResults(Struct, tag=True):
    """The command to send everything that was recorded: one `TopicReport` per topic, then a `WorkerSummary`."""


class ExportVerification(Struct, tag=True):
    """The command to export the verifier's findings in /metrics. Only one worker gets this command."""

    lost: dict[str, int]  # by broker
    duplicates: int
    reordered: int


class AwaitScrape(Struct, tag=True):
    """The command to answer `Scraped` after the next scrape of /metrics, which has the worker's last counts. If nobody
    has scraped the worker so far, it answers at once. A worker without /metrics ends with an error."""


WorkerCommand = (
    StartWorker | StartPublishing | MarkFault | StopPublishing | ReportResults | ExportVerification | AwaitScrape
)

# ---- messages from a worker ------------------------------------------------------------------------------------


class WorkerStarted(Struct, tag=True):
    """The message of a worker that has started. `metrics` is the host:port of its /metrics, "" if it serves none."""

    metrics: str = ""


class WorkerProgress(Struct, tag=True, kw_only=True):
    """A worker's current state and its totals since the start, sent every half second. Only `latencies` starts anew
    with each message."""

    connected: int = 0
    publishers: int = 0
    published: int = 0
    acknowledged: int = 0
    waiting: int = 0  # published, not answered yet
    oldest: float = 0.0  # seconds since the oldest of these was sent
    done: bool = False  # every scheduled publication was sent
    received: int = 0
    expected: int = 0
    reconnects: int = 0
    late: int = 0
    connections: dict[str, int] = field(default_factory=dict)  # by broker
    latencies: dict[int, int] = field(default_factory=dict)  # deliveries by bucket of the histogram
    error: str = ""  # the last problem that a client reported


class FaultMarked(Struct, tag=True):
    """The answer to `MarkFault`, with the worker's connections at the mark."""

    number: int
    clients: int  # on the marked broker
    connections: dict[str, int]  # by broker


class Scraped(Struct, tag=True):
    """The answer to `AwaitScrape`: the last counts were scraped, or nobody scrapes."""


class TopicReport(Struct, tag=True):
    """The worker's part of the record of one topic."""

    record: TopicRecord


class HistogramData(Struct, array_like=True):
    """The content of a `Histogram` of seconds, as a worker sends it: the number of values in each bucket, their sum,
    the sum of their squares, and the largest. The bounds of the buckets follow from the scenario."""

    counts: list[int]
    total: float
    squares: float
    largest: float


class FaultSummary(Struct):
    """The recovery of this worker's clients from the marked fault of this number. `clients` and `disconnected` are
    numbers of clients of the marked broker; `others_disconnected` is the number of all others that lost their link."""

    number: int
    clients: int = 0
    disconnected: int = 0
    others_disconnected: int = 0
    resumes: list[float] = field(default_factory=list)  # seconds, of the disconnected clients that resumed
    gaps: list[float] = field(default_factory=list)  # publish gaps around this mark, per publisher and group
    open_gaps: int = 0  # pairs of publisher and group without an acknowledgement after the mark
    changes: dict[int, int] = field(default_factory=dict)  # clients by number of links lost or replaced, if any


class WorkerSummary(Struct, tag=True, kw_only=True):
    """All measurements of a worker."""

    latency: dict[str, HistogramData]  # by window
    publish: HistogramData
    resumes: list[float]
    reconnects: dict[str, int]  # by reason
    changes: dict[int, int]  # clients by number of links lost or replaced
    connections: dict[str, int]  # by broker
    measured_bytes: int  # received within the measured time
    repeated: int  # repeated deliveries that the clients dropped, as they should
    scheduled: int
    published: int
    late: int
    latest: float  # seconds, the longest time between due and sent
    errors: list[str]
    marks: list[FaultSummary]
    cpu: float = 0.0  # CPU seconds of the worker since the first publication was due
    peak_bytes: int = 0  # peak size of its memory


WorkerMessage = WorkerStarted | WorkerProgress | FaultMarked | TopicReport | WorkerSummary | Scraped

_encoder = msgspec.json.Encoder()
_command_decoder = msgspec.json.Decoder(WorkerCommand)
_message_decoder = msgspec.json.Decoder(WorkerMessage)


def encode_line(message: WorkerCommand | WorkerMessage) -> bytes:
    """Return a command or message as one line of JSON, with its line feed."""
    return _encoder.encode(message) + b"\n"


def decode_command(line: bytes) -> WorkerCommand:
    """Return the command in a line. Raise msgspec.MsgspecError for any other line."""
    command: WorkerCommand = _command_decoder.decode(line)
    return command


def decode_message(line: bytes) -> WorkerMessage:
    """Return the message of a worker in a line. Raise msgspec.MsgspecError for any other line."""
    message: WorkerMessage = _message_decoder.decode(line)
    return message
