"""A test bench for an edge: clients that send and receive real frames, and the edge's requests to the logic."""

from __future__ import annotations

from typing import Any, Literal, TypeVar

from migratory_broker.core.edge import Edge, EdgeConfig
from migratory_broker.core.edge.events import (
    Close,
    Detach,
    Effect,
    Event,
    Hold,
    KeysNeeded,
    Later,
    Lost,
    More,
    Multicast,
    Opened,
    Paused,
    Received,
    Resumed,
    Send,
)
from migratory_broker.core.logic.events import (
    Admission,
    Attach,
    Attached,
    ClientCounts,
    Fanout,
    NextPage,
    Note,
    Observe,
    Page,
    PublishAnswers,
    PublishRequest,
    Tick,
)
from migratory_broker.core.security.authorizer import Authorizer
from migratory_protocol import frames
from migratory_protocol.codec import JSON, MSGPACK
from migratory_protocol.messages import (
    Ack,
    BrokerMessage,
    ClientMessage,
    Connect,
    Message,
    Nack,
    Subscribe,
    Subscribed,
    TopicRequest,
    Welcome,
)
from migratory_protocol.peer import ForwardedPublication, Publication
from migratory_protocol.positions import Position

MASK = b"\x37\xfa\x21\x3d"
NOTHING = Position(1, 0)
T = TypeVar("T")


def publication(sequence: int, payload: bytes = b"", epoch: int = 1) -> Publication:
    return Publication(epoch, sequence, payload or b"%d" % sequence, time=1000.0)


def publications(first: int, last: int, epoch: int = 1) -> tuple[Publication, ...]:
    return tuple(publication(sequence, epoch=epoch) for sequence in range(first, last + 1))


def receipts(messages: list[Subscribed]) -> list[tuple[int, str | None, int, int]]:
    """Return (request, receipt, first, last) of each topic's receipt in these messages."""
    return [(m.request, r.receipt, r.first, r.last) for m in messages for r in m.topics]


