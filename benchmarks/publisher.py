"""A publisher: one process that publishes with the same loop for every server. `ipc.py` has its commands.

Open loop: publications are sent when they are due, whether earlier ones were answered or not
(`migratory_loadtest.workload`), and carry their due time. Closed loop: as fast as answers allow. Numbers rise per topic
over all loops. It does not use the product's client, which other servers do not understand.
"""

from __future__ import annotations

import itertools
import os
import select
import socket
import ssl
import time

from migratory_loadtest.workload import SendSchedule
from migratory_protocol.frames import CloseReceived, FrameParser, MessageReceived, PingReceived, pong_frame
from migratory_protocol.handshake import build_request, parse_response

from benchmarks import ipc
from benchmarks.ipc import CommandReader, cpu_seconds, fail, read_setup, send
from benchmarks.payload import build
from benchmarks.protocols import HEARTBEAT, ClientProtocol, RefusedByServer, find_protocol

_HANDSHAKE_TIMEOUT = 30.0
"""Seconds for each step of a handshake."""

_ANSWER_TIMEOUT = 30.0
"""Seconds for an answer in a closed loop; then the run is void."""

_READ_BYTES = 65536
"""Bytes of a read."""

_MAX_MESSAGE_BYTES = 2**24
"""Bytes of the largest message."""


