"""Connections: from the finished WebSocket handshake to the closed socket.

    OPENING ── connect, welcome ──> OPEN ── our close frame ──> CLOSING ── theirs, or time is up ──> GONE
       └────────── refused, too slow, bad input ────────────────^

From every state a lost socket, or the peer's own close frame, leads straight to GONE. Only OPEN has subscriptions and
publishes. In CLOSING everything but a close frame is ignored and nothing is sent any more; a queue was dropped on the
way there. A connection that is GONE is in no table: events for its number are late and mean nothing.

Heartbeat: an OPEN connection that was silent for one interval is pinged, for two it is dead. Bytes received are a sign
of life, and so are bytes that a full transport got rid of.
"""

from __future__ import annotations

from collections import Counter

from migratory_protocol import errors, frames
from migratory_protocol.codec import BadMessage
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    VERSION,
    Connect,
    Error,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
)

from migratory_broker.core.edge.admission import AdmissionGate, ClientAuthorizer, Denial, Rebalancer
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Connection, State
from migratory_broker.core.edge.delivery import Delivery
from migratory_broker.core.edge.events import Close, Lost, More, Opened, Received
from migratory_broker.core.edge.formats import Formats
from migratory_broker.core.edge.inbox import Inbox
from migratory_broker.core.edge.publishing import Publishing
from migratory_broker.core.edge.subscriptions import Subscriptions
from migratory_broker.core.edge.timers import TimerWheel
from migratory_broker.core.logic.events import Note, Observe

PING = frames.ping_frame()
STALL = 1.0  # seconds between two ticks, after which this process stood still and not its clients


