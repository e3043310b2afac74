"""What an edge holds per connection and per topic: plain records without behaviour of their own.

An idle subscribed client is one `Connection`, one entry in `Edge`'s table and one in its topic's audience. Everything
that only a busy, slow or resuming client needs is None until then (tests/unit/core/edge/test_memory.py keeps the
figure).
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
    OPENING = 0  # waits for `connect`
    OPEN = 1
    CLOSING = 2  # our close frame is sent, the other half is awaited
    GONE = 3  # `Close` was given out, or the socket was lost


class Queue:
    """What waits for a paused connection, oldest first. The bytes are shared with other queues."""

    __slots__ = ("chunks", "publications", "since", "size")

    def __init__(self, since: float) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.publications = 0
        self.since = since  # when the transport stopped taking bytes


class Chunk(NamedTuple):
    """What one fan-out brought to the live subscribers of a topic, in each of their formats, while it waits for others
    to leave with (batches.py). The numbers of an edge's chunks are their order."""

    number: int
    data: dict[Format, bytes]
    publications: int
    size: int


class Batch:
    """What waits in a topic, oldest first; there is something."""

    __slots__ = ("chunks", "size")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.size = 0

    def since(self, number: int) -> list[Chunk]:
        """The chunks behind that one."""
        return [chunk for chunk in self.chunks if chunk.number > number]


class Conflated:
    """A topic of whose QoS 0 publications only the latest of each `interval` seconds leaves (conflation.py). `running`:
    an interval is. `pending` waits for its end, and stands for everything from the sequence number `first` on."""

    __slots__ = ("first", "interval", "pending", "running")

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.running = False
        self.pending: Publication | None = None
        self.first = 0


class Request:
    """A subscribe request that is not carried out to its end: `topics` are those that are still to be had, with where
    to resume from and whether a snapshot is wanted, `refused` those that can't be and are still to be told of; `page`
    is how many bytes the first answer for each may bring."""

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
    """What a client sent behind a request that waits, oldest first: the rest of a frame, the frames that came with
    it, and `size` bytes in `chunks` that nobody looked into yet."""

    __slots__ = ("chunks", "frames", "messages", "size")

    def __init__(self) -> None:
        self.messages: Iterator[object] = iter(())
        self.frames: Iterator[FrameEvent | ProtocolError] = iter(())
        self.chunks: deque[bytes] = deque()
        self.size = 0


class Connection:
    """`queue` is there exactly while the transport is paused. `topics` is the topic's own shared tuple for a client
    with one subscription, a dict in order of subscription for more."""

    __slots__ = (
        "attaching",
        "backlog",
        "client",
        "expires",
        "format",
        "heard",
        "identity",
        "moves",
        "number",
        "pages",
        "paging",
        "parser",
        "publishing",
        "queue",
        "remote",
        "replaying",
        "request",
        "slot",
        "state",
        "taken",
        "topics",
    )

    def __init__(self, number: int, format: Format, remote: str, now: float) -> None:
        self.number = number
        self.format = format
        self.parser: FrameParser | None = None  # there while a frame is half received
        self.remote = remote  # until it has said who it is; the runtime knows it for as long as the socket is open
        self.state = State.OPENING
        self.client = ""
        self.identity = ""
        self.moves = 0  # how often it changed its broker lately, when it came; see moving.py
        self.heard = now  # last sign of life
        self.slot = 0  # the one place in the timer wheel that counts
        self.expires: float | None = None  # when its token does
        self.queue: Queue | None = None
        self.taken = 0  # the last chunk that it has, or is not meant to have; see batches.py
        self.topics: tuple[Topic, ...] | dict[Topic, None] = ()
        self.replaying = 0  # of its topics: those that are not live
        self.pages: OrderedDict[Replay, None] | None = None  # replays that go on, in turn
        self.paging: Replay | None = None  # the one whose page is under way
        self.publishing = 0  # QoS 1 publications without an answer
        self.attaching = 0  # topics that the logic was asked for without an answer
        self.request: Request | None = None  # the one that waits for such answers,
        self.backlog: Backlog | None = None  # and what came behind it


class Audience:
    """The live, writable subscribers of a topic in one format."""

    __slots__ = ("_recipients", "members")

    def __init__(self) -> None:
        self.members: dict[Connection, None] = {}
        self._recipients: Recipients | None = None

    @property
    def recipients(self) -> Recipients:
        """The members' numbers. The same object until a member is added or removed, and itself immutable, so that an
        effect that holds it stays right."""
        if self._recipients is None:
            self._recipients = Recipients(tuple([member.number for member in self.members]))
        return self._recipients

    def add(self, connection: Connection) -> None:
        self.members[connection] = None
        self._recipients = None

    def remove(self, connection: Connection) -> bool:
        """Return whether the connection was a member."""
        if connection not in self.members:
            return False
        del self.members[connection]
        self._recipients = None
        return True


class Replay:
    """A subscription that is not live yet. `requests` wait for the receipt, that may bring `page` bytes of
    publications with it; once it came, or is not wanted any more, there are none. `cursor` is the last position sent.
    `ahead`: all was sent that there is, but `Fanout`s that are still on their way would repeat the end of it.
    `snapshot`: the sequence number of a snapshot that the receipt names and that is still to be sent, else 0."""

    __slots__ = ("ahead", "connection", "cursor", "page", "reference", "requests", "snapshot", "topic")

    def __init__(self, connection: Connection, topic: Topic, request: int, cursor: Position | None) -> None:
        self.connection = connection
        self.topic = topic
        self.requests: tuple[int, ...] = (request,)
        self.reference = 0
        self.cursor = cursor
        self.page = 0
        self.ahead = False
        self.snapshot = 0


class Topic:
    """A topic that somebody is subscribed to. `last` is the position of the newest publication that the logic has
    given this edge, None while that is unknown."""

    __slots__ = ("alone", "audiences", "batch", "conflated", "last", "name", "paused", "replays")

    def __init__(self, name: str) -> None:
        self.name = name
        self.last: Position | None = None
        self.batch: Batch | None = None
        self.conflated: Conflated | None = None
        self.alone: tuple[Topic, ...] = (self,)
        self.audiences: dict[Format, Audience] = {}
        self.paused: dict[Connection, None] = {}  # live, but the transport takes nothing now
        self.replays: dict[Connection, Replay] = {}

    def is_empty(self) -> bool:
        """Nobody is subscribed."""
        return not (self.replays or self.paused or any(audience.members for audience in self.audiences.values()))

    def add_live(self, connection: Connection) -> None:
        """The connection gets what is fanned out from now on."""
        assert connection.state is State.OPEN, "a connection that left gets nothing more"
        if connection.queue is not None:
            self.paused[connection] = None
            return
        audience = self.audiences.get(connection.format)
        if audience is None:
            audience = self.audiences[connection.format] = Audience()
        audience.add(connection)

    def remove_live(self, connection: Connection) -> bool:
        """Whether it was live."""
        audience = self.audiences.get(connection.format)
        if audience is not None and audience.remove(connection):
            return True
        if connection in self.paused:
            del self.paused[connection]
            return True
        return False
