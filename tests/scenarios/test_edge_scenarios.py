"""The edge's scenarios: commands and their transcript in one text file for review, in `edge/`.

    # what this shows
    > a command
    a line of its transcript

Comments, commands and empty lines are the script; every other line is the expected transcript of the command above it.
Positions are `epoch:sequence`.

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

import difflib
import json
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from migratory_broker.core.edge import Edge, EdgeConfig
from migratory_broker.core.edge.events import Close, Detach, Effect, Hold, Later, More, Multicast, Received, Send
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
)
from migratory_protocol import frames
from migratory_protocol import messages as m
from migratory_protocol.peer import ForwardedPublication, Publication
from migratory_protocol.positions import Position, parse_position
from migratory_testing.edges import Bench, Reader

FILES = sorted(Path(__file__).parent.joinpath("edge").glob("*.txt"))
START = 100.0


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_transcript_is_as_expected(path: Path, request: pytest.FixtureRequest) -> None:
    check(path, rewrite=request.config.getoption("--rewrite"))


def test_changed_transcript_fails_and_can_be_rewritten(tmp_path: Path) -> None:
    path = tmp_path / "one.txt"
    path.write_text("# a comment\n> config heartbeat=3\n\n> admission fenced\n  something else\n> open a\n")
    with pytest.raises(AssertionError, match="something else"):
        check(path, rewrite=False)
    check(path, rewrite=True)
    text = path.read_text()
    assert "something else" not in text
    assert "a < close frame 4004" in text
    assert text.startswith("# a comment\n> config heartbeat=3\n\n> admission fenced\n> open a\n")
    assert play(text) == text
    check(path, rewrite=False)


def play(text: str) -> str:
    """Return the script with the real transcript of each command in place of the expected one."""
    script = EdgeScript()
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines += [line, *script.run(line[1:].strip())]
        elif not line or line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


def check(path: Path, *, rewrite: bool) -> None:
    """Play a scenario file. If its transcript differs, rewrite the file, or without `rewrite` raise AssertionError
    with the difference."""
    expected = path.read_text()
    actual = play(expected)
    if actual == expected:
        return
    if rewrite:
        path.write_text(actual)
        return
    difference = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), f"{path.name}, expected", "actual", lineterm="", n=4
    )
    raise AssertionError("\n".join(difference) + "\n(pytest --rewrite accepts it)")


class EdgeScript(Bench):
    """The interpreter of the commands: each command is the method `do_COMMAND`. It shows effects in the order of
    their execution."""

    def __init__(self) -> None:
        super().__init__(open=False)
        self.now = START
        self.clients: dict[str, Reader] = {}
        self.names: dict[int, str] = {}
        self.lines: list[str] = []

    def run(self, command: str) -> list[str]:
        """Execute a command. Return the lines of its transcript."""
        verb, *words = shlex.split(command) if not command.startswith("say ") else command.split(" ", 2)
        action: Callable[..., object] = getattr(self, f"do_{verb}")
        action(*words)
        lines, self.lines = self.lines, []
        return lines

    def execute(self, effect: Effect) -> None:
        super().execute(effect)
        self.lines += [f"  {line}" for line in self.show(effect)]

    def show(self, effect: Effect) -> list[str]:
        match effect:
            case Send(connection=number, data=data):
                return [f"{self.names[number]} < {line}" for line in show_frames(self.readers[number], data)]
            case Multicast(recipients=recipients, data=data):
                names = [self.names[number] for number in recipients.connections]
                return [f"{', '.join(names)} << {line}" for line in show_frames(self.clients[names[0]], data)]
            case Close(connection=number, abort=abort):
                return [f"{self.names[number]} socket {'aborted' if abort else 'closed'}"]
            case Hold(connection=number, on=on):
                return [f"{self.names[number]} socket {'held' if on else 'read again'}"]
            case Attach(reference=reference, topic=topic):
                snapshot = ", snapshot" if effect.snapshot else ""
                after = f" after {effect.after}" if effect.after else ""
                return [f"logic < attach #{reference} {topic}{after}{snapshot}"]
            case NextPage(reference=reference, topic=topic):
                return [f"logic < next page #{reference} {topic} after {effect.after}"]
            case PublishRequest(publications=forwarded):
                return [f"logic < publish {show_forwarded(publication)}" for publication in forwarded]
            case Detach(topic=topic):
                return [f"logic < detach {topic}"]
            case Observe(metric=metric, label=label):
                return [f"count {metric} {label}"]
            case Note(level=level, event=event, fields=fields):
                return [f"log {level} {event} {json.dumps(fields)}"]
        assert isinstance(effect, (ClientCounts, Later, More))  # the first follows every change, at the next tick
        return []

    # ---- commands --------------------------------------------------------------------------------------------

    def do_config(self, *pairs: str) -> None:
        settings: dict[str, Any] = {name: json.loads(value) for name, value in (pair.split("=") for pair in pairs)}
        self.edge = Edge(EdgeConfig(**settings))

    def do_admission(self, reason: str) -> None:
        self.step(Admission(True) if reason == "open" else Admission(False, reason))  # type: ignore[arg-type]

    def do_open(self, name: str, wire: str = "json", deflate: str = "") -> None:
        self.names[len(self.readers) + 1] = name
        self.clients[name] = self.open(wire, deflate=bool(deflate))  # type: ignore[arg-type]

    def do_connect(self, name: str, version: str = "1") -> None:
        if name not in self.clients:
            self.do_open(name)
        self.clients[name].send(m.Connect(version=int(version), client=name))

    def do_say(self, name: str, text: str) -> None:
        self.clients[name].send_text(text)

    def do_raw(self, name: str, *data: str) -> None:
        self.step(Received(self.clients[name].number, bytes.fromhex("".join(data))))

    def do_subscribe(self, name: str, request: str, *topics: str) -> None:
        wanted = []
        for text in topics:
            topic, _, after = text.removesuffix("!").partition("@")
            wanted.append(m.TopicRequest(topic, after or None, text.endswith("!")))
        self.clients[name].send(m.Subscribe(int(request), wanted))

    def do_unsubscribe(self, name: str, request: str, *topics: str) -> None:
        self.clients[name].send(m.Unsubscribe(int(request), list(topics)))

    def do_publish(
        self, name: str, topic: str, payload: str, publisher: str = "", number: str = "0", mark: str = "0"
    ) -> None:
        qos = 1 if publisher else 0
        self.clients[name].send(m.Publish(topic, payload.encode(), qos, publisher, int(number), int(mark)))

    def do_bye(self, name: str) -> None:
        self.clients[name].send(m.Bye())

    def do_pause(self, name: str) -> None:
        self.clients[name].pause()

    def do_resume(self, name: str) -> None:
        self.clients[name].resume()

    def do_lose(self, name: str) -> None:
        self.clients.pop(name).lose_socket()

    def do_attached(self, reference: str, topic: str, receipt: str, position: str, *rest: str) -> None:
        first, last, entries, done = parse_answer(rest)
        self.step(
            Attached(0, int(reference[1:]), topic, receipt, parse_position(position), entries, done, first, last)  # type: ignore[arg-type]
        )

    def do_page(self, reference: str, topic: str, *rest: str) -> None:
        receipt, position = "complete", Position(0, 0)
        if rest and rest[0] in ("truncated", "reset"):
            receipt, position = rest[0], parse_position(rest[1])
            rest = rest[2:]
        first, last, entries, done = parse_answer(rest)
        self.step(Page(0, int(reference[1:]), topic, entries, done, receipt, position, first, last))  # type: ignore[arg-type]

    def do_fanout(self, topic: str, which: str) -> None:
        self.step(Fanout(topic, publications(which)))

    def do_gap(self, topic: str, receipt: str, position: str, *rest: str) -> None:
        first, last, _, _ = parse_answer(rest)
        self.step(Gap(topic, receipt, parse_position(position), first, last))  # type: ignore[arg-type]

    def do_answer(self, name: str, topic: str, publisher: str, number: str, verdict: str) -> None:
        answer: m.Ack | m.Nack
        if ":" in verdict:
            answer = m.Ack(topic, publisher, int(number), parse_position(verdict))
        else:
            answer = m.Nack(topic, publisher, int(number), verdict, "", 0.5 if verdict == "retry" else None)
        self.step(PublishAnswers(0, self.clients[name].number, [answer]))

    def do_servers(self, *urls: str) -> None:
        self.step(ServerList(tuple(m.Server(url) for url in urls)))

    def do_drain(self, period: str, *urls: str) -> None:
        self.step(DrainClients(float(period), tuple(m.Server(url) for url in urls)))

    def do_wait(self, seconds: str) -> None:
        for tick in range(1, round(float(seconds) * 10) + 1):
            before = len(self.lines)
            self.wait(0.1)
            if len(self.lines) > before:
                self.lines.insert(before, f"  after {tick / 10:.1f} s")

    def do_status(self) -> None:
        self.lines += [f"  {name}: {json.dumps(value)}" for name, value in self.edge.status().items()]


def parse_answer(words: tuple[str, ...]) -> tuple[int, int, tuple[Publication, ...], bool]:
    """Parse `[FIRST-LAST] [= PUBLICATIONS] [more]` into (first, last, publications, whether the answer is complete).
    Without a range, first and last are 0."""
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


def show_frames(reader: Reader, data: bytes) -> list[str]:
    lines = []
    for event in reader.parse(data):
        if isinstance(event, frames.MessageReceived):
            lines += [show_message(message) for message in reader.codec.decode_broker(event.data)]
        elif isinstance(event, frames.CloseReceived):
            lines.append(f"close frame {event.code} {event.reason}".rstrip())
        else:
            lines.append(f"{type(event).__name__.removesuffix('Received').lower()} frame")
    return lines


def show_forwarded(publication: ForwardedPublication) -> str:
    ids = f" {publication.publisher} {publication.id} mark {publication.mark}" if publication.qos else ""
    return f"{publication.topic} {publication.payload.decode()!r}{ids}"


def show_message(message: m.BrokerMessage) -> str:
    """Return the message as one line: its kind and all fields that are not empty."""
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
