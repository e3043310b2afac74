"""An attacker: one process that attacks a broker with many connections, or burns as much CPU as an attack did.

An attack is a `Plan`: what a connection sends when it is open, what it sends then, and how many connections and
messages there are. The answers are not parsed, so that an attacker costs less than what it attacks. All connections
come from one address. `measurements/attack.py` measures what others notice, `ipc.py` has the commands.
"""

from __future__ import annotations

import os
import select
import socket
import struct
import time
from collections.abc import Callable
from typing import NamedTuple

from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK
from migratory_protocol.frames import binary_frame, compress, deflated_frame, encode_frame, ping_frame
from migratory_protocol.handshake import build_request

from benchmarks import ipc
from benchmarks.ipc import CommandReader, cpu_seconds, fail, read_setup, send

_TURN_SECONDS = 0.005
"""Seconds between two turns of an attack, in which all that is due is done."""

_MAX_TURN = 200
"""Connections, and messages, of one turn. What is due beyond it is given up, so that an attack ends in time."""

_RECEIVE_BUFFER = 4096
"""Bytes that the kernel buffers for a reader that stalls."""

_SNAPSHOT_BYTES = 1_000_000
"""Bytes of the publication that readers ask for and do not read: little less than the largest by default."""

_FLOOD_CONNECTIONS = 20
"""Connections of the floods."""

_BATCH = 50
"""Publications or topics in one message of a flood."""

_MASK = b"\1\2\3\4"


def _publish_flood(connection: int, count: int) -> bytes:
    """Return a frame of publications with QoS 1, each on another topic."""
    publisher = f"attacker{connection}-{os.getpid()}"
    number = count // _FLOOD_CONNECTIONS + 1
    publications = [
        MSGPACK.encode(wire.Publish(f"attack/{topic}", b"x" * 140, 1, publisher, number, number))
        for topic in range(_BATCH)
    ]
    return binary_frame(MSGPACK.join(publications), _MASK)


def _subscribe_flood(connection: int, count: int) -> bytes:
    """Return a frame that subscribes to new topics and ends these subscriptions again."""
    names = [f"attack/{connection}/{count}/{number}" for number in range(_BATCH)]
    subscribe = MSGPACK.encode(wire.Subscribe(1, [wire.TopicRequest(name) for name in names]))
    return binary_frame(MSGPACK.join([subscribe, MSGPACK.encode(wire.Unsubscribe(2, names))]), _MASK)


def hostile_frames() -> list[bytes]:
    """Return frames that are oversized, malformed, or need far more memory or time than they have bytes."""
    topics = [wire.TopicRequest(f"attack/{number}") for number in range(20_000)]
    return [
        b"\x82\xff" + (1 << 40).to_bytes(8, "big") + _MASK,  # a terabyte
        binary_frame(bytes(2**20)),  # not masked
        b"\x83\x80" + _MASK,  # a reserved opcode
        encode_frame(1, b"\xff" * 1000, _MASK),  # text that is not UTF-8
        binary_frame(os.urandom(65_536), _MASK),
        binary_frame(b"\x91" * 100_000, _MASK),  # nested arrays
        binary_frame(MSGPACK.encode(wire.Subscribe(1, topics)), _MASK),
        binary_frame(b"\xdd\x00\x0f\x00\x00" + b"\xc0" * 0xF0000, _MASK),  # a million values
        deflated_frame(2, compress(bytes(2**26)), _MASK),  # 64 MiB in 64 KiB
        deflated_frame(2, compress(b"\xdd\x00\x0f\x00\x00" + b"\xc0" * 0xF0000), _MASK),  # a million values in 1 KiB
        encode_frame(2, b"x", _MASK, fin=False) + encode_frame(0, b"x", _MASK, fin=False) * 10_000,
        ping_frame(b"x", _MASK) * 10_000,
    ]


class Plan(NamedTuple):
    """One attack. `first(n)` are the bytes that connection n sends when it is open; `then(n, count)` is the message
    that it sends as the attack's message `count`.

    `opens` are connections per second, as long as fewer than `connections` are open; an attack that `replaces` ends its
    oldest one then. `sends` are messages per second over the first `senders` connections, all by default.
    """

    connections: int
    opens: float
    first: Callable[[int], bytes]
    then: Callable[[int, int], bytes] = lambda connection, count: b"x"
    sends: float = 0.0
    senders: int = 1_000_000
    reads: bool = True
    replaces: bool = False


