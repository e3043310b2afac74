"""The state of an edge per connection and per topic, for the modules of the edge core: data with little behaviour of
their own.

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
from migratory_broker.core.security.authorizer import ClientAccess

WANTED_BYTES = 512
"""Bytes of memory of a topic that waits in a subscribe request: a name of 255 bytes and a position."""

REFUSED_BYTES = 1024
"""Bytes of memory of a receipt that waits in a subscribe request: a name of 255 bytes and a text of 300 characters."""

REFILL = 0.25
"""Seconds of its rate that a bucket must hold before the clients that wait for it go on, so that they go on in fewer,
larger steps. A full bucket holds one second of its rate."""

MIN_DELAY = 0.01
"""The shortest time in seconds between two turns of the clients that wait for a bucket."""


class State(IntEnum):
    """The states of a client connection, in their order: before `connect` was accepted, open, closing, and removed.
    lifecycle.py has the transitions."""

    OPENING = 0  # waits for `connect`
    OPEN = 1
    CLOSING = 2  # the broker's close frame is sent, the client's is awaited
    GONE = 3  # the `Close` effect was emitted, or the socket was lost


class SendQueue:
    """The bytes that wait for a paused connection: `chunks`, oldest first, may be shared with the queues of other
    connections. `size` is the number of bytes in them, `publications` the number of publications, `since` the time of
    the pause by the edge's clock."""

    __slots__ = ("chunks", "publications", "since", "size")

    def __init__(self, since: float) -> None:
        self.chunks: list[bytes] = []
        self.size = 0
        self.publications = 0
        self.since = since


class Chunk(NamedTuple):
    """One fan-out to the live subscribers of a topic that waits in a batch (batches.py), encoded in each of their
    formats. `number` rises across all topics of the edge. `publications` is how many publications it holds, `size` the
    bytes of the longest encoding."""

    number: int
    data: dict[Format, bytes]
    publications: int
    size: int


class Batch:
    """The chunks that wait in a topic, oldest first, at least one. `size` is the sum of their sizes, in bytes."""

    __slots__ = ("chunks", "size")

    def __init__(self) -> None:
        self.chunks: list[Chunk] = []
        self.size = 0

    def since(self, number: int) -> list[Chunk]:
        """Return the chunks with numbers above `number`, oldest first. The batch does not change."""
        return [chunk for chunk in self.chunks if chunk.number > number]


class ConflationState:
    """The conflation of a topic (conflation.py).

    interval   seconds
    running    whether an interval is running
    pending    the publication to send at its end, or None
    first      the lowest sequence number that `pending` stands for, its own included; 0 without `pending`
    """

    __slots__ = ("first", "interval", "pending", "running")

    def __init__(self, interval: float) -> None:
        self.interval = interval
        self.running = False
        self.pending: Publication | None = None
        self.first = 0


class SubscribeRequest:
    """A client's subscribe request of which some topics are not attached or answered yet.

    number    the request's number, given by the client
    topics    still to be attached: name, position to resume after, and whether a snapshot is wanted
    refused   receipts still to be sent
    page      bytes of publications in the first answer for each topic
    size      bytes of memory that count for it, as estimated when it came
    """

    __slots__ = ("number", "page", "refused", "size", "topics")

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
        self.size = WANTED_BYTES * len(topics) + REFUSED_BYTES * len(refused)


class Backlog:
    """The input of a client that waits: for a pending request, for its rate, or for the other connections' turn.

    It is handled in this order: `limited`, a message that waits for its rate; `messages`, the remaining messages of a
    frame; `frames`, the remaining frames of the same read; `chunks`, unparsed bytes. `size` is the number of bytes in
    `chunks`, `parsed` the bytes of memory of `limited`, `messages` and `frames`.
    """

    __slots__ = ("chunks", "frames", "limited", "messages", "parsed", "size")

    def __init__(self) -> None:
        self.limited: object = None
        self.messages: Iterator[object] = iter(())
        self.frames: Iterator[FrameEvent | ProtocolError] = iter(())
        self.chunks: deque[bytes] = deque()
        self.parsed = 0
        self.size = 0


class Bucket:
    """A token bucket: `level` is what may still be used now of one rate, below 0 after a message that took more. It
    belongs to a connection, or to all of one identity or address. `scope` is which of these, `kind` one of `KINDS`,
    `rate` the amount for a second. `key` is the place in the table of shared buckets, None for the bucket of one
    connection. `users` is the number of connections that count for it. `waiting` are the connections at the limit, the
    one that waits longest first."""

    __slots__ = ("filled_at", "has_timer", "key", "kind", "level", "rate", "scope", "users", "waiting")

    def __init__(self, scope: str, kind: str, rate: int, now: float, key: tuple[str, str, str] | None) -> None:
        self.scope = scope
        self.kind = kind
        self.rate = rate
        self.key = key
        self.level = float(rate)
        self.filled_at = now
        self.users = 0
        self.waiting: dict[ClientConnection, None] = {}
        self.has_timer = False

    def fill(self, now: float) -> None:
        """Add the tokens of the time since the last call, up to those of one second."""
        self.level = min(float(self.rate), self.level + (now - self.filled_at) * self.rate)
        self.filled_at = now

    def delay(self) -> float:
        """Return the seconds from the last `fill` until the next turn of the connections that wait for this bucket, at
        least `MIN_DELAY`."""
        return max(MIN_DELAY, REFILL - self.level / self.rate)


