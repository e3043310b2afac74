"""Holds many connections and reads whatever comes, with as little work as Python allows: the same receiver for every
server, so that the servers alone differ. One process of an audience (`audience.py`); `orders.py` has what it is told.

It finds publications by their mark, whatever the protocol around them (`payload.py`), and checks that each connection
hears the numbers of its topic one after another. It answers every ping (`control.py`).
For a protocol that can resume it learns each publication's position once, and a client whose link ends comes back with
the position of the last number it heard.
"""

from __future__ import annotations

import contextlib
import gc
import os
import select
import sys
import time
from array import array
from collections.abc import Callable
from random import Random

from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_protocol.frames import FrameParser, MessageReceived, ProtocolError, pong_frame
from migratory_protocol.positions import Position
from msgspec import Struct

from benchmarks import orders as o
from benchmarks.control import CLOSE, PING, Control, reason
from benchmarks.dialects import Dialect, Refused, Speaker, named
from benchmarks.dialects.base import HEARTBEAT
from benchmarks.helper import Orders, answer, fail, setup, spent
from benchmarks.opening import Client, Opener
from benchmarks.payload import HEAD, MARK, Carry, read

REMEMBERED = 2000  # positions of a topic
LOOKED_AT = 500  # connections, at most, in one turn of looking for silent ones


class Positions:
    """Of the publications that any connection here has heard, by topic and number."""

    def __init__(self, dialect: Dialect, topics: int) -> None:
        self._dialect = dialect
        self._by_number: list[dict[int, Position]] = [{} for _ in range(topics)]

    def knows(self, topic: int, number: int) -> bool:
        return number in self._by_number[topic]

    def learn(self, topic: int, data: bytes) -> None:
        """From bytes that begin with a frame; where they don't, another connection will tell."""
        parser = FrameParser("client", 2**24)
        try:
            events = parser.feed(data)
        except ProtocolError:
            return
        known = self._by_number[topic]
        for event in events:
            if isinstance(event, MessageReceived):
                for payload, position in self._dialect.positions(event.data):
                    known[read(payload[:HEAD])[1]] = position
        while len(known) > REMEMBERED:
            del known[next(iter(known))]

    def before(self, topic: int, number: int) -> Position | None:
        """Of that publication, or the last one before it whose position is known."""
        known = self._by_number[topic]
        if number in known:
            return known[number]
        older = [one for one in known if one < number]
        return known[max(older)] if older else None