class Reader:
    """A client of a `Bench`. `received` has the broker's messages in order, `writes` the bytes of each write,
    `controls` the pings and pongs. `close_code` is that of the broker's close frame, None before. `socket` says whether
    and how the edge closed it."""

    def __init__(self, bench: Bench, number: int, wire: Literal["json", "msgpack"], deflate: bool) -> None:
        self.bench = bench
        self.number = number
        self.codec = JSON if wire == "json" else MSGPACK
        self.deflate = deflate
        self.received: list[BrokerMessage] = []
        self.controls: list[frames.PingReceived | frames.PongReceived] = []
        self.writes: list[bytes] = []
        self.close_code: int | None = None
        self.close_reason = ""
        self.socket: Literal["open", "closed", "aborted"] = "open"
        self.paused = False  # the transport is full, and the edge was told

    def write(self, data: bytes) -> None:
        """Receive and decode a write of the edge.

        Fail if it comes after a close frame or the end of the socket, or if it is no close frame and the transport is
        full.
        """
        assert self.socket == "open", f"written to a socket that is {self.socket}: {data!r}"
        assert self.close_code is None, f"written after the close frame: {data!r}"
        assert not self.paused or data[0] == 0x88, f"written to a full transport: {data!r}"
        self.writes.append(data)
        for event in self.parse(data):
            if isinstance(event, frames.MessageReceived):
                assert event.text is not self.codec.binary
                self.received += self.codec.decode_broker(event.data)
            elif isinstance(event, frames.CloseReceived):
                self.close_code, self.close_reason = event.code or 1005, event.reason
            elif isinstance(event, frames.PingReceived | frames.PongReceived):
                self.controls.append(event)

    def parse(self, data: bytes) -> list[frames.FrameEvent]:
        """Return the frames of a write. Fail if the write ends within a frame: the edge never writes a part of one."""
        parser = frames.FrameParser("client", 64 * 1024 * 1024, self.deflate)
        events = parser.feed(data)
        assert parser.is_idle
        return events

    def send(self, *messages: ClientMessage) -> list[Effect]:
        """Send each of these messages in a frame of its own, all at once. Return the edge's effects."""
        return self.send_bytes(b"".join(self.frame(message) for message in messages))

    def frame(self, message: ClientMessage) -> bytes:
        data = self.codec.encode(message)
        return frames.encode_frame(frames.BINARY if self.codec.binary else frames.TEXT, data, MASK)

    def send_text(self, text: str) -> list[Effect]:
        """Send one text frame with this text, and return the edge's effects."""
        return self.send_bytes(frames.text_frame(text.encode("utf-8", "surrogatepass"), MASK))

    def send_bytes(self, data: bytes) -> list[Effect]:
        return self.bench.step(Received(self.number, data))

    def subscribe(
        self, topic: str, after: tuple[int, int] | str | None = None, request: int = 1, snapshot: bool = False
    ) -> Attach:
        """Subscribe to one topic. Remove the edge's request to the logic from the bench's `requests`, and return it.
        Fail if the edge requests anything else."""
        before = len(self.bench.requests)
        position = Position(*after) if isinstance(after, tuple) else after
        self.send(Subscribe(request, [TopicRequest(topic, position, snapshot)]))
        attach = self.bench.requests.pop()
        assert isinstance(attach, Attach)
        assert len(self.bench.requests) == before
        return attach

    def subscribe_live(self, topic: str, position: Position = NOTHING) -> None:
        """Subscribe to a topic, and answer for the logic that the subscription is complete and live after
        `position`."""
        attach = self.subscribe(topic)
        self.bench.step(Attached(0, attach.reference, topic, "complete", position))

    def pause(self) -> None:
        self.bench.step(Paused(self.number))
        self.paused = True

    def resume(self) -> None:
        self.paused = False
        self.bench.step(Resumed(self.number))

    def lose_socket(self) -> None:
        self.bench.step(Lost(self.number))

    def take(self, kind: type[T]) -> list[T]:
        """Return the received messages of a kind, and drop all received messages of every kind."""
        messages: list[T] = [message for message in self.received if isinstance(message, kind)]
        self.received.clear()
        return messages

    def sequences(self, topic: str) -> list[int]:
        """Return the sequence numbers of the received messages of a topic that were not yet taken."""
        return [m.position.sequence for m in self.received if isinstance(m, Message) and m.topic == topic]