class RateMeter:
    """The buckets that a connection counts for. `waits_for` is the one at whose limit it waits, None if it does not
    wait. With `has_turn` its messages go before those of others that wait, as long as tokens are left."""

    __slots__ = ("address", "buckets", "has_turn", "waits_for")

    def __init__(self, address: str) -> None:
        self.address = address
        self.buckets: tuple[Bucket, ...] = ()
        self.has_turn = False
        self.waits_for: Bucket | None = None

    @property
    def is_blocked(self) -> bool:
        """True while the connection waits at a limit and it is not its turn."""
        return self.waits_for is not None and not self.has_turn


class ClientConnection:
    """A client's connection to an edge. `queue` exists exactly while the connection is paused. `topics` is an empty
    tuple, a tuple shared by all connections with that single subscription, or a dict in order of subscription."""

    __slots__ = (
        "access",
        "backlog",
        "client",
        "format",
        "heard_at",
        "last_chunk",
        "meter",
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
        "token",
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
        self.access: ClientAccess | None = None  # None as well where everything is allowed
        self.meter: RateMeter | None = None  # None where no rate is limited
        self.token: str | None = None  # of the request; until `connect`
        self.moves = 0  # see `admission.Rebalancer`
        self.heard_at = now  # the last sign of life
        self.slot = 0  # in the timer wheel
        self.queue: SendQueue | None = None
        self.last_chunk = 0  # every chunk up to this number was sent, or was not for this connection
        self.topics: tuple[EdgeTopic, ...] | dict[EdgeTopic, None] = ()
        self.replay_count = 0  # subscriptions that are replaying and not live
        self.paged_replays: OrderedDict[Replay, None] | None = None  # replays with pages to request, in turn
        self.pending_page: Replay | None = None  # the replay whose page is requested
        self.unanswered = 0  # QoS 1 publications without an answer
        self.pending_attaches = 0  # topics requested from the logic without an answer
        self.request: SubscribeRequest | None = None  # the request that waits for such answers
        self.backlog: Backlog | None = None  # the input that is not handled yet


class TopicAudience:
    """The subscribers of a topic in one wire format that get its fan-outs by multicast: neither replaying nor
    paused."""

    __slots__ = ("_recipients", "members")

    def __init__(self) -> None:
        self.members: dict[ClientConnection, None] = {}
        self._recipients: Recipients | None = None

    @property
    def recipients(self) -> Recipients:
        """The members' connection numbers. It is the same immutable object until a member is added or removed, so an
        effect that holds it stays valid."""
        if self._recipients is None:
            self._recipients = Recipients(tuple([member.number for member in self.members]))
        return self._recipients

    def add(self, connection: ClientConnection) -> None:
        self.members[connection] = None
        self._recipients = None

    def remove(self, connection: ClientConnection) -> bool:
        """Remove a connection if it is a member, and return whether it was one."""
        if connection not in self.members:
            return False
        del self.members[connection]
        self._recipients = None
        return True


class Replay:
    """A subscription whose publications still come from the cache and not by fan-out.

    requests   numbers of the requests that wait for the receipt; empty once it is sent or the subscription has ended
    reference  the number by which the logic's next answer is matched
    page       bytes of payload that may come with the receipt
    cursor     the position up to which the subscriber has everything or a report of the gap, None while unknown
    ahead      whether all publications were sent, and fan-outs that are still to come would repeat the last ones
    snapshot   the sequence number of a snapshot that the receipt covers and that was left to a page, else 0
    anew       whether the client gave a position and may not read the history, so that its receipt is `reset`
    history    whether publications from before the request are sent
    """

    __slots__ = (
        "ahead", "anew", "connection", "cursor", "history", "page", "reference", "requests", "snapshot", "topic",
    )  # fmt: skip

    def __init__(self, connection: ClientConnection, topic: EdgeTopic, request: int, cursor: Position | None) -> None:
        self.connection = connection
        self.topic = topic
        self.requests: tuple[int, ...] = (request,)
        self.reference = 0
        self.cursor = cursor
        self.page = 0
        self.ahead = False
        self.snapshot = 0
        self.anew = False
        self.history = False


class EdgeTopic:
    """A topic with subscribers on this edge. `last` is the position up to which live subscribers have every
    publication, or a report that it is missing; None while no subscriber was live yet."""

    __slots__ = ("audiences", "batch", "conflation", "individual", "last", "name", "only_this", "replays")

    def __init__(self, name: str) -> None:
        self.name = name
        self.last: Position | None = None
        self.batch: Batch | None = None
        self.conflation: ConflationState | None = None
        self.only_this: tuple[EdgeTopic, ...] = (self,)  # shared by all connections with this topic only
        self.audiences: dict[Format, TopicAudience] = {}
        self.individual: dict[ClientConnection, None] = {}  # live: paused, or with a format that is not shared
        self.replays: dict[ClientConnection, Replay] = {}

    def is_empty(self) -> bool:
        """Return whether the topic has no subscribers: neither live nor replaying."""
        return not (self.replays or self.individual or any(audience.members for audience in self.audiences.values()))

    def add_live(self, connection: ClientConnection) -> None:
        """Add a connection to the fan-outs from now on: to the audience of its format, or, if it is paused or its
        format is not shared, to those that are written to one by one. The connection must be OPEN."""
        assert connection.state is State.OPEN, "a closed connection must not be added to an audience"
        if connection.queue is not None or not connection.format.shared:
            self.individual[connection] = None
            return
        audience = self.audiences.get(connection.format)
        if audience is None:
            audience = self.audiences[connection.format] = TopicAudience()
        audience.add(connection)

    def remove_live(self, connection: ClientConnection) -> bool:
        """Remove a connection from the fan-outs, and return whether it was among those that get them, directly or
        queued."""
        audience = self.audiences.get(connection.format)
        if audience is not None and audience.remove(connection):
            return True
        if connection in self.individual:
            del self.individual[connection]
            return True
        return False
