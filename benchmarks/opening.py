"""Opens many connections of one dialect without blocking: TCP, the WebSocket upgrade, the greeting.

Each attempt is one `Attempt` in epoll; `Opener` knows how many may be under way and when a failed one is tried again.
"""

from __future__ import annotations

import errno
import heapq
import os
import select
import socket
import time
from collections import deque
from collections.abc import Callable
from random import Random

from migratory_protocol.frames import FrameParser, MessageReceived, PingReceived, pong_frame
from migratory_protocol.handshake import HandshakeError, build_request, parse_response
from migratory_protocol.positions import Position

from benchmarks.dialects import Dialect, Refused, Speaker
from benchmarks.orders import Address

FIRST_RETRY, LONGEST_RETRY = 1.0, 30.0
"""As the product's own clients: a random part of the first, doubling up to the longest (seconds)."""
AVOIDED = 60.0
"""Seconds that an address which failed is not chosen, unless all have."""
PATIENCE = 10.0
"""Seconds for an attempt."""


class Client:
    """One connection for life, over however many links. `last` is the number of its topic that it heard last."""

    __slots__ = ("address", "attempts", "heard_at", "last", "lost_at", "number", "socket", "stands", "topic")

    def __init__(self, number: int, topic: int) -> None:
        self.number = number
        self.topic = topic
        self.last = 0
        self.socket: socket.socket | None = None
        self.address = -1
        self.attempts = 0
        self.lost_at = 0.0  # 0: no link was lost
        self.heard_at = 0  # nanoseconds of the monotonic clock
        self.stands: Position | None = None  # where the topic stood when it subscribed


class Attempt:
    __slots__ = ("began", "client", "head", "nonce", "parser", "raw", "socket", "speaker", "upgraded")

    def __init__(self, client: Client, opened: socket.socket, now: float) -> None:
        self.client = client
        self.socket = opened
        self.began = now
        self.nonce = os.urandom(16)
        self.head = b""
        self.raw = b""  # everything behind the upgrade
        self.upgraded = False
        self.parser: FrameParser | None = None
        self.speaker: Speaker | None = None


