"""Non-blocking connection setup of many subscribers: TCP, the WebSocket upgrade, and the protocol's handshake.

Each attempt is a `ConnectAttempt` in epoll. The `Connector` limits how many are pending, and retries failed ones.
"""

from __future__ import annotations

import errno
import heapq
import os
import select
import socket
import ssl
import time
from collections import deque
from collections.abc import Callable
from random import Random

from migratory_protocol.frames import FrameParser, MessageReceived, PingReceived, pong_frame
from migratory_protocol.handshake import HandshakeError, build_request, parse_response
from migratory_protocol.positions import Position

from benchmarks.ipc import Address
from benchmarks.protocols import ClientProtocol, Conversation

FIRST_RETRY, MAX_RETRY = 1.0, 30.0
"""Seconds. Like the product's client: the first wait is a random part of `FIRST_RETRY`, and the bound doubles with each
attempt up to `MAX_RETRY`."""

_AVOID_SECONDS = 60.0
"""Seconds for which an address that failed is not chosen, unless all failed. The client's own default."""

_ATTEMPT_TIMEOUT = 10.0
"""Seconds of one attempt. The client's own default."""

_MAX_MESSAGE_BYTES = 2**24
"""Bytes of the largest message during a handshake."""


class Subscriber:
    """One subscriber, over all its connections. `last` is the number of the last publication that it received."""

    __slots__ = ("address", "attempts", "heard_at", "last", "lost_at", "number", "position", "socket", "topic")

    def __init__(self, number: int, topic: int) -> None:
        self.number = number
        self.topic = topic
        self.last = 0
        self.socket: socket.socket | None = None
        self.address = -1
        self.attempts = 0
        self.lost_at = 0.0  # seconds of the monotonic clock; 0: no connection was lost
        self.heard_at = 0  # nanoseconds of the monotonic clock
        self.position: Position | None = None  # the topic's position at the subscription


class ConnectAttempt:
    """The state of one attempt to connect a subscriber."""

    __slots__ = (
        "began", "conversation", "handshake", "head", "nonce", "parser", "raw", "socket", "subscriber", "upgraded",
    )  # fmt: skip

    def __init__(self, subscriber: Subscriber, opened: socket.socket, now: float) -> None:
        self.subscriber = subscriber
        self.socket = opened
        self.began = now
        self.nonce = os.urandom(16)
        self.head = b""
        self.raw = b""  # everything after the upgrade
        self.upgraded = False
        self.handshake = False  # True during that of TLS
        self.parser: FrameParser | None = None
        self.conversation: Conversation | None = None


