"""A receiver: one process that holds many subscribers' connections and reads them with as little work as possible.

It is the same for every server, so that only the servers differ, and it does not use the product's client: per delivery
that would cost several times what the broker costs, and a machine could hold few subscribers. It finds publications by
their mark, whatever the protocol around them (`payload.py`), checks that each connection receives the numbers of its
topic one after another, and answers pings (`control_frames.py`).

For a protocol that can resume, it stores the position of each publication once. A subscriber whose connection ends
resumes with the position of the last number that it received. `receivers.py` starts receivers, `ipc.py` has their
commands.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import ssl
import sys
import time
from array import array
from collections.abc import Callable
from random import Random

from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_protocol.frames import FrameParser, MessageReceived, ProtocolError, pong_frame
from migratory_protocol.positions import Position
from msgspec import Struct

from benchmarks import ipc
from benchmarks.connecting import Connector, Subscriber
from benchmarks.control_frames import CLOSE, PING, ControlFrames, close_reason
from benchmarks.ipc import CommandReader, cpu_seconds, fail, read_setup, send
from benchmarks.payload import HEAD, MARK, PartialHeads, read
from benchmarks.protocols import HEARTBEAT, ClientProtocol, Conversation, RefusedByServer, find_protocol

_MAX_POSITIONS = 2000
"""Positions that are stored for one topic, at most. The oldest are dropped."""

_MAX_HEARTBEAT_CHECKS = 500
"""Connections checked for silence in one turn of the loop. Bounds the length of a turn."""

_MAX_MESSAGE_BYTES = 2**24
"""Bytes of the largest message."""


class PositionIndex:
    """The positions of the publications that any connection of this receiver has received, by topic and number."""

    def __init__(self, protocol: ClientProtocol, topics: int) -> None:
        self._protocol = protocol
        self._by_number: list[dict[int, Position]] = [{} for _ in range(topics)]

    def has(self, topic: int, number: int) -> bool:
        """Return whether the position of a publication is known."""
        return number in self._by_number[topic]

    def learn(self, topic: int, data: bytes) -> None:
        """Store the positions in bytes that start with a frame. Ignore other bytes: another connection receives the
        same publication."""
        parser = FrameParser("client", _MAX_MESSAGE_BYTES)
        try:
            events = parser.feed(data)
        except ProtocolError:
            return
        known = self._by_number[topic]
        for event in events:
            if isinstance(event, MessageReceived):
                for payload, position in self._protocol.positions(event.data):
                    known[read(payload[:HEAD])[1]] = position
        while len(known) > _MAX_POSITIONS:
            del known[next(iter(known))]

    def at_or_before(self, topic: int, number: int) -> Position | None:
        """Return the position of a publication, or of the last one before it whose position is known."""
        known = self._by_number[topic]
        if number in known:
            return known[number]
        older = [candidate for candidate in known if candidate < number]
        return known[max(older)] if older else None


class Receiver:
    """A receiver process's loop, its connections and its counts."""

    def __init__(self, setup: ipc.ReceiverSetup) -> None:
        self._setup = setup
        self._protocol = find_protocol(setup.protocol, setup.token)
        self._names = ipc.topic_names(setup.topics, setup.prefix)
        random = Random(f"{setup.seed}/{setup.first}")
        self._poll = select.epoll()
        self._poll.register(0, select.EPOLLIN)
        self._connector = Connector(
            self._protocol, setup.addresses, setup.sources, self._poll, random, self._conversation, self._on_connected,
            setup.authority,
        )  # fmt: skip
        numbers = range(setup.first, setup.first + setup.connections)
        self._subscribers = [Subscriber(number, number % setup.topics) for number in numbers]
        self._live: dict[int, Subscriber] = {}
        self._positions = PositionIndex(self._protocol, setup.topics)
        self._partial_heads = PartialHeads()
        self._control_frames = ControlFrames()
        self._close_reasons: dict[int, str] = {}  # by connection, from close frames
        self._buffer = bytearray(262144)
        self._counts = ipc.ReceiverReport()
        self._resumes: list[float] = []
        self._latencies = array("q")
        self._head = bytearray()  # of the last publication, which most subscribers receive one after another
        self._due, self._number = 0, 0
        self._next_checked, self._checked_at = 0, time.monotonic()
        self._heartbeat = self._protocol.frame(self._protocol.heartbeat) if self._protocol.heartbeat else b""
        self._commands = CommandReader()
        self._opened_answer: Callable[[], Struct] | None = None  # the answer to send once all are connected

    def run(self) -> None:
        """Connect all subscribers, then read and obey commands until stdin ends."""
        self._open(self._setup.max_pending, ipc.HelperReady)
        check = time.monotonic() + 1.0
        while True:
            for descriptor, events in self._poll.poll(0.01 if self._connector.busy else 0.05, 1024):
                subscriber = self._live.get(descriptor)
                if subscriber is not None:
                    self._readable(subscriber)
                elif descriptor == 0:
                    for command in self._commands.read() or self._end():
                        self._obey(command)
                else:
                    self._connector.handle(descriptor, events)
            self._connector.start_attempts()
            now = time.monotonic()
            if self._heartbeat and self._live:
                self._send_heartbeats(now)
            if now >= check:
                self._connector.check_timeouts()
                check = now + 1.0
            if self._opened_answer is not None and len(self._live) == len(self._subscribers):
                gc.collect()
                gc.freeze()
                send(self._opened_answer())
                self._opened_answer = None

    # ---- commands ----------------------------------------------------------------------------------------------

    def _end(self) -> list[ipc.Command]:
        raise SystemExit(0)

    def _obey(self, command: ipc.Command) -> None:
        match command:
            case ipc.GetReport(reset):
                send(self._report())
                if reset:
                    self._latencies = array("q")
                    self._resumes = []
            case ipc.CloseAll():
                self._connector.cancel_all()
                for subscriber in self._live.values():
                    if subscriber.socket is not None:
                        subscriber.socket.close()
                        subscriber.socket = None
                self._live.clear()
                self._partial_heads.by_connection.clear()
                self._control_frames.partial.clear()
                send(self._report())
            case ipc.OpenAll(max_pending):
                self._open(max_pending, self._report)
            case _:
                fail(f"a receiver has no command {command}")

    def _open(self, max_pending: int, answer: Callable[[], Struct]) -> None:
        self._connector.max_pending = max_pending
        now = time.monotonic()
        for subscriber in self._subscribers:
            if subscriber.socket is None:
                subscriber.lost_at = now if subscriber.last or subscriber.position else 0.0
                self._connector.add(subscriber)
        self._opened_answer = answer

    def _report(self) -> ipc.ReceiverReport:
        report = self._counts
        histogram = Histogram(bucket_bounds())
        for value in self._latencies:
            histogram.observe(value / 1e9)
        report.connected = len(self._live)
        report.subscribed = [0] * len(self._setup.addresses)
        for subscriber in self._live.values():
            report.subscribed[subscriber.address] += 1
        report.counts, report.total = histogram.counts, histogram.total
        report.squares, report.largest = histogram.squares, histogram.largest
        report.resumes = self._resumes
        report.refused, report.error = self._connector.failures, self._connector.error
        report.user, report.system = cpu_seconds()
        return report

    # ---- connecting --------------------------------------------------------------------------------------------

    def _conversation(self, subscriber: Subscriber) -> Conversation:
        number, last = subscriber.number, subscriber.last
        after = self._positions.at_or_before(subscriber.topic, last) if last else subscriber.position
        if last and after is None and self._protocol.resumes:
            fail(f"connection {number} received publication {last}, whose position is not known here")
        return self._protocol.subscriber(f"b{number}", self._names[subscriber.topic], after)

    def _on_connected(self, subscriber: Subscriber, data: bytes) -> None:
        assert subscriber.socket is not None
        if subscriber.lost_at:
            self._resumes.append(time.monotonic() - subscriber.lost_at)
            subscriber.lost_at = 0.0
        if self._protocol.websocket:
            self._handle_data(subscriber, bytearray(data), len(data))
        else:
            subscriber.heard_at = time.monotonic_ns()
            self._poll.modify(subscriber.socket, select.EPOLLIN)
        self._live[subscriber.socket.fileno()] = subscriber

    # ---- receiving ---------------------------------------------------------------------------------------------

    def _readable(self, subscriber: Subscriber) -> None:
        assert subscriber.socket is not None
        try:
            count = subscriber.socket.recv_into(self._buffer)
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        except OSError as error:
            self._lost(subscriber, str(error))
            return
        if count:
            self._handle_data(subscriber, self._buffer, count)
        else:
            self._lost(subscriber, "without a close frame")

    def _handle_data(self, subscriber: Subscriber, data: bytearray, end: int) -> None:
        """Count the publications in `data[:end]`, their latencies, losses and repeats, and answer pings. The hot
        path of every measurement."""
        counts = self._counts
        counts.bytes += end
        subscriber.heard_at = now = time.monotonic_ns()
        if self._protocol.websocket:
            for opcode, payload in self._control_frames.find(subscriber.number, data, end):
                if opcode == PING:
                    self._answer_ping(subscriber, payload)
                elif opcode == CLOSE:
                    self._close_reasons[subscriber.number] = close_reason(payload)
        partial = self._partial_heads.by_connection
        if partial and subscriber.number in partial:
            data = bytearray(partial.pop(subscriber.number)) + data[:end]
            end = len(data)
            starts_with_frame = False
        else:
            starts_with_frame = True
        place, after_head = data.find(MARK, 0, end), 0
        while 0 <= place <= end - HEAD:
            after_head = place + HEAD
            head = data[place:after_head]
            if head != self._head:
                self._head = head
                self._due, self._number = read(bytes(head))
            counts.deliveries += 1
            self._latencies.append(now - self._due)
            number = self._number
            if number != subscriber.last + 1 and subscriber.last and self._protocol.numbered:
                if number > subscriber.last:
                    counts.lost += number - subscriber.last - 1
                else:
                    counts.repeated += 1
            if number > subscriber.last:
                subscriber.last = number
                if self._protocol.resumes and starts_with_frame and not self._positions.has(subscriber.topic, number):
                    self._positions.learn(subscriber.topic, bytes(data[:end]))
            place = data.find(MARK, after_head, end)
        if place >= 0 or data[end - 1] in MARK:
            self._partial_heads.keep(subscriber.number, data, after_head, end)

    def _lost(self, subscriber: Subscriber, reason: str) -> None:
        assert subscriber.socket is not None
        reason = self._close_reasons.pop(subscriber.number, reason)
        if not self._setup.reconnects:
            silent = (time.monotonic_ns() - subscriber.heard_at) / 1e9
            fail(
                f"connection {subscriber.number} ({self._protocol.name}) was closed by the server: {reason}; it had "
                f"received nothing for {silent:.1f} s"
            )
        self._counts.disconnected += 1
        del self._live[subscriber.socket.fileno()]
        subscriber.socket.close()
        subscriber.socket = None
        subscriber.lost_at = time.monotonic()
        self._partial_heads.by_connection.pop(subscriber.number, None)
        self._control_frames.forget(subscriber.number)
        if len(self._setup.addresses) > 1:
            self._connector.avoid(subscriber.address)
        self._connector.add(subscriber, self._connector.retry_delay(subscriber))

    def _answer_ping(self, subscriber: Subscriber, payload: bytes) -> None:
        if subscriber.socket is not None:
            with contextlib.suppress(OSError):  # epoll reports the end of the connection
                subscriber.socket.send(pong_frame(payload, os.urandom(4)))

    def _send_heartbeats(self, now: float) -> None:
        """Send a heartbeat on connections that received nothing for `HEARTBEAT` seconds. Each call checks a share of
        the connections that lets every one have its turn in time, however seldom it is called."""
        per_second = len(self._subscribers) / HEARTBEAT
        count = min(_MAX_HEARTBEAT_CHECKS, int((now - self._checked_at) * per_second))
        if not count:
            return
        self._checked_at = max(self._checked_at + count / per_second, now - 1.0)
        silent_since = time.monotonic_ns() - round(HEARTBEAT * 1e9)
        for _ in range(count):
            subscriber = self._subscribers[self._next_checked % len(self._subscribers)]
            self._next_checked += 1
            if subscriber.socket is not None and subscriber.heard_at < silent_since:
                with contextlib.suppress(OSError):
                    subscriber.socket.send(self._heartbeat)


def main() -> None:
    """Run a receiver with the setup from stdin."""
    setup = read_setup(ipc.ReceiverSetup)
    try:
        Receiver(setup).run()
    except RefusedByServer as refused:
        fail(str(refused))


if __name__ == "__main__":
    sys.setswitchinterval(1.0)
    main()