class Connections:
    """All connections of an edge. `clients` (in OPEN) and `closed` (by reason) are for /metrics."""

    def __init__(
        self,
        config: EdgeConfig,
        delivery: Delivery,
        subscriptions: Subscriptions,
        publishing: Publishing,
        gate: AdmissionGate,
        rebalancer: Rebalancer,
        authorizer: ClientAuthorizer,
    ) -> None:
        self._config = config
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._publishing = publishing
        self._gate = gate
        self._rebalancer = rebalancer
        self._authorizer = authorizer
        self._formats = Formats(config.replay_cache)
        self.inbox = Inbox(config, delivery, subscriptions, self._message, self.close, self._closed_by_peer)
        self._wheel = TimerWheel()
        self._ticked: float | None = None
        self._woke = 0.0
        self.table: dict[int, Connection] = {}
        self.clients = 0
        self.closed: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return self._delivery.now

    def open(self) -> list[Connection]:
        """Those that have said `connect` and are not about to go."""
        return [connection for connection in self.table.values() if connection.state is State.OPEN]

    # ---- the socket ------------------------------------------------------------------------------------------

    def opened(self, event: Opened) -> None:
        format = self._formats.get(event.wire, event.deflate)
        connection = Connection(event.connection, format, event.remote, self._delivery.moment)
        self.table[event.connection] = connection
        accepted = self.now if event.opened is None else event.opened
        self._wheel.schedule(connection, accepted + self._config.handshake)
        self._admit(connection)

    def received(self, event: Received) -> None:
        connection = self.table.get(event.connection)
        if connection is not None:
            self.inbox.receive(connection, event.data)

    def more(self, event: More) -> None:
        connection = self.table.get(event.connection)
        if connection is not None:
            self.inbox.resume(connection)

    def _closed_by_peer(self, connection: Connection, event: frames.CloseReceived) -> None:
        if connection.state is not State.CLOSING:
            self._count("client")
            self._leave(connection)
            self._delivery.write_at_once(connection, frames.close_frame(event.code))
        self._finish(connection, abort=False)

    def lost(self, event: Lost) -> None:
        connection = self.table.pop(event.connection, None)
        if connection is not None:
            self._delivery.forget(connection)
            if connection.state is not State.CLOSING:
                self._count("lost")
                self._leave(connection)
            self.inbox.release(connection)
            self._wheel.cancel(connection)
            connection.state = State.GONE

    def close(self, connection: Connection, code: CloseCode, reason: str, text: str) -> None:
        """Our half of the closing handshake. `reason` is the metric's label, `text` tells the client."""
        if connection.state <= State.OPEN:
            self._count(reason)
            self._leave(connection)
            self._delivery.write_at_once(connection, frames.close_frame(code, text))
            connection.state = State.CLOSING
            self._wheel.schedule(connection, self.now + self._config.closing)

    def _finish(self, connection: Connection, *, abort: bool) -> None:
        del self.table[connection.number]
        self.inbox.release(connection)
        self._wheel.cancel(connection)
        connection.state = State.GONE
        self._delivery.put(Close(connection.number, abort))

    def _count(self, reason: str) -> None:
        self.closed[reason] += 1
        self._delivery.aside(Observe("migratory_closed_total", label=reason))

    def _leave(self, connection: Connection) -> None:
        """Nothing but a close frame is sent from here on."""
        if connection.state is State.OPEN:
            self.clients -= 1
            self._rebalancer.remove(connection)
        self._subscriptions.drop_all(connection)
        self.inbox.drop_backlog(connection)
        if connection.queue is not None:
            self._delivery.drop_queue(connection)

    # ---- messages --------------------------------------------------------------------------------------------

    def _message(self, connection: Connection, message: object) -> None:
        if isinstance(message, Publish) and connection.state is State.OPEN:
            self._publishing.publish(connection, message)
        elif isinstance(message, BadMessage):
            self._bad(connection, message)
        elif isinstance(message, Connect):
            self._connect(connection, message)
        elif connection.state is State.OPENING:
            text = "the first message of a connection is `connect`"
            self._refuse(connection, errors.NOT_CONNECTED, text, CloseCode.BAD_MESSAGE, "bad_message")
        elif isinstance(message, Subscribe):
            self._subscriptions.subscribe(connection, message)
        elif isinstance(message, Unsubscribe):
            self._subscriptions.unsubscribe(connection, message)
        elif isinstance(message, Ping):
            self._delivery.reply(connection, Pong())
        else:
            self.close(connection, CloseCode.NORMAL, "bye", "")

    def _bad(self, connection: Connection, fault: BadMessage) -> None:
        closes = fault.closes or connection.state is State.OPENING
        if closes:
            self._refuse(connection, fault.code, fault.text, CloseCode.BAD_MESSAGE, "bad_message")
        else:
            self._delivery.reply(connection, Error(fault.code, fault.text, fault.request, fault.topic))

    def _refuse(self, connection: Connection, code: str, text: str, close: CloseCode, reason: str) -> None:
        """An error that ends the connection."""
        self._delivery.reply(connection, Error(code, text, closes=True))
        self.close(connection, close, reason, text)

    def _connect(self, connection: Connection, message: Connect) -> None:
        """Begins a connection. Said again later, it brings a fresh token."""
        if message.version != VERSION:
            text = f"protocol version {message.version} is not spoken here; this broker speaks {VERSION}"
            self._refuse(connection, errors.UNSUPPORTED_VERSION, text, CloseCode.BAD_MESSAGE, "bad_message")
            return
        if len(message.client.encode()) > self._config.max_name:
            text = f"client has more than {self._config.max_name} bytes in UTF-8"
            self._refuse(connection, errors.BAD_MESSAGE, text, CloseCode.BAD_MESSAGE, "bad_message")
            return
        if connection.state is State.OPENING and not self._admit(connection):
            return
        grant = self._authorizer.connect(message.client, message.token, connection.remote)
        if isinstance(grant, Denial):
            self._refuse(connection, errors.UNAUTHENTICATED, grant.text, CloseCode.UNAUTHENTICATED, "unauthenticated")
            return
        connection.client = message.client
        connection.remote = ""
        connection.identity = grant.identity
        connection.expires = None if grant.lifetime is None else self.now + grant.lifetime
        if connection.state is State.OPENING:
            connection.state = State.OPEN
            self.clients += 1
            self._rebalancer.add(connection, message.moves)
        self._watch(connection)
        self._delivery.write(connection, self._gate.welcome(connection.format))

    def _admit(self, connection: Connection) -> bool:
        refusal = self._gate.refusal(len(self.table))
        if refusal is not None:
            self.close(connection, refusal[0], "refused", refusal[1])
        return refusal is None

    # ---- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if self._ticked is not None and self.now - self._ticked > STALL:
            self._woke = self.now
        self._ticked = self.now
        silent: list[Connection] = []
        for connection in self._wheel.expire(self.now):
            if connection.state is State.OPENING:
                # not the code for a client at fault: a crowded network or broker can be the reason as well
                text = f"no `connect` within {self._config.handshake:g} s"
                self.close(connection, CloseCode.TRY_ANOTHER, "handshake", text)
            elif connection.state is State.CLOSING:
                self._finish(connection, abort=True)
            elif self._beat(connection):  # OPEN: who is GONE has no timer
                silent.append(connection)
        self._delivery.write_to_all(silent, PING)

    def _beat(self, connection: Connection) -> bool:
        """Whether it is to be pinged."""
        if connection.expires is not None and self.now >= connection.expires:
            text = "the token has expired; connect with a fresh one"
            self.close(connection, CloseCode.TOKEN_EXPIRED, "token_expired", text)
            return False
        silent = self.now - max(connection.heard, self._woke)
        if silent >= 2 * self._config.heartbeat:
            self._dead(connection, silent)
            return False
        self._watch(connection)
        return silent >= self._config.heartbeat

    def _dead(self, connection: Connection, silent: float) -> None:
        """No close frame: nobody is there to read it."""
        self._count("heartbeat")
        fields = {**describe(connection), "silent_seconds": round(silent, 3)}
        self._delivery.aside(Note("info", "dead_client", fields, connection.number))
        self._delivery.forget(connection)
        self._leave(connection)
        self._finish(connection, abort=True)

    def _watch(self, connection: Connection) -> None:
        """Looks at an OPEN connection again when it is to be pinged, is dead or its token expires, if nothing comes."""
        heard = max(connection.heard, self._woke)
        intervals = 1 if self.now - heard < self._config.heartbeat else 2
        due = heard + intervals * self._config.heartbeat
        self._wheel.schedule(connection, due if connection.expires is None else min(due, connection.expires))


def describe(connection: Connection) -> dict[str, object]:
    """Who it is, for a log line; the runtime adds the address."""
    return {"client": connection.client, "connection": connection.number}
