"""Publishes for a benchmark: the same loop for every server; `orders.py` has what it is told.

Open loop: what is due is sent, whatever became of those before (`migratory_loadtest.workload`), and publications carry
the time when they were due. Closed loop: as fast as answers allow. Numbers rise per topic over all orders.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import time

from migratory_loadtest.workload import SendSchedule
from migratory_protocol.frames import CloseReceived, FrameParser, MessageReceived, PingReceived, pong_frame
from migratory_protocol.handshake import build_request, parse_response

from benchmarks import orders as o
from benchmarks.dialects import Refused, named
from benchmarks.dialects.base import HEARTBEAT, Dialect
from benchmarks.helper import Orders, answer, fail, setup, spent
from benchmarks.payload import build

GREETING = 30.0  # seconds
LONGEST_ANSWER = 30.0  # seconds
WHOLE = 65536  # bytes read at a time


class Connection:
    """Blocking while it greets, then without waiting: what the kernel does not take is kept and sent later."""

    def __init__(self, dialect: Dialect, address: o.Address, name: str) -> None:
        self._dialect = dialect
        self._name = name
        self._parser = FrameParser("client", 2**24)
        self._unsent = bytearray()
        self.sent = 0
        self.speaker = dialect.publisher(name)
        self.socket = socket.create_connection(address, timeout=GREETING)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.next_beat = time.monotonic() + HEARTBEAT
        nonce = os.urandom(16)
        host, port = address
        self.socket.sendall(build_request(f"{host}:{port}", dialect.path, nonce, dialect.subprotocols))
        head, response = b"", None
        while response is None:
            data = self.socket.recv(WHOLE)
            if not data:
                raise Refused(f"{name}: closed by the server in the handshake")
            head += data
            response = parse_response(head, nonce, dialect.subprotocols)
        self.say(self.speaker.greeting())
        self._take(response.rest)
        while not self.speaker.ready:
            self._take(self._some())
        self.socket.setblocking(False)

    def _some(self) -> bytes:
        data = self.socket.recv(WHOLE)
        if not data:
            raise Refused(f"{self._dialect.name}: publisher {self._name}'s connection was closed by the server")
        return data

    def _take(self, data: bytes) -> None:
        for event in self._parser.feed(data) if data else ():
            if isinstance(event, MessageReceived):
                self.say(self.speaker.received(event.data))
            elif isinstance(event, PingReceived):
                self.write(pong_frame(event.data, os.urandom(4)))
            elif isinstance(event, CloseReceived):
                raise Refused(f"{self._dialect.name}: publisher {self._name} was closed: {event.code} {event.reason}")

    def say(self, messages: list[bytes]) -> None:
        if messages:
            self.write(b"".join(self._dialect.frame(message) for message in messages))

    def publish(self, publications: list[tuple[str, bytes]]) -> None:
        """One message for all: of each its topic and payload."""
        self.sent += len(publications)
        messages = [self.speaker.publish(topic, payload) for topic, payload in publications]
        self.say(messages if len(messages) == 1 else [self.speaker.together(messages)])

    def write(self, data: bytes) -> None:
        self._unsent += data
        self.flush()

    def flush(self) -> bool:
        """Whether something is left."""
        while self._unsent:
            try:
                count = self.socket.send(self._unsent)
            except BlockingIOError:
                return True
            del self._unsent[:count]
        return False

    def read(self) -> None:
        try:
            data = self._some()
        except BlockingIOError:
            return
        self._take(data)

    def beat(self, now: float) -> None:
        if self._dialect.heartbeat and now >= self.next_beat:
            self.next_beat = now + HEARTBEAT
            self.say([self._dialect.heartbeat])


class Publisher:
    def __init__(self, publishers: o.Publishers) -> None:
        self._setup = publishers
        self._names = o.topic_names(publishers.topics, publishers.prefix)
        dialect = named(publishers.dialect)
        run = os.urandom(4).hex()
        count = min(publishers.connections, publishers.topics)
        addresses = publishers.addresses
        self._connections = [
            Connection(dialect, addresses[number % len(addresses)], f"p{number}-{run}") for number in range(count)
        ]
        self._numbers = [0] * publishers.topics
        self._poll = select.epoll()
        self._poll.register(0, select.EPOLLIN)
        self._by_descriptor = {one.socket.fileno(): one for one in self._connections}
        for one in self._connections:
            self._poll.register(one.socket, select.EPOLLIN)
        self._orders = Orders()

    def run(self) -> None:
        answer(o.Ready())
        while True:
            for order in self._turn(1.0):
                if isinstance(order, o.Schedule):
                    answer(self._open_loop(order))
                elif isinstance(order, o.Pipeline):
                    answer(self._closed_loop(order))
                else:
                    fail(f"a publisher was told {order}")

    def _turn(self, wait: float) -> list[o.Order]:
        """Reads answers, sends what waits, says heartbeats; at most `wait` seconds."""
        found: list[o.Order] = []
        for descriptor, events in self._poll.poll(wait):
            if descriptor == 0:
                orders = self._orders.read()
                if orders is None:
                    raise SystemExit(0)
                found += orders
                continue
            one = self._by_descriptor[descriptor]
            if events & select.EPOLLOUT and not one.flush():
                self._poll.modify(descriptor, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                one.read()
        now = time.monotonic()
        for one in self._connections:
            one.beat(now)
            if one.flush():
                self._poll.modify(one.socket, select.EPOLLIN | select.EPOLLOUT)
        return found

    def _publish(self, topics: list[int], due_ns: int) -> None:
        """One publication to each, all of them topics of one connection."""
        publications = []
        for topic in topics:
            self._numbers[topic] += 1
            publications.append((self._names[topic], build(self._setup.payload, due_ns, self._numbers[topic])))
        self._connections[topics[0] % len(self._connections)].publish(publications)

    @property
    def _unanswered(self) -> int:
        return sum(one.sent - one.speaker.answered for one in self._connections)

    def _open_loop(self, order: o.Schedule) -> o.Published:
        topics = self._setup.topics
        offsets = {topic: topic / topics / order.rate for topic in range(topics)}
        schedule = SendSchedule(offsets, order.rate, max(1, round(order.rate * order.seconds)))
        answered = self._answered()
        user, system = spent()
        start = time.monotonic_ns()
        while (at := schedule.next_due()) is not None:
            wait = at - (time.monotonic_ns() - start) / 1e9
            if wait > 0.002:
                self._turn(wait - 0.001)  # epoll counts in milliseconds and rounds up
                continue
            if wait > 0:
                time.sleep(wait)
            while (due := schedule.pop_due((time.monotonic_ns() - start) / 1e9)) is not None:
                self._publish([due.topic], start + round(due.at * 1e9))
            self._turn(0)
        sent_at = time.monotonic()
        while self._unanswered and time.monotonic() < sent_at + order.settle:
            self._turn(0.05)
        done = spent()
        return o.Published(
            scheduled=schedule.scheduled, sent=schedule.sent, late=schedule.late, latest=schedule.max_delay,
            answered=self._answered() - answered, seconds=(time.monotonic_ns() - start) / 1e9,
            user=done[0] - user, system=done[1] - system,
        )  # fmt: skip

    def _closed_loop(self, order: o.Pipeline) -> o.Published:
        answered, spent_before, begin = self._answered(), spent(), time.monotonic()
        end = begin + order.seconds
        times = self._one_at_a_time(end) if order.window == 1 else self._pipelined(order.window, end)
        done = spent()
        count = self._answered() - answered
        return o.Published(
            scheduled=count, sent=count, answered=count, seconds=time.monotonic() - begin, times=times,
            user=done[0] - spent_before[0], system=done[1] - spent_before[1],
        )  # fmt: skip

    def _one_at_a_time(self, end: float) -> list[float]:
        """The seconds that each took."""
        times = []
        topic = 0
        while (begin := time.monotonic()) < end:
            self._publish([topic], time.monotonic_ns())
            self._wait_for_answers(begin)
            times.append(time.monotonic() - begin)
            topic = (topic + 1) % self._setup.topics
        return times

    def _pipelined(self, window: int, end: float) -> list[float]:
        """Each connection refills its window when an eighth of it is free: one write for several, as a client that has
        much to say would, and each to the next of its topics."""
        count = len(self._connections)
        topics = [itertools.cycle(range(number, self._setup.topics, count)) for number in range(count)]
        while time.monotonic() < end:
            for one, own in zip(self._connections, topics, strict=True):
                room = window - (one.sent - one.speaker.answered)
                if room >= max(1, window // 8):
                    self._publish(list(itertools.islice(own, room)), time.monotonic_ns())
            self._turn(0.5)
        self._wait_for_answers(time.monotonic())
        return []

    def _wait_for_answers(self, since: float) -> None:
        while self._unanswered:
            self._turn(0.5)
            if time.monotonic() > since + LONGEST_ANSWER:
                fail(f"{self._unanswered} publications had no answer after {LONGEST_ANSWER:.0f} s")

    def _answered(self) -> int:
        return sum(one.speaker.answered for one in self._connections)


def main() -> None:
    publishers = setup(o.Publishers)
    try:
        Publisher(publishers).run()
    except (Refused, OSError) as refused:
        fail(str(refused))


if __name__ == "__main__":
    main()
