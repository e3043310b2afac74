"""The interpreter of the edge's scenario files. One command per line; positions are `epoch:sequence`.

config NAME=VALUE ...                     limits of the edge, before anything else
admission open | learning | fenced | ...
open CLIENT [json|msgpack] [deflate]
connect CLIENT [VERSION]                  opens it when it is not open
say CLIENT TEXT                           a text frame
raw CLIENT HEX ...                        bytes of the socket
subscribe CLIENT REQUEST TOPIC[@POSITION][!] ...      ! wants the snapshot
unsubscribe CLIENT REQUEST TOPIC ...
publish CLIENT TOPIC PAYLOAD [PUBLISHER ID MARK]
bye CLIENT
pause | resume | lose CLIENT
attached #REFERENCE TOPIC RECEIPT POSITION [FIRST-LAST] [= PUBLICATIONS] [more]
page #REFERENCE TOPIC [RECEIPT POSITION [FIRST-LAST]] [= PUBLICATIONS] [more]
fanout TOPIC PUBLICATIONS                 2:5..7 is sequence numbers 5 to 7 of epoch 2
gap TOPIC RECEIPT POSITION [FIRST-LAST]
answer CLIENT TOPIC PUBLISHER ID POSITION | CODE
servers URL ...
drain SECONDS URL ...
wait SECONDS
status
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable
from typing import Any

from migratory_broker.core.edge import Edge, EdgeConfig
from migratory_broker.core.edge.events import (
    Close,
    Detach,
    Effect,
    Event,
    Hold,
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
    DrainClients,
    Fanout,
    Gap,
    NextPage,
    Note,
    Observe,
    Page,
    PublishAnswers,
    PublishRequest,
    ServerList,
    Tick,
)
from migratory_protocol import frames
from migratory_protocol import messages as m
from migratory_protocol.codec import JSON, MSGPACK, Codec
from migratory_protocol.peer import ForwardedPublication, Publication
from migratory_protocol.positions import Position, parse_position

MASK = b"\x00\x00\x00\x00"


class ScriptClient:
    """A client of a scenario."""

    def __init__(self, name: str, number: int, codec: Codec, deflate: bool) -> None:
        self.name = name
        self.number = number
        self.codec = codec
        self.deflate = deflate

    def show(self, data: bytes) -> list[str]:
        lines = []
        for event in frames.FrameParser("client", 2**30, self.deflate).feed(data):
            if isinstance(event, frames.MessageReceived):
                lines += [show_message(message) for message in self.codec.decode_broker(event.data)]
            elif isinstance(event, frames.CloseReceived):
                lines.append(f"close frame {event.code} {event.reason}".rstrip())
            else:
                lines.append(f"{type(event).__name__.removesuffix('Received').lower()} frame")
        return lines


class EdgeScript:
    """An edge with its clients. A call with a command returns the lines of its transcript."""

    def __init__(self) -> None:
        self.config: dict[str, Any] = {}
        self.now = 100.0
        self.later: list[Later] = []  # timers of the edge
        self.clients: dict[str, ScriptClient] = {}
        self.names: dict[int, str] = {}
        self._edge: Edge | None = None

    @property
    def edge(self) -> Edge:
        if self._edge is None:
            self._edge = Edge(EdgeConfig(**self.config))
        return self._edge

    def __call__(self, command: str) -> list[str]:
        verb, *words = shlex.split(command) if not command.startswith("say ") else command.split(" ", 2)
        action: Callable[..., list[str]] = getattr(self, f"do_{verb}")
        return action(*words)

    def step(self, event: Event) -> list[str]:
        lines: list[str] = []
        effects = self.edge.step(event, self.now)
        for effect in effects:
            if isinstance(effect, Later):
                self.later.append(effect)
            elif not isinstance(effect, More):
                lines += self.show(effect)
        for effect in effects:
            if isinstance(effect, More):
                lines += self.step(effect)
        return lines

    def show(self, effect: Effect) -> list[str]:
        if isinstance(effect, Send):
            name = self.names[effect.connection]
            return [f"  {name} < {line}" for line in self.clients[name].show(effect.data)]
        if isinstance(effect, Multicast):
            names = [self.names[number] for number in effect.recipients.connections]
            return [f"  {', '.join(names)} << {line}" for line in self.clients[names[0]].show(effect.data)]
        if isinstance(effect, Close):
            return [f"  {self.names[effect.connection]} socket {'aborted' if effect.abort else 'closed'}"]
        if isinstance(effect, Hold):
            return [f"  {self.names[effect.connection]} socket {'held' if effect.on else 'read again'}"]
        if isinstance(effect, Attach):
            snapshot = ", snapshot" if effect.snapshot else ""
            after = f" after {effect.after}" if effect.after else ""
            return [f"  logic < attach #{effect.reference} {effect.topic}{after}{snapshot}"]
        if isinstance(effect, NextPage):
            return [f"  logic < next page #{effect.reference} {effect.topic} after {effect.after}"]
        if isinstance(effect, PublishRequest):
            return [f"  logic < publish {show_forwarded(publication)}" for publication in effect.publications]
        if isinstance(effect, ClientCounts):
            return []  # follows every change, at the next tick
        if isinstance(effect, Detach):
            return [f"  logic < detach {effect.topic}"]
        if isinstance(effect, Observe):
            return [f"  count {effect.metric} {effect.label}"]
        assert isinstance(effect, Note)
        return [f"  log {effect.level} {effect.event} {json.dumps(effect.fields)}"]

    # ---- commands --------------------------------------------------------------------------------------------

    def do_config(self, *pairs: str) -> list[str]:
        self.config.update({name: json.loads(value) for name, value in (pair.split("=") for pair in pairs)})
        return []

    def do_admission(self, reason: str) -> list[str]:
        return self.step(Admission(True) if reason == "open" else Admission(False, reason))  # type: ignore[arg-type]

    def do_open(self, name: str, wire: str = "json", deflate: str = "") -> list[str]:
        number = len(self.names) + 1
        self.clients[name] = ScriptClient(name, number, JSON if wire == "json" else MSGPACK, bool(deflate))
        self.names[number] = name
        return self.step(Opened(number, wire, f"10.0.0.{number}:1", bool(deflate)))  # type: ignore[arg-type]

    def do_connect(self, name: str, version: str = "1") -> list[str]:
        lines = [] if name in self.clients else self.do_open(name)
        return lines + self.send(name, m.Connect(version=int(version), client=name))

    def send(self, name: str, message: m.ClientMessage) -> list[str]:
        client = self.clients[name]
        data = client.codec.encode(message)
        frame = frames.binary_frame(data, MASK) if client.codec.binary else frames.text_frame(data, MASK)
        return self.step(Received(client.number, frame))

    def do_say(self, name: str, text: str) -> list[str]:
        return self.step(Received(self.clients[name].number, frames.text_frame(text.encode(), MASK)))

    def do_raw(self, name: str, *data: str) -> list[str]:
        return self.step(Received(self.clients[name].number, bytes.fromhex("".join(data))))

    def do_subscribe(self, name: str, request: str, *topics: str) -> list[str]:
        wanted = []
        for text in topics:
            topic, _, after = text.removesuffix("!").partition("@")
            wanted.append(m.TopicRequest(topic, after or None, text.endswith("!")))
        return self.send(name, m.Subscribe(int(request), wanted))

    def do_unsubscribe(self, name: str, request: str, *topics: str) -> list[str]:
        return self.send(name, m.Unsubscribe(int(request), list(topics)))

    def do_publish(
        self, name: str, topic: str, payload: str, publisher: str = "", number: str = "0", mark: str = "0"
    ) -> list[str]:
        qos = 1 if publisher else 0
        return self.send(name, m.Publish(topic, payload.encode(), qos, publisher, int(number), int(mark)))

    def do_bye(self, name: str) -> list[str]:
        return self.send(name, m.Bye())

    def do_pause(self, name: str) -> list[str]:
        return self.step(Paused(self.clients[name].number))

    def do_resume(self, name: str) -> list[str]:
        return self.step(Resumed(self.clients[name].number))

    def do_lose(self, name: str) -> list[str]:
        return self.step(Lost(self.clients.pop(name).number))

    def do_attached(self, reference: str, topic: str, receipt: str, position: str, *rest: str) -> list[str]:
        first, last, entries, done = parse_answer(rest)
        return self.step(
            Attached(0, int(reference[1:]), topic, receipt, parse_position(position), entries, done, first, last)  # type: ignore[arg-type]
        )

    def do_page(self, reference: str, topic: str, *rest: str) -> list[str]:
        receipt, position = "complete", Position(0, 0)
        if rest and rest[0] in ("truncated", "reset"):
            receipt, position = rest[0], parse_position(rest[1])
            rest = rest[2:]
        first, last, entries, done = parse_answer(rest)
        return self.step(
            Page(0, int(reference[1:]), topic, entries, done, receipt, position, first, last)  # type: ignore[arg-type]
        )

    def do_fanout(self, topic: str, which: str) -> list[str]:
        return self.step(Fanout(topic, publications(which)))

    def do_gap(self, topic: str, receipt: str, position: str, *rest: str) -> list[str]:
        first, last, _, _ = parse_answer(rest)
        return self.step(Gap(topic, receipt, parse_position(position), first, last))  # type: ignore[arg-type]

    def do_answer(self, name: str, topic: str, publisher: str, number: str, verdict: str) -> list[str]:
        answer: m.Ack | m.Nack
        if ":" in verdict:
            answer = m.Ack(topic, publisher, int(number), parse_position(verdict))
        else:
            answer = m.Nack(topic, publisher, int(number), verdict, "", 0.5 if verdict == "retry" else None)
        return self.step(PublishAnswers(0, self.clients[name].number, [answer]))

    def do_servers(self, *urls: str) -> list[str]:
        return self.step(ServerList(tuple(m.Server(url) for url in urls)))

    def do_drain(self, period: str, *urls: str) -> list[str]:
        return self.step(DrainClients(float(period), tuple(m.Server(url) for url in urls)))

    def do_wait(self, seconds: str) -> list[str]:
        lines: list[str] = []
        start = self.now
        for tick in range(1, round(float(seconds) * 10) + 1):
            self.now = start + tick / 10
            output: list[str] = []
            while due := [later for later in self.later if later.at <= self.now + 1e-9]:
                self.later.remove(due[0])
                output += self.step(due[0])
            if output := output + self.step(Tick()):
                lines += [f"  after {tick / 10:.1f} s", *output]
        return lines

    def do_status(self) -> list[str]:
        return [f"  {name}: {json.dumps(value)}" for name, value in self.edge.status().items()]


def parse_answer(words: tuple[str, ...]) -> tuple[int, int, tuple[Publication, ...], bool]:
    """Parse `[FIRST-LAST] [= PUBLICATIONS] [more]`."""
    first = last = 0
    entries: tuple[Publication, ...] = ()
    rest = list(words)
    if rest and "-" in rest[0]:
        low, _, high = rest.pop(0).partition("-")
        first, last = int(low), int(high)
    if rest and rest[0] == "=":
        entries = publications(rest[1])
        del rest[:2]
    assert rest in ([], ["more"]), f"unexpected words: {rest}"
    return first, last, entries, not rest


def publications(text: str) -> tuple[Publication, ...]:
    epoch, _, numbers = text.partition(":")
    low, _, high = numbers.partition("..")
    return tuple(
        Publication(int(epoch), sequence, b"%d" % sequence) for sequence in range(int(low), int(high or low) + 1)
    )


def show_forwarded(publication: ForwardedPublication) -> str:
    ids = f" {publication.publisher} {publication.id} mark {publication.mark}" if publication.qos else ""
    return f"{publication.topic} {publication.payload.decode()!r}{ids}"


def show_message(message: m.BrokerMessage) -> str:
    """Return the whole message as one line."""
    if isinstance(message, m.Message):
        replayed = " replayed" if message.replayed else ""
        return f"message {message.topic} {message.position} {message.payload.decode()!r}{replayed}"
    if isinstance(message, m.Subscribed):
        return f"subscribed {message.request}: " + ", ".join(show_receipt(receipt) for receipt in message.topics)
    if isinstance(message, m.Ack):
        return f"ack {message.topic} {message.publisher} {message.id} {message.position}"
    fields = {name: getattr(message, name) for name in message.__struct_fields__}
    shown = " ".join(f"{name}={show_value(value)}" for name, value in fields.items() if value not in (None, "", False))
    return f"{type(message).__name__.lower()} {shown}".rstrip()


def show_receipt(receipt: m.TopicReceipt) -> str:
    if receipt.receipt is None:
        return f"{receipt.topic} {receipt.code} ({receipt.text})"
    missing = f" {receipt.first}-{receipt.last}" if receipt.receipt == "truncated" else ""
    return f"{receipt.topic} {receipt.receipt}{missing} {receipt.position}"


def show_value(value: object) -> str:
    if isinstance(value, m.Limits):
        return "/".join(str(getattr(value, name)) for name in value.__struct_fields__)
    if isinstance(value, list):
        return "[" + ", ".join(v.url if isinstance(v, m.Server) else str(v) for v in value) + "]"
    return repr(value) if isinstance(value, str) else str(value)
