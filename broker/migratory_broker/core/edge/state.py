"""The state of an edge per connection and per topic: data with little behaviour of their own.

An idle subscribed client is one `ClientConnection`, one entry in the table of connections and one in its topic's
audience. Everything that only a busy, slow or resuming client needs is None until then.
tests/unit/core/edge/test_memory.py checks the size.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from collections.abc import Iterator
from enum import IntEnum
from typing import NamedTuple

from migratory_protocol.frames import FrameEvent, FrameParser, ProtocolError
from migratory_protocol.messages import TopicReceipt
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position

from migratory_broker.core.edge.events import Recipients
from migratory_broker.core.edge.formats import Format


class State(IntEnum):
    """The states of a connection. lifecycle.py has the transitions."""

    OPENING = 0  # waits for `connect`
    OPEN = 1
    CLOSING = 2  # the broker's close frame is sent, the client's is awaited
    GONE = 3  # the `Close` effect was emitted, or the socket was lost


class SendQueue:
    """The bytes that wait for a paused connection, oldest first. The chunks are shared with other queues."""

    __slots__ = ("chunks", "publications", "since", "size")

    def __init__(self, since: float) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.publications = 0
        self.since = since  # the time of the pause


class Chunk(NamedTuple):
    """One fan-out to the live subscribers of a topic, encoded in each of their formats, that waits in a batch
    (batches.py). Chunks are numbered in order across all topics of the edge."""

    number: int
    data: dict[Format, bytes]
    publications: int
    size: int


class Batch:
    """The chunks that wait in a topic, oldest first. It is never empty."""

    __slots__ = ("chunks", "size")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.size = 0

    def since(self, number: int) -> list[Chunk]:
        """Return the chunks with larger numbers."""
        return [chunk for chunk in self.chunks if chunk.number > number]


class ConflationState:
    """The conflation of a topic (conflation.py).

    interval   seconds
    running    an interval is running
    pending    the publication to send at its end; it replaces all from sequence number `first` on
    """

    __slots__ = ("first", "interval", "pending", "running")

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.running = False
        self.pending: Publication | None = None
        self.first = 0


class SubscribeRequest:
    """A subscribe request that is not completely carried out.

    topics    still to be attached, with the position to resume from and whether a snapshot is wanted
    refused   receipts still to be sent
    page      bytes of publications in the first answer for each topic
    """

    __slots__ = ("number", "page", "refused", "topics")

    def __init__(
        self,
        number: int,
        topics: deque[tuple[str, Position | None, bool]],
        refused: deque[TopicReceipt],
        page: int,
    ) -> None:
        self.number = number
        self.topics = topics
        self.refused = refused
        self.page = page


class Backlog:
    """The input of a client behind a pending request, oldest first: the rest of a frame, the other frames of its read,
    and `size` bytes of unparsed `chunks`. `parsed` is the bytes of memory of that frame and the frames."""

    __slots__ = ("chunks", "frames", "messages", "parsed", "size")

    def __init__(self) -> None:
        self.messages: Iterator[object] = iter(())
        self.frames: Iterator[FrameEvent | ProtocolError] = iter(())
        self.chunks: deque[bytes] = deque()
        self.parsed = 0
        self.size = 0


class ClientConnection:
    """A client's connection. `queue` exists exactly while the transport is paused. `topics` is the topic's own shared
    tuple for a client with one subscription, and a dict in order of subscription for more."""

    __slots__ = (
        "backlog",
        "client",
        "format",
        "heard_at",
        "identity",
        "last_chunk",
        "moves",
        "number",
        "paged_replays",
        "parser",
        "pending_attaches",
        "pending_page",
        "queue",
        "remote",
        "replay_count",
        "request",
        "slot",
        "state",
        "token_expires_at",
        "topics",
        "unanswered",
    )

    def __init__(self, number: int, format: Format, remote: str, now: float) -> None:
        self.number = number
        self.format = format
        self.parser: FrameParser | None = None  # exists while a frame is incomplete
        self.remote = remote  # until `connect`; the runtime keeps the address while the socket is open
        self.state = State.OPENING
        self.client = ""
        self.identity = ""
        self.moves = 0  # see `admission.Rebalancer`
        self.heard_at = now  # the last sign of life
        self.slot = 0  # in the timer wheel
        self.token_expires_at: float | None = None
        self.queue: SendQueue | None = None
        self.last_chunk = 0  # number of the last chunk that is sent or was not for this connection; see batches.py
        self.topics: tuple[EdgeTopic, ...] | dict[EdgeTopic, None] = ()
        self.replay_count = 0  # topics that are replaying and not live
        self.paged_replays: OrderedDict[Replay, None] | None = None  # replays with pages to request, in turn
        self.pending_page: Replay | None = None  # the replay whose page is requested
        self.unanswered = 0  # QoS 1 publications without an answer
        self.pending_attaches = 0  # topics requested from the logic without an answer
        self.request: SubscribeRequest | None = None  # the request that waits for such answers,
        self.backlog: Backlog | None = None  # and the input behind it


class TopicAudience:
    """The live, writable subscribers of a topic in one format."""

    __slots__ = ("_recipients", "members")

    def __init__(self) -> None:
        self.members: dict[ClientConnection, None] = {}
        self._recipients: Recipients | None = None

    @property
    def recipients(self) -> Recipients:
        """The members' numbers. The same immutable object until a member is added or removed, so that an effect that
        holds it stays right."""
        if self._recipients is None:
            self._recipients = Recipients(tuple([member.number for member in self.members]))
        return self._recipients

    def add(self, connection: ClientConnection) -> None:
        self.members[connection] = None
        self._recipients = None

    def remove(self, connection: ClientConnection) -> bool:
        """Remove a connection. Return whether it was a member."""
        if connection not in self.members:
            return False
        del self.members[connection]
        self._recipients = None
        return True


class Replay:
    """A subscription that is not live yet.

    requests   wait for the receipt; empty once it is sent, or when the subscription has ended
    page       bytes of publications that may come with the receipt
    cursor     the last position that was sent
    ahead      everything is sent, but fan-outs that are still to come would repeat the end of it
    snapshot   the sequence number of a snapshot that the receipt covers and that is still to be sent, else 0
    """

    __slots__ = ("ahead", "connection", "cursor", "page", "reference", "requests", "snapshot", "topic")

    def __init__(self, connection: ClientConnection, topic: EdgeTopic, request: int, cursor: Position | None) -> None:
        self.connection = connection
        self.topic = topic
        self.requests: tuple[int, ...] = (request,)
        self.reference = 0
        self.cursor = cursor
        self.page = 0
        self.ahead = False
        self.snapshot = 0


class EdgeTopic:
    """A topic with subscribers on this edge. `last` is the position of the newest publication that the logic has sent
    to this edge, None while it is unknown."""

    __slots__ = ("audiences", "batch", "conflation", "last", "name", "only_this", "paused", "replays")

    def __init__(self, name: str) -> None:
        self.name = name
        self.last: Position | None = None
        self.batch: Batch | None = None
        self.conflation: ConflationState | None = None
        self.only_this: tuple[EdgeTopic, ...] = (self,)  # shared by all connections with this topic only
        self.audiences: dict[Format, TopicAudience] = {}
        self.paused: dict[ClientConnection, None] = {}  # live subscribers with a paused transport
        self.replays: dict[ClientConnection, Replay] = {}

    def is_empty(self) -> bool:
        """Return whether the topic has no subscribers."""
        return not (self.replays or self.paused or any(audience.members for audience in self.audiences.values()))

    def add_live(self, connection: ClientConnection) -> None:
        """Add a connection to the fan-outs from now on. For a paused one they are queued."""
        assert connection.state is State.OPEN, "a closed connection must not be added to an audience"
        if connection.queue is not None:
            self.paused[connection] = None
            return
        audience = self.audiences.get(connection.format)
        if audience is None:
            audience = self.audiences[connection.format] = TopicAudience()
        audience.add(connection)

    def remove_live(self, connection: ClientConnection) -> bool:
        """Remove a connection from the fan-outs. Return whether it was live."""
        audience = self.audiences.get(connection.format)
        if audience is not None and audience.remove(connection):
            return True
        if connection in self.paused:
            del self.paused[connection]
            return True
        return False