class Opener:
    """`speaker` makes a client's conversation; `opened(client, bytes)` gets each that is subscribed, with all that was
    read behind the upgrade: it may hold publications."""

    def __init__(
        self,
        dialect: Dialect,
        addresses: list[Address],
        sources: list[str],
        poll: select.epoll,
        chance: Random,
        speaker: Callable[[Client], Speaker],
        opened: Callable[[Client, bytes], None],
    ) -> None:
        self._dialect = dialect
        self._addresses = addresses
        self._sources = sources
        self._poll = poll
        self._chance = chance
        self._speaker = speaker
        self._opened = opened
        self._waiting: deque[Client] = deque()
        self._later: list[tuple[float, int, Client]] = []
        self._attempts: dict[int, Attempt] = {}
        self._avoided: dict[int, float] = {}
        self._buffer = bytearray(65536)
        self.at_once = 200
        self.failures = 0
        self.error = ""

    @property
    def busy(self) -> bool:
        return bool(self._waiting or self._later or self._attempts)

    def add(self, client: Client, wait: float = 0.0) -> None:
        if wait:
            heapq.heappush(self._later, (time.monotonic() + wait, client.number, client))
        else:
            self._waiting.append(client)

    def avoid(self, address: int) -> None:
        self._avoided[address] = time.monotonic() + AVOIDED

    def forget(self) -> None:
        """Gives up everything that is under way."""
        for attempt in self._attempts.values():
            attempt.socket.close()
        self._attempts.clear()
        self._waiting.clear()
        self._later.clear()

    def retry_wait(self, client: Client) -> float:
        client.attempts += 1
        return self._chance.random() * min(LONGEST_RETRY, FIRST_RETRY * 2.0 ** (client.attempts - 1))

    # ---- what the loop calls -----------------------------------------------------------------------------------

    def turn(self) -> None:
        """Starts what may start now; call it in every turn of the loop."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._waiting.append(heapq.heappop(self._later)[2])
        while self._waiting and len(self._attempts) < self.at_once:
            self._dial(self._waiting.popleft(), now)

    def check(self) -> None:
        """Ends attempts that take too long; call it about every second."""
        now = time.monotonic()
        for attempt in [one for one in self._attempts.values() if now - one.began > PATIENCE]:
            self._failed(attempt, "no answer in time")

    def event(self, descriptor: int, events: int) -> bool:
        """False when the descriptor is none of these attempts'."""
        attempt = self._attempts.get(descriptor)
        if attempt is None:
            return False
        try:
            if events & select.EPOLLOUT and not attempt.upgraded and not attempt.head:
                self._connected(attempt)
            elif events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._readable(attempt)
        except (OSError, HandshakeError) as error:
            self._failed(attempt, str(error))
        return True

    # ---- one attempt -------------------------------------------------------------------------------------------

    def _choose(self, now: float) -> int:
        usable = [place for place in range(len(self._addresses)) if self._avoided.get(place, 0.0) <= now]
        return self._chance.choice(usable or range(len(self._addresses)))

    def _dial(self, client: Client, now: float) -> None:
        opened = socket.socket()
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        client.address = self._choose(now)
        attempt = Attempt(client, opened, now)
        if self._sources:
            # the port is chosen at connect, so that one port can serve several destinations
            opened.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            opened.bind((self._sources[client.number % len(self._sources)], 0))
        self._attempts[opened.fileno()] = attempt
        problem = opened.connect_ex(self._addresses[client.address])
        if problem not in (0, errno.EINPROGRESS):
            self._failed(attempt, os.strerror(problem))
            return
        self._poll.register(opened, select.EPOLLOUT)

    def _connected(self, attempt: Attempt) -> None:
        problem = attempt.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        self._poll.modify(attempt.socket, select.EPOLLIN)
        attempt.upgraded = not self._dialect.websocket
        if attempt.upgraded:
            self._done(attempt)
            return
        host, port = self._addresses[attempt.client.address]
        dialect = self._dialect
        attempt.socket.sendall(build_request(f"{host}:{port}", dialect.path, attempt.nonce, dialect.subprotocols))

    def _readable(self, attempt: Attempt) -> None:
        count = attempt.socket.recv_into(self._buffer)
        if not count:
            raise OSError("the server closed the connection")
        data = bytes(self._buffer[:count])
        if not attempt.upgraded:
            attempt.head += data
            response = parse_response(attempt.head, attempt.nonce, self._dialect.subprotocols)
            if response is None:
                return
            attempt.upgraded = True
            attempt.parser = FrameParser("client", 2**24)
            attempt.speaker = self._speaker(attempt.client)
            self._say(attempt, attempt.speaker.greeting())
            data = response.rest
        attempt.raw += data
        assert attempt.parser is not None
        assert attempt.speaker is not None
        for event in attempt.parser.feed(data) if data else ():
            if isinstance(event, MessageReceived):
                self._say(attempt, attempt.speaker.received(event.data))
            elif isinstance(event, PingReceived):
                attempt.socket.sendall(pong_frame(event.data, os.urandom(4)))
            else:
                raise OSError(f"the server sent {event}")
        if attempt.speaker.ready:
            self._done(attempt)

    def _say(self, attempt: Attempt, messages: list[bytes]) -> None:
        if messages:
            attempt.socket.sendall(b"".join(self._dialect.frame(message) for message in messages))

    def _done(self, attempt: Attempt) -> None:
        del self._attempts[attempt.socket.fileno()]
        client = attempt.client
        client.socket = attempt.socket
        client.attempts = 0
        if client.stands is None and attempt.speaker is not None:
            client.stands = attempt.speaker.stands
        self._opened(client, attempt.raw)

    def _failed(self, attempt: Attempt, text: str) -> None:
        self._attempts.pop(attempt.socket.fileno(), None)
        attempt.socket.close()
        self.failures += 1
        self.error = text
        if len(self._addresses) > 1:
            self.avoid(attempt.client.address)
        self.add(attempt.client, self.retry_wait(attempt.client))


__all__ = ["Client", "Opener", "Refused"]