class PublisherConnection:
    """One connection of a publisher. The handshake blocks; after it, bytes that the kernel does not accept are
    buffered."""

    def __init__(self, protocol: ClientProtocol, address: ipc.Address, name: str, authority: str = "") -> None:
        self._protocol = protocol
        self._name = name
        self._parser = FrameParser("client", _MAX_MESSAGE_BYTES)
        self._unsent = bytearray()
        self.sent = 0
        self.conversation = protocol.publisher(name)
        self.socket = socket.create_connection(address, timeout=_HANDSHAKE_TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if authority:
            context = ssl.create_default_context(cafile=authority)
            self.socket = context.wrap_socket(self.socket, server_hostname=address[0])
        self._next_heartbeat = time.monotonic() + HEARTBEAT
        nonce = os.urandom(16)
        host, port = address
        self.socket.sendall(build_request(f"{host}:{port}", protocol.path, nonce, protocol.subprotocols))
        head, response = b"", None
        while response is None:
            data = self.socket.recv(_READ_BYTES)
            if not data:
                raise RefusedByServer(f"{name}: closed by the server in the handshake")
            head += data
            response = parse_response(head, nonce, protocol.subprotocols)
        self._send(self.conversation.greeting())
        self._handle_data(response.rest)
        while not self.conversation.ready:
            self._handle_data(self._receive())
        self.socket.setblocking(False)

    @property
    def unanswered(self) -> int:
        """The number of publications without an answer."""
        return self.sent - self.conversation.answered

    def _receive(self) -> bytes:
        data = self.socket.recv(_READ_BYTES)
        if not data:
            name = f"{self._protocol.name}: publisher {self._name}"
            raise RefusedByServer(f"{name}'s connection was closed by the server")
        return data

    def _handle_data(self, data: bytes) -> None:
        for event in self._parser.feed(data) if data else ():
            if isinstance(event, MessageReceived):
                self._send(self.conversation.received(event.data))
            elif isinstance(event, PingReceived):
                self._write(pong_frame(event.data, os.urandom(4)))
            elif isinstance(event, CloseReceived):
                name = f"{self._protocol.name}: publisher {self._name}"
                raise RefusedByServer(f"{name} was closed: {event.code} {event.reason}")

    def _send(self, messages: list[bytes]) -> None:
        if messages:
            self._write(b"".join(self._protocol.frame(message) for message in messages))

    def publish(self, publications: list[tuple[str, bytes]]) -> None:
        """Send these (topic, payload) as one message."""
        self.sent += len(publications)
        messages = [self.conversation.publish(topic, payload) for topic, payload in publications]
        self._send(messages if len(messages) == 1 else [self.conversation.join(messages)])

    def _write(self, data: bytes) -> None:
        self._unsent += data
        self.flush()

    def flush(self) -> bool:
        """Send buffered bytes. Return whether some are left."""
        while self._unsent:
            try:
                count = self.socket.send(self._unsent)
            except (BlockingIOError, ssl.SSLWantWriteError):
                return True
            del self._unsent[:count]
        return False

    def read(self) -> None:
        """Read the bytes that have arrived, and handle their complete messages. Raise RefusedByServer when the server
        closed the connection."""
        try:
            data = self._receive()
        except (BlockingIOError, ssl.SSLWantReadError):
            return
        self._handle_data(data)

    def send_heartbeat(self, now: float) -> None:
        """Send a heartbeat when it is due."""
        if self._protocol.heartbeat and now >= self._next_heartbeat:
            self._next_heartbeat = now + HEARTBEAT
            self._send([self._protocol.heartbeat])


class BenchmarkPublisher:
    """The connections of a publisher process, and its loops of publishing."""

    def __init__(self, setup: ipc.PublisherSetup) -> None:
        self._setup = setup
        self._names = ipc.topic_names(setup.topics, setup.prefix)
        protocol = find_protocol(setup.protocol, setup.token)
        run = os.urandom(4).hex()
        count = min(setup.connections, setup.topics)
        addresses = setup.addresses
        self._connections = [
            PublisherConnection(protocol, addresses[number % len(addresses)], f"p{number}-{run}", setup.authority)
            for number in range(count)
        ]
        self._numbers = [0] * setup.topics
        self._poll = select.epoll()
        self._poll.register(0, select.EPOLLIN)
        self._by_descriptor = {connection.socket.fileno(): connection for connection in self._connections}
        for connection in self._connections:
            self._poll.register(connection.socket, select.EPOLLIN)
        self._commands = CommandReader()

    def run(self) -> None:
        """Read and obey commands until stdin ends."""
        send(ipc.HelperReady())
        while True:
            for command in self._poll_once(1.0):
                if isinstance(command, ipc.OpenLoop):
                    send(self._open_loop(command))
                elif isinstance(command, ipc.ClosedLoop):
                    send(self._closed_loop(command))
                else:
                    fail(f"a publisher has no command {command}")

    def _poll_once(self, timeout: float) -> list[ipc.Command]:
        """Read answers, send buffered bytes and heartbeats, for at most `timeout` seconds. Return new commands."""
        commands: list[ipc.Command] = []
        for descriptor, events in self._poll.poll(timeout):
            if descriptor == 0:
                new = self._commands.read()
                if new is None:
                    raise SystemExit(0)
                commands += new
                continue
            connection = self._by_descriptor[descriptor]
            if events & select.EPOLLOUT and not connection.flush():
                self._poll.modify(descriptor, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                connection.read()
        now = time.monotonic()
        for connection in self._connections:
            connection.send_heartbeat(now)
            if connection.flush():
                self._poll.modify(connection.socket, select.EPOLLIN | select.EPOLLOUT)
        return commands

    def _publish(self, topics: list[int], due_ns: int) -> None:
        """Publish once on each topic; all of them belong to one connection."""
        publications = []
        for topic in topics:
            self._numbers[topic] += 1
            publications.append((self._names[topic], build(self._setup.payload, due_ns, self._numbers[topic])))
        self._connections[topics[0] % len(self._connections)].publish(publications)

    @property
    def _unanswered(self) -> int:
        return sum(connection.unanswered for connection in self._connections)

    def _open_loop(self, command: ipc.OpenLoop) -> ipc.PublishReport:
        topics = self._setup.topics
        offsets = {topic: topic / topics / command.rate for topic in range(topics)}
        schedule = SendSchedule(offsets, command.rate, max(1, round(command.rate * command.seconds)))
        answered = self._answered()
        user, system = cpu_seconds()
        start = time.monotonic_ns()
        while (at := schedule.next_due()) is not None:
            wait = at - (time.monotonic_ns() - start) / 1e9
            if wait > 0.002:
                self._poll_once(wait - 0.001)  # epoll counts in milliseconds and rounds up
                continue
            if wait > 0:
                time.sleep(wait)
            while (due := schedule.pop_due((time.monotonic_ns() - start) / 1e9)) is not None:
                self._publish([due.topic], start + round(due.at * 1e9))
            self._poll_once(0)
        sent_at = time.monotonic()
        while self._unanswered and time.monotonic() < sent_at + command.settle:
            self._poll_once(0.05)
        end = cpu_seconds()
        return ipc.PublishReport(
            scheduled=schedule.scheduled, sent=schedule.sent, late=schedule.late, latest=schedule.max_delay,
            answered=self._answered() - answered, seconds=(time.monotonic_ns() - start) / 1e9,
            user=end[0] - user, system=end[1] - system,
        )  # fmt: skip

    def _closed_loop(self, command: ipc.ClosedLoop) -> ipc.PublishReport:
        answered, cpu_before, begin = self._answered(), cpu_seconds(), time.monotonic()
        end = begin + command.seconds
        times = self._one_at_a_time(end) if command.window == 1 else self._windowed(command.window, end)
        cpu_after = cpu_seconds()
        count = self._answered() - answered
        return ipc.PublishReport(
            scheduled=count, sent=count, answered=count, seconds=time.monotonic() - begin, times=times,
            user=cpu_after[0] - cpu_before[0], system=cpu_after[1] - cpu_before[1],
        )  # fmt: skip

    def _one_at_a_time(self, end: float) -> list[float]:
        """Publish until `end`, each time after the answer. Return the seconds of each publication."""
        times = []
        topic = 0
        while (begin := time.monotonic()) < end:
            self._publish([topic], time.monotonic_ns())
            self._wait_for_answers(begin)
            times.append(time.monotonic() - begin)
            topic = (topic + 1) % self._setup.topics
        return times

    def _windowed(self, window: int, end: float) -> list[float]:
        """Publish until `end` with up to `window` unanswered publications a connection.

        A connection refills its window when an eighth of it is free, with one write for several publications, as a
        client with many publications does, and each to the next of its topics."""
        count = len(self._connections)
        topics = [itertools.cycle(range(number, self._setup.topics, count)) for number in range(count)]
        while time.monotonic() < end:
            for connection, own in zip(self._connections, topics, strict=True):
                room = window - connection.unanswered
                if room >= max(1, window // 8):
                    self._publish(list(itertools.islice(own, room)), time.monotonic_ns())
            self._poll_once(0.5)
        self._wait_for_answers(time.monotonic())
        return []

    def _wait_for_answers(self, since: float) -> None:
        while self._unanswered:
            self._poll_once(0.5)
            if time.monotonic() > since + _ANSWER_TIMEOUT:
                fail(f"{self._unanswered} publications had no answer after {_ANSWER_TIMEOUT:.0f} s")

    def _answered(self) -> int:
        return sum(connection.conversation.answered for connection in self._connections)


def main() -> None:
    """Run a publisher with the setup from stdin."""
    setup = read_setup(ipc.PublisherSetup)
    try:
        BenchmarkPublisher(setup).run()
    except (RefusedByServer, OSError) as error:
        fail(str(error))


if __name__ == "__main__":
    main()