def plan(setup: ipc.AttackerSetup) -> Plan:
    """Return the attack of a setup, whose rate is that of connections, messages, publications or topics."""
    request = build_request(
        f"127.0.0.1:{setup.address[1]}", "/ws", os.urandom(16), (MSGPACK.subprotocol,), deflate=True
    )  # fmt: skip
    connect = request + binary_frame(MSGPACK.encode(wire.Connect(client="attacker")), _MASK)
    count, rate = setup.connections, setup.rate
    match setup.kind:
        case "stalled readers":
            topic = "attack/stalled"
            largest, small = (
                binary_frame(MSGPACK.encode(wire.Publish(topic, bytes(size))), _MASK) for size in (_SNAPSHOT_BYTES, 140)
            )
            subscribe = binary_frame(
                MSGPACK.encode(wire.Subscribe(1, [wire.TopicRequest(topic, snapshot=True)])), _MASK
            )
            first = [connect + largest, connect + subscribe]
            return Plan(count, rate, lambda number: first[number > 0], lambda *_: small, 10.0, 1, reads=False)
        case "slow handshakes":
            return Plan(count, count, lambda _: b"GET /ws HTTP/1.1\r\nX: ", sends=count)
        case "slow TLS handshakes":
            return Plan(count, count, lambda _: b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", sends=count)
        case "connects":
            return Plan(count, rate, lambda _: connect, replaces=True)
        case "hostile frames":
            frames = hostile_frames()
            return Plan(count, rate, lambda number: connect + frames[number % len(frames)], replaces=True)
        case "publications":
            flood, then = rate / _BATCH, _publish_flood
        case "subscriptions":
            flood, then = rate / _BATCH, _subscribe_flood
    return Plan(_FLOOD_CONNECTIONS, 1000.0, lambda _: connect, then, flood)


class AttackingConnection(NamedTuple):
    """A connection of an attack, and the bytes that the kernel has not accepted yet."""

    number: int
    socket: socket.socket
    unsent: bytearray


class Attacker:
    """An attack's connections and counts."""

    def __init__(self, setup: ipc.AttackerSetup) -> None:
        self._setup = setup
        self._plan = plan(setup)
        self._poll = select.epoll()
        self._open: dict[int, AttackingConnection] = {}  # by descriptor, the oldest first
        self._opened = 0
        self._report = ipc.AttackReport()

    def attack(self, seconds: float) -> ipc.AttackReport:
        """Attack for `seconds`, then end all connections. Return the counts and the CPU time."""
        self._report = report = ipc.AttackReport()
        before, begin = cpu_seconds(), time.monotonic()
        opens = sends = 0
        while (passed := time.monotonic() - begin) < seconds:
            due, opens = int(passed * self._plan.opens) - opens, int(passed * self._plan.opens)
            for _ in range(min(due, _MAX_TURN)):
                self._dial()
            due, sends = int(passed * self._plan.sends) - sends, int(passed * self._plan.sends)
            senders = list(self._open.values())[: self._plan.senders]
            for number in range(min(due, _MAX_TURN) if senders else 0):
                self._send(senders[(report.sent + number) % len(senders)])
            for descriptor, events in self._poll.poll(_TURN_SECONDS, 1024):
                self._handle(descriptor, events)
        for connection in list(self._open.values()):
            self._end(connection)
        report.user, report.system = (after - then for after, then in zip(cpu_seconds(), before, strict=True))
        return report

    def _dial(self) -> None:
        if len(self._open) >= self._plan.connections:
            if not self._plan.replaces:
                return
            self._end(next(iter(self._open.values())))
        opened = socket.socket()
        opened.setblocking(False)
        # A reset leaves no port in TIME_WAIT: at this rate all ports would be used up within seconds.
        opened.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        opened.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
        if not self._plan.reads:
            opened.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        opened.bind((self._setup.source, 0))
        opened.connect_ex(self._setup.address)
        connection = AttackingConnection(self._opened, opened, bytearray(self._plan.first(self._opened)))
        self._opened += 1
        self._report.opened += 1
        self._open[opened.fileno()] = connection
        self._poll.register(opened, self._events | select.EPOLLOUT)

    @property
    def _events(self) -> int:
        return select.EPOLLIN if self._plan.reads else 0

    def _send(self, connection: AttackingConnection) -> None:
        """Send the next message, unless the kernel has not accepted the one before it."""
        if not connection.unsent and connection.socket.fileno() >= 0:
            connection.unsent.extend(self._plan.then(connection.number, self._report.sent))
            self._report.sent += 1
            self._flush(connection)

    def _flush(self, connection: AttackingConnection) -> None:
        try:
            del connection.unsent[: connection.socket.send(connection.unsent)]
        except BlockingIOError:
            pass
        except OSError:
            self._closed(connection)
            return
        self._poll.modify(connection.socket, self._events | (select.EPOLLOUT if connection.unsent else 0))

    def _handle(self, descriptor: int, events: int) -> None:
        connection = self._open.get(descriptor)
        if connection is None:
            return
        try:
            if events & ~select.EPOLLOUT and not connection.socket.recv(65_536):
                self._closed(connection)
            elif connection.unsent:
                self._flush(connection)
        except BlockingIOError:
            pass
        except OSError:
            self._closed(connection)

    def _closed(self, connection: AttackingConnection) -> None:
        self._report.closed += 1
        self._end(connection)

    def _end(self, connection: AttackingConnection) -> None:
        del self._open[connection.socket.fileno()]
        connection.socket.close()


def burn(command: ipc.Burn) -> ipc.AttackReport:
    """Use `cpu` seconds of CPU, evenly over `seconds`. Return the CPU time."""
    before, begin = sum(cpu_seconds()), time.monotonic()
    while (passed := time.monotonic() - begin) < command.seconds:
        until = command.cpu * passed / command.seconds
        while sum(cpu_seconds()) - before < until and time.monotonic() - begin < command.seconds:
            pass
        time.sleep(_TURN_SECONDS)
    return ipc.AttackReport(user=sum(cpu_seconds()) - before)


def main() -> None:
    """Run an attacker with the setup from stdin."""
    attacker = Attacker(read_setup(ipc.AttackerSetup))
    send(ipc.HelperReady())
    commands = CommandReader()
    while (received := commands.read()) is not None:
        for command in received:
            if isinstance(command, ipc.Attack):
                send(attacker.attack(command.seconds))
            elif isinstance(command, ipc.Burn):
                send(burn(command))
            else:
                fail(f"an attacker has no command {command}")


if __name__ == "__main__":
    main()