class Connector:
    """All pending connection attempts of a receiver.

    `conversation` creates the handshake of a subscriber. `on_connected(subscriber, data)` is called for each one that
    is subscribed, with all bytes after the upgrade, which may contain publications."""

    def __init__(
        self,
        protocol: ClientProtocol,
        addresses: list[Address],
        sources: list[str],
        poll: select.epoll,
        random: Random,
        conversation: Callable[[Subscriber], Conversation],
        on_connected: Callable[[Subscriber, bytes], None],
        authority: str = "",
    ) -> None:
        self._protocol = protocol
        self._addresses = addresses
        self._sources = sources
        self._poll = poll
        self._random = random
        self._conversation = conversation
        self._on_connected = on_connected
        self._tls = ssl.create_default_context(cafile=authority) if authority else None
        self._waiting: deque[Subscriber] = deque()
        self._later: list[tuple[float, int, Subscriber]] = []
        self._attempts: dict[int, ConnectAttempt] = {}
        self._avoided: dict[int, float] = {}
        self._buffer = bytearray(65536)
        self.max_pending = 200
        self.failures = 0
        self.error = ""

    @property
    def busy(self) -> bool:
        """True while a subscriber is not connected yet."""
        return bool(self._waiting or self._later or self._attempts)

    def add(self, subscriber: Subscriber, delay: float = 0.0) -> None:
        """Let a subscriber connect in `delay` seconds. `start_attempts` begins the attempt."""
        if delay:
            heapq.heappush(self._later, (time.monotonic() + delay, subscriber.number, subscriber))
        else:
            self._waiting.append(subscriber)

    def avoid(self, address: int) -> None:
        """Do not choose the address with this index for `_AVOID_SECONDS`, unless all addresses failed."""
        self._avoided[address] = time.monotonic() + _AVOID_SECONDS

    def cancel_all(self) -> None:
        """End all pending attempts without a retry, and drop those that wait for their start."""
        for attempt in self._attempts.values():
            attempt.socket.close()
        self._attempts.clear()
        self._waiting.clear()
        self._later.clear()

    def retry_delay(self, subscriber: Subscriber) -> float:
        """Return the random seconds before the subscriber's next attempt, and raise the bound of the wait after it."""
        subscriber.attempts += 1
        return self._random.random() * min(MAX_RETRY, FIRST_RETRY * 2.0 ** (subscriber.attempts - 1))

    # ---- called by the receiver's loop -------------------------------------------------------------------------

    def start_attempts(self) -> None:
        """Start the attempts that are due, as long as fewer than `max_pending` are pending. Call it in every turn of
        the loop."""
        now = time.monotonic()
        while self._later and self._later[0][0] <= now:
            self._waiting.append(heapq.heappop(self._later)[2])
        while self._waiting and len(self._attempts) < self.max_pending:
            self._dial(self._waiting.popleft(), now)

    def check_timeouts(self) -> None:
        """End attempts that take longer than `_ATTEMPT_TIMEOUT`; each is retried later. Call it about every second."""
        now = time.monotonic()
        for attempt in [pending for pending in self._attempts.values() if now - pending.began > _ATTEMPT_TIMEOUT]:
            self._failed(attempt, "no answer in time")

    def handle(self, descriptor: int, events: int) -> bool:
        """Handle an epoll event. Return False when the descriptor belongs to no attempt."""
        attempt = self._attempts.get(descriptor)
        if attempt is None:
            return False
        try:
            if attempt.handshake:
                self._shake_hands(attempt)
            elif events & select.EPOLLOUT and not attempt.upgraded and not attempt.head:
                self._connected(attempt)
            elif events & (select.EPOLLIN | select.EPOLLHUP | select.EPOLLERR):
                self._readable(attempt)
        except (OSError, HandshakeError) as error:
            self._failed(attempt, str(error))
        return True

    # ---- one attempt -------------------------------------------------------------------------------------------

    def _choose(self, now: float) -> int:
        usable = [place for place in range(len(self._addresses)) if self._avoided.get(place, 0.0) <= now]
        return self._random.choice(usable or range(len(self._addresses)))

    def _dial(self, subscriber: Subscriber, now: float) -> None:
        opened = socket.socket()
        opened.setblocking(False)
        opened.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        subscriber.address = self._choose(now)
        attempt = ConnectAttempt(subscriber, opened, now)
        if self._sources:
            # The kernel chooses the port at connect, so that one port can serve several destinations.
            opened.setsockopt(socket.IPPROTO_IP, getattr(socket, "IP_BIND_ADDRESS_NO_PORT", 24), 1)
            opened.bind((self._sources[subscriber.number % len(self._sources)], 0))
        self._attempts[opened.fileno()] = attempt
        problem = opened.connect_ex(self._addresses[subscriber.address])
        if problem not in (0, errno.EINPROGRESS):
            self._failed(attempt, os.strerror(problem))
            return
        self._poll.register(opened, select.EPOLLOUT)

    def _connected(self, attempt: ConnectAttempt) -> None:
        problem = attempt.socket.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if problem:
            raise OSError(problem, os.strerror(problem))
        self._poll.modify(attempt.socket, select.EPOLLIN)
        if self._tls is not None:
            host = self._addresses[attempt.subscriber.address][0]
            attempt.socket = self._tls.wrap_socket(attempt.socket, server_hostname=host, do_handshake_on_connect=False)
            attempt.handshake = True
            self._shake_hands(attempt)
        else:
            self._request(attempt)

    def _shake_hands(self, attempt: ConnectAttempt) -> None:
        """Continue the TLS handshake, and request the upgrade when it is done."""
        assert isinstance(attempt.socket, ssl.SSLSocket)
        try:
            attempt.socket.do_handshake()
        except ssl.SSLWantReadError:
            return
        attempt.handshake = False
        self._request(attempt)

    def _request(self, attempt: ConnectAttempt) -> None:
        attempt.upgraded = not self._protocol.websocket
        if attempt.upgraded:
            self._done(attempt)
            return
        host, port = self._addresses[attempt.subscriber.address]
        protocol = self._protocol
        attempt.socket.sendall(build_request(f"{host}:{port}", protocol.path, attempt.nonce, protocol.subprotocols))

    def _readable(self, attempt: ConnectAttempt) -> None:
        try:
            count = attempt.socket.recv_into(self._buffer)
        except ssl.SSLWantReadError:
            return
        if not count:
            raise OSError("the server closed the connection")
        data = bytes(self._buffer[:count])
        if not attempt.upgraded:
            attempt.head += data
            response = parse_response(attempt.head, attempt.nonce, self._protocol.subprotocols)
            if response is None:
                return
            attempt.upgraded = True
            attempt.parser = FrameParser("client", _MAX_MESSAGE_BYTES)
            attempt.conversation = self._conversation(attempt.subscriber)
            self._send(attempt, attempt.conversation.greeting())
            data = response.rest
        attempt.raw += data
        assert attempt.parser is not None
        assert attempt.conversation is not None
        for event in attempt.parser.feed(data) if data else ():
            if isinstance(event, MessageReceived):
                self._send(attempt, attempt.conversation.received(event.data))
            elif isinstance(event, PingReceived):
                attempt.socket.sendall(pong_frame(event.data, os.urandom(4)))
            else:
                raise OSError(f"the server sent {event}")
        if attempt.conversation.ready:
            self._done(attempt)

    def _send(self, attempt: ConnectAttempt, messages: list[bytes]) -> None:
        if messages:
            attempt.socket.sendall(b"".join(self._protocol.frame(message) for message in messages))

    def _done(self, attempt: ConnectAttempt) -> None:
        del self._attempts[attempt.socket.fileno()]
        subscriber = attempt.subscriber
        subscriber.socket = attempt.socket
        subscriber.attempts = 0
        if subscriber.position is None and attempt.conversation is not None:
            subscriber.position = attempt.conversation.position
        self._on_connected(subscriber, attempt.raw)

    def _failed(self, attempt: ConnectAttempt, text: str) -> None:
        self._attempts.pop(attempt.socket.fileno(), None)
        attempt.socket.close()
        self.failures += 1
        self.error = text
        if len(self._addresses) > 1:
            self.avoid(attempt.subscriber.address)
        self.add(attempt.subscriber, self.retry_delay(attempt.subscriber))