class Receiver:
    def __init__(self, audience: o.Audience) -> None:
        self._audience = audience
        self._dialect = named(audience.dialect)
        self._names = o.topic_names(audience.topics, audience.prefix)
        chance = Random(f"{audience.seed}/{audience.first}")
        self._poll = select.epoll()
        self._poll.register(0, select.EPOLLIN)
        self._opener = Opener(
            self._dialect, audience.addresses, audience.sources, self._poll, chance, self._speaker, self._opened
        )
        numbers = range(audience.first, audience.first + audience.connections)
        self._clients = [Client(number, number % audience.topics) for number in numbers]
        self._live: dict[int, Client] = {}
        self._positions = Positions(self._dialect, audience.topics)
        self._carry = Carry()
        self._control = Control()
        self._closing: dict[int, str] = {}  # why the server said that it closes, by connection
        self._buffer = bytearray(262144)
        self._heard = o.Heard()
        self._resumes: list[float] = []
        self._latencies = array("q")
        self._head = bytearray()  # of the publication read last, as most come many times
        self._due, self._number = 0, 0
        self._beat, self._looked_at = 0, time.monotonic()
        self._heartbeat = self._dialect.frame(self._dialect.heartbeat) if self._dialect.heartbeat else b""
        self._orders = Orders()
        self._opening: Callable[[], Struct] | None = None  # what to answer when all are there

    def run(self) -> None:
        self._open(self._audience.at_once, o.Ready)
        check = time.monotonic() + 1.0
        while True:
            for descriptor, events in self._poll.poll(0.01 if self._opener.busy else 0.05, 1024):
                client = self._live.get(descriptor)
                if client is not None:
                    self._readable(client)
                elif descriptor == 0:
                    for order in self._orders.read() or self._ended():
                        self._obey(order)
                else:
                    self._opener.event(descriptor, events)
            self._opener.turn()
            now = time.monotonic()
            if self._heartbeat and self._live:
                self._say_heartbeats(now)
            if now >= check:
                self._opener.check()
                check = now + 1.0
            if self._opening is not None and len(self._live) == len(self._clients):
                gc.collect()
                gc.freeze()
                answer(self._opening())
                self._opening = None

    # ---- orders ------------------------------------------------------------------------------------------------

    def _ended(self) -> list[o.Order]:
        raise SystemExit(0)

    def _obey(self, order: o.Order) -> None:
        match order:
            case o.Hear(anew):
                answer(self._report())
                if anew:
                    self._latencies = array("q")
                    self._resumes = []
            case o.Close():
                self._opener.forget()
                for client in self._live.values():
                    if client.socket is not None:
                        client.socket.close()
                        client.socket = None
                self._live.clear()
                self._carry.held.clear()
                self._control.held.clear()
                answer(self._report())
            case o.Open(at_once):
                self._open(at_once, self._report)
            case _:
                fail(f"a receiver was told {order}")

    def _open(self, at_once: int, say: Callable[[], Struct]) -> None:
        self._opener.at_once = at_once
        now = time.monotonic()
        for client in self._clients:
            if client.socket is None:
                client.lost_at = now if client.last or client.stands else 0.0
                self._opener.add(client)
        self._opening = say

    def _report(self) -> o.Heard:
        heard = self._heard
        histogram = Histogram(bucket_bounds())
        for value in self._latencies:
            histogram.observe(value / 1e9)
        heard.connected = len(self._live)
        heard.subscribed = [0] * len(self._audience.addresses)
        for client in self._live.values():
            heard.subscribed[client.address] += 1
        heard.counts, heard.total = histogram.counts, histogram.total
        heard.squares, heard.largest = histogram.squares, histogram.largest
        heard.resumes = self._resumes
        heard.refused, heard.error = self._opener.failures, self._opener.error
        heard.user, heard.system = spent()
        return heard

    # ---- opening -----------------------------------------------------------------------------------------------

    def _speaker(self, client: Client) -> Speaker:
        after = self._positions.before(client.topic, client.last) if client.last else client.stands
        if client.last and after is None and self._dialect.resumes:
            fail(f"connection {client.number} heard number {client.last}, whose position nobody here knows")
        return self._dialect.subscriber(f"b{client.number}", self._names[client.topic], after)

    def _opened(self, client: Client, data: bytes) -> None:
        assert client.socket is not None
        if client.lost_at:
            self._resumes.append(time.monotonic() - client.lost_at)
            client.lost_at = 0.0
        if self._dialect.websocket:
            self._take(client, bytearray(data), len(data))
        else:
            client.heard_at = time.monotonic_ns()
            self._poll.modify(client.socket, select.EPOLLIN)
        self._live[client.socket.fileno()] = client

    # ---- what comes --------------------------------------------------------------------------------------------

    def _readable(self, client: Client) -> None:
        assert client.socket is not None
        try:
            count = client.socket.recv_into(self._buffer)
        except BlockingIOError:
            return
        except OSError as error:
            self._lost(client, str(error))
            return
        if count:
            self._take(client, self._buffer, count)
        else:
            self._lost(client, "without a word")

    def _take(self, client: Client, data: bytearray, end: int) -> None:
        heard = self._heard
        heard.bytes += end
        client.heard_at = now = time.monotonic_ns()
        if self._dialect.websocket:
            for operation, payload in self._control.find(client.number, data, end):
                if operation == PING:
                    self._answer_ping(client, payload)
                elif operation == CLOSE:
                    self._closing[client.number] = reason(payload)
        held = self._carry.held
        if held and client.number in held:
            data = bytearray(held.pop(client.number)) + data[:end]
            end = len(data)
            whole = False
        else:
            whole = True
        place, behind = data.find(MARK, 0, end), 0
        while 0 <= place <= end - HEAD:
            behind = place + HEAD
            head = data[place:behind]
            if head != self._head:
                self._head = head
                self._due, self._number = read(bytes(head))
            heard.deliveries += 1
            self._latencies.append(now - self._due)
            number = self._number
            if number != client.last + 1 and client.last and self._dialect.numbered:
                if number > client.last:
                    heard.lost += number - client.last - 1
                else:
                    heard.repeated += 1
            if number > client.last:
                client.last = number
                if self._dialect.resumes and whole and not self._positions.knows(client.topic, number):
                    self._positions.learn(client.topic, bytes(data[:end]))
            place = data.find(MARK, behind, end)
        if place >= 0 or data[end - 1] in MARK:
            self._carry.keep(client.number, data, behind, end)

    def _lost(self, client: Client, how: str) -> None:
        assert client.socket is not None
        how = self._closing.pop(client.number, how)
        if not self._audience.stays:
            silent = (time.monotonic_ns() - client.heard_at) / 1e9
            fail(
                f"connection {client.number} ({self._dialect.name}) was closed by the server: {how}; it had heard "
                f"nothing for {silent:.1f} s"
            )
        self._heard.disconnected += 1
        del self._live[client.socket.fileno()]
        client.socket.close()
        client.socket = None
        client.lost_at = time.monotonic()
        self._carry.held.pop(client.number, None)
        self._control.forget(client.number)
        if len(self._audience.addresses) > 1:
            self._opener.avoid(client.address)
        self._opener.add(client, self._opener.retry_wait(client))

    def _answer_ping(self, client: Client, payload: bytes) -> None:
        if client.socket is not None:
            with contextlib.suppress(OSError):  # its end is told by epoll
                client.socket.send(pong_frame(payload, os.urandom(4)))

    def _say_heartbeats(self, now: float) -> None:
        """A client that has heard something says nothing. So many are looked at that each has its turn in time,
        however seldom this is called."""
        share = len(self._clients) / HEARTBEAT
        count = min(LOOKED_AT, int((now - self._looked_at) * share))
        if not count:
            return
        self._looked_at = max(self._looked_at + count / share, now - 1.0)
        silent_since = time.monotonic_ns() - round(HEARTBEAT * 1e9)
        for _ in range(count):
            client = self._clients[self._beat % len(self._clients)]
            self._beat += 1
            if client.socket is not None and client.heard_at < silent_since:
                with contextlib.suppress(OSError):
                    client.socket.send(self._heartbeat)


def main() -> None:
    audience = setup(o.Audience)
    try:
        Receiver(audience).run()
    except Refused as refused:
        fail(str(refused))


if __name__ == "__main__":
    sys.setswitchinterval(1.0)
    main()