class Bench:
    """An edge with its clients.

    `requests`, `detached`, `notes` and `observed` collect the effects that are not for clients; `counted` is the last
    report of client counts. With `open`, the edge accepts clients at once.
    """

    def __init__(self, config: EdgeConfig | None = None, authorizer: Authorizer | None = None, *, open: bool = True):
        self.edge = Edge(config or EdgeConfig(), 0, authorizer)
        self.now = 1000.0
        self.readers: dict[int, Reader] = {}
        self.requests: list[Attach | NextPage | PublishRequest] = []
        self.counted: tuple[int, ...] = ()  # clients by moves, as reported last
        self.detached: list[Detach] = []
        self.notes: list[Note] = []
        self.observed: list[Observe] = []
        self.held: set[int] = set()  # connections whose sockets are not read
        self.more: list[More] = []  # given back at once, except with `defer_more`
        self.defer_more = False
        self.keys_needed = 0  # requests for new keys
        self.later: list[Later] = []  # timers, given back by `wait`
        if open:
            self.step(Admission(True))

    def step(self, event: Event) -> list[Effect]:
        """Step the edge with one event, execute its effects, and return them. Give each `More` back to the edge at
        once, unless `defer_more` is set; the effects of that are returned too."""
        effects = self.edge.step(event, self.now)
        for effect in effects:
            self.execute(effect)
        while self.more and not self.defer_more:
            effects = effects + self.step(self.more.pop(0))
        return effects

    def execute(self, effect: Effect) -> None:
        """Execute an effect: write to clients, close their sockets, or collect it. Fail if a `Hold` changes nothing, or
        a timer is set in the past."""
        match effect:
            case Send():
                self.readers[effect.connection].write(effect.data)
            case Multicast():
                for number in effect.recipients.connections:
                    self.readers[number].write(effect.data)
            case Close():
                self.readers[effect.connection].socket = "aborted" if effect.abort else "closed"
            case Detach():
                self.detached.append(effect)
            case Note():
                self.notes.append(effect)
            case Observe():
                self.observed.append(effect)
            case Hold():
                assert (effect.connection in self.held) is not effect.on
                self.held ^= {effect.connection}
            case More():
                self.more.append(effect)
            case KeysNeeded():
                self.keys_needed += 1
            case Later():
                assert effect.at >= self.now
                self.later.append(effect)
            case ClientCounts():
                self.counted = effect.by_moves
            case _:
                self.requests.append(effect)

    def open(
        self,
        wire: Literal["json", "msgpack"] = "msgpack",
        *,
        deflate: bool = False,
        opened: float | None = None,
        token: str | None = None,
    ) -> Reader:
        """Return a client whose connection the edge was told of, before its first message. `opened` is the time at
        which its handshake began, `token` that of the handshake."""
        number = len(self.readers) + 1
        reader = self.readers[number] = Reader(self, number, wire, deflate)
        self.step(Opened(number, wire, f"10.0.0.{number}:5000", deflate, opened, token))
        return reader

    def client(self, name: str = "", wire: Literal["json", "msgpack"] = "msgpack", *, deflate: bool = False) -> Reader:
        """Return a client that has sent `connect` with this name and received its welcome."""
        reader = self.open(wire, deflate=deflate)
        reader.send(Connect(client=name))
        assert len(reader.take(Welcome)) == 1
        return reader

    def fanout(self, topic: str, *publications: Publication) -> list[Effect]:
        """Let the edge handle the fan-out of these publications of a topic. Return its effects."""
        return self.step(Fanout(topic, publications))

    def attached(self, attach: Any, position: Position, **rest: Any) -> None:
        """Answer the edge's request `attach` as the logic does, with the topic's current `position`, the receipt
        "complete" and no replay unless `rest` says otherwise."""
        receipt = rest.pop("receipt", "complete")
        self.step(Attached(0, attach.reference, attach.topic, receipt, position, **rest))

    def page(self, request: Any, *publications: Publication, done: bool = True, **rest: Any) -> None:
        """Answer the edge's request for a page of a replay with these publications. With `done` it is the last page."""
        self.step(Page(0, request.reference, request.topic, publications, done, **rest))

    def request_of(self, kind: type[T]) -> T:
        """Remove all collected `requests`, of every kind, and return the one of this kind. Fail unless there is exactly
        one."""
        (request,) = self.requests_of(kind)
        return request

    def requests_of(self, kind: type[T]) -> list[T]:
        """Remove all collected `requests`, of every kind, and return those of this kind."""
        requests: list[T] = [request for request in self.requests if isinstance(request, kind)]
        self.requests.clear()
        return requests

    def published(self) -> list[ForwardedPublication]:
        """Remove all collected `requests`, of every kind, and return the publications that they pass to the logic."""
        return [publication for request in self.requests_of(PublishRequest) for publication in request.publications]

    def answer(self, reader: Reader, *answers: Ack | Nack) -> None:
        """Let the edge handle these answers to publications of the client `reader`, as if they came from the logic. The
        edge sends them to the client."""
        self.step(PublishAnswers(0, reader.number, list(answers)))

    def wait(self, seconds: float, tick: float = 0.1) -> None:
        """Advance the clock by `seconds`. At every step of `tick` seconds, give the edge the timers that are due, and
        then a `Tick`."""
        for _ in range(round(seconds / tick)):
            self.now = round(self.now + tick, 6)
            while due := [later for later in self.later if later.at <= self.now + 1e-9]:
                self.later.remove(due[0])
                self.step(due[0])
            self.step(Tick())
