"""The lifecycle of client connections in the edge core: from the finished WebSocket handshake, or the HTTP request that
was read, to the closed socket.

    OPENING ── connect, welcome ──> OPEN ── broker's close frame ──> CLOSING ── client's, or timeout ──> GONE
       └────────── refused, too slow, bad input ───────────────────────^
                                     OPEN ── dead: silent for two heartbeat intervals ─────────────────> GONE

From every state a lost socket, or the client's own close frame, leads straight to GONE. Only OPEN has subscriptions and
publishes. In CLOSING everything but a close frame is ignored and nothing is sent; the queue was dropped on the way
there. A connection that is GONE is in no table: late events with its number are ignored. A connection of HTTP has no
closing handshake: whatever closes it leads straight to GONE.

Heartbeat: a connection in OPEN that was silent for one interval is pinged, and after two intervals it is dead. Received
bytes show that a client lives, and so does a full transport that accepts bytes again. A client of HTTP sends nothing:
its stream is pinged every interval, and its poll or publication ends after one without an answer. It is dead if its
transport was full for two intervals. That it stopped acknowledging bytes otherwise is for the kernel to notice.
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
    Nack,
    Ping,
    Pong,
    Publish,
    Subscribe,
    Unsubscribe,
)

from migratory_broker.core.edge import events
from migratory_broker.core.edge.admission import AdmissionGate, Rebalancer
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.http import AnswerFormat, Formats
from migratory_broker.core.edge.identity import REFUSALS, IdentityChecks
from migratory_broker.core.edge.inbox import Inbox
from migratory_broker.core.edge.publishing import PublishHandler
from migratory_broker.core.edge.rates import RateLimiter
from migratory_broker.core.edge.state import ClientConnection, State
from migratory_broker.core.edge.subscriptions import SubscriptionTable
from migratory_broker.core.edge.timers import TimerWheel
from migratory_broker.core.logic.events import Note, Observe
from migratory_broker.core.security.authorizer import Denial

STALL_SECONDS = 1.0
"""Seconds between two ticks above which this process is taken to have been suspended. The silence of its clients
until then does not count."""


class ConnectionLifecycle:
    """All connections of an edge, and their changes of state. `clients` (the number in OPEN) and `closed` (connections
    that ended or began to close, by reason) are for /metrics."""

    def __init__(
        self,
        config: EdgeConfig,
        delivery: EdgeDelivery,
        subscriptions: SubscriptionTable,
        publishing: PublishHandler,
        gate: AdmissionGate,
        rebalancer: Rebalancer,
        identities: IdentityChecks,
        rates: RateLimiter,
    ) -> None:
        self._config = config
        self._delivery = delivery
        self._subscriptions = subscriptions
        self._publishing = publishing
        self._gate = gate
        self._rebalancer = rebalancer
        self._identities = identities
        self._rates = rates
        self._formats = Formats(config.replay_cache)
        self.inbox = Inbox(
            config, delivery, subscriptions, self._handle_message, self.close, self._closed_by_peer, rates
        )
        self._wheel = TimerWheel()
        self._ticked_at: float | None = None
        self._woke_at = 0.0
        self.table: dict[int, ClientConnection] = {}
        self.clients = 0
        self.closed: Counter[str] = Counter()

    @property
    def now(self) -> float:
        return self._delivery.now

    def open_connections(self) -> list[ClientConnection]:
        """Return the connections in the state OPEN."""
        return [connection for connection in self.table.values() if connection.state is State.OPEN]

    # ---- the socket ------------------------------------------------------------------------------------------

    def opened(self, event: events.Opened) -> None:
        """Add a connection in the state OPENING, with a time limit for its `connect`. Close it at once if the edge
        accepts no clients; otherwise store the token of its request."""
        if event.http is None:
            format = self._formats.get(event.wire, event.deflate)
        else:
            format = self._formats.get_http(event.http)
            self._delivery.emit(Observe("migratory_http_requests_total", label=event.http.kind))
        connection = ClientConnection(event.connection, format, event.remote, self._delivery.coarse_now)
        self.table[event.connection] = connection
        self._rates.add(connection, event.address)
        opened = self.now if event.opened is None else event.opened
        self._wheel.schedule(connection, opened + self._config.handshake)
        if self._admit(connection) and event.token is not None:
            self.inbox.hold_token(connection, event.token)

    def received(self, event: events.Received) -> None:
        """Handle bytes from a connection's socket. An unknown connection is ignored."""
        connection = self.table.get(event.connection)
        if connection is not None:
            self.inbox.receive(connection, event.data)

    def more(self, event: events.More) -> None:
        """Handle the next part of a connection's backlog. An unknown connection is ignored."""
        connection = self.table.get(event.connection)
        if connection is not None:
            self.inbox.resume(connection)

    def _closed_by_peer(self, connection: ClientConnection, event: frames.CloseReceived) -> None:
        """Answer the close frame of a client with one, unless it is itself the answer to the broker's, and end the
        connection."""
        if connection.state is not State.CLOSING:
            self._count("client")
            self._leave(connection)
            self._delivery.write_past_queue(connection, frames.close_frame(event.code))
        self._finish(connection, abort=False)

    def lost(self, event: events.Lost) -> None:
        """Remove a connection whose socket is closed or failed, with its subscriptions. It is counted as lost unless it
        was closing. An unknown connection is ignored."""
        connection = self.table.pop(event.connection, None)
        if connection is not None:
            self._delivery.drop_batches(connection)
            if connection.state is not State.CLOSING:
                self._count("lost")
                self._leave(connection)
            self._release(connection)

    def close(self, connection: ClientConnection, code: CloseCode, reason: str, text: str, error: str = "") -> None:
        """Begin the closing handshake: end the subscriptions, drop the queue and the backlog, and send a close frame. A
        connection of HTTP ends at once, after its last bytes. One that is closing already does not change. `reason` is
        the metric's label. `text` is sent to the client, and to one of HTTP without a `welcome` also the code
        `error`."""
        if connection.state <= State.OPEN:
            format = connection.format
            is_open = connection.state is State.OPEN
            self._count(reason)
            self._leave(connection)
            data = format.close(code, text) if is_open else format.refusal(code, text, error)
            self._delivery.write_past_queue(connection, data)
            if format.one_way:
                self._finish(connection, abort=False)
                return
            connection.state = State.CLOSING
            self._wheel.schedule(connection, self.now + self._config.closing)

    def end_finished(self) -> None:
        """Close the connections of HTTP polls and publications that have what they waited for."""
        finished, self._delivery.finished = self._delivery.finished, []
        for connection in finished:
            self.close(connection, CloseCode.NORMAL, "request", "answered")

    def _finish(self, connection: ClientConnection, *, abort: bool) -> None:
        """Remove the connection, enter GONE, and emit the effect that closes its socket. `abort`: without writing
        buffered bytes."""
        del self.table[connection.number]
        self._release(connection)
        self._delivery.emit_ordered(events.Close(connection.number, abort))

    def _release(self, connection: ClientConnection) -> None:
        """Drop the unhandled input of a connection, stop counting the memory of its permissions, cancel its timer, and
        enter GONE."""
        self.inbox.release(connection)
        self._subscriptions.budget.remove_access(connection)
        self._wheel.cancel(connection)
        connection.state = State.GONE

    def _count(self, reason: str) -> None:
        """Count a connection that ends or begins to close, by reason."""
        self.closed[reason] += 1
        self._delivery.emit(Observe("migratory_closed_total", label=reason))

    def _leave(self, connection: ClientConnection) -> None:
        """End the subscriptions, the backlog and the queue of a connection, and stop counting it as a client and for
        its rates. Only a close frame may be sent to it afterwards, or the last bytes of HTTP."""
        if connection.state is State.OPEN:
            self.clients -= 1
            self._rebalancer.remove(connection)
        self._rates.remove(connection)
        self._subscriptions.drop_all(connection)
        self.inbox.drop_backlog(connection)
        if connection.queue is not None:
            self._delivery.drop_queue(connection)

    # ---- messages --------------------------------------------------------------------------------------------

    def _handle_message(self, connection: ClientConnection, message: object) -> None:
        """Handle a message of a client by its kind. Before `connect` any other message ends the connection. The error
        of a bad message is answered, and `bye` closes the connection."""
        if isinstance(message, Publish) and connection.state is State.OPEN:
            self._publishing.publish(connection, message)
        elif isinstance(message, BadMessage):
            self._answer_bad_message(connection, message)
        elif isinstance(message, Connect):
            self.inbox.charge(self._identities.connect_cost)
            self._connect(connection, message)
        elif connection.state is State.OPENING:
            text = "the first message of a connection must be `connect`"
            self._refuse(connection, errors.NOT_CONNECTED, text, CloseCode.BAD_MESSAGE, "bad_message")
        elif isinstance(message, Subscribe):
            self.inbox.charge(len(message.topics))
            self._subscriptions.subscribe(connection, message)
        elif isinstance(message, Unsubscribe):
            self.inbox.charge(len(message.topics))
            self._subscriptions.unsubscribe(connection, message)
        elif isinstance(message, Ping):
            self._delivery.reply(connection, Pong())
        else:
            self.close(connection, CloseCode.NORMAL, "bye", "")

    def _answer_bad_message(self, connection: ClientConnection, error: BadMessage) -> None:
        """Answer a bad message with `nack` if it is a publication of QoS 1 that can be named, else with `error`. Before
        `connect`, or if the whole frame is unreadable, close the connection as well."""
        closes = error.closes or connection.state is State.OPENING
        if closes:
            self._refuse(connection, error.code, error.text, CloseCode.BAD_MESSAGE, "bad_message")
        elif error.publication is not None:  # its publisher waits for an answer that names it
            self._delivery.reply(connection, Nack(*error.publication, error.code, error.text))
        else:
            self._delivery.reply(connection, Error(error.code, error.text, error.request, error.topic))

    def _refuse(self, connection: ClientConnection, code: str, text: str, close: CloseCode, reason: str) -> None:
        """Send an `error` that says that it ends the connection, and begin the closing handshake with the close code
        `close`. Before its `welcome`, a connection of HTTP gets an HTTP error in place of both. `reason` is the
        metric's label."""
        if connection.state is State.OPEN or not connection.format.one_way:
            self._delivery.reply(connection, Error(code, text, closes=True))
        self.close(connection, close, reason, text, code)

    def _connect(self, connection: ClientConnection, message: Connect) -> None:
        """Handle `connect`: check version, name, admission, token and free memory, then send `welcome` and enter OPEN,
        or refuse the client and close the connection. In OPEN, where admission is not checked, it replaces name and
        identity, ends the subscriptions that the new identity may not have, and sends `welcome` again."""
        if message.version != VERSION:
            text = f"protocol version {message.version} is not supported; use version {VERSION}"
            self._refuse(connection, errors.UNSUPPORTED_VERSION, text, CloseCode.BAD_MESSAGE, "bad_message")
            return
        if len(message.client.encode()) > self._config.max_name:
            text = f"client has more than {self._config.max_name} bytes in UTF-8"
            self._refuse(connection, errors.BAD_MESSAGE, text, CloseCode.BAD_MESSAGE, "bad_message")
            return
        if connection.state is State.OPENING and not self._admit(connection):
            return
        access = self._identities.authenticate(connection, message)
        if isinstance(access, Denial):
            self._refuse(connection, REFUSALS[access.kind][0], access.text, REFUSALS[access.kind][1], access.kind)
            return
        refusal = self._subscriptions.set_access(connection, access)
        if refusal is not None:
            self._refuse(connection, errors.OVERLOADED, refusal, CloseCode.TRY_ANOTHER, "refused")
            return
        self._rates.identify(connection)
        connection.client = message.client
        connection.remote = ""
        connection.token = None
        if connection.state is State.OPENING:
            connection.state = State.OPEN
            self.clients += 1
            self._rebalancer.add(connection, message.moves)
        elif access is not None:
            self._subscriptions.drop_forbidden(connection, access)
        self._schedule_heartbeat(connection)
        self._delivery.write(connection, self._gate.welcome(connection.format))

    def _admit(self, connection: ClientConnection) -> bool:
        """Return whether the edge accepts the client. If not, begin to close the connection."""
        refusal = self._gate.refusal(len(self.table))
        if refusal is not None:
            self.close(connection, refusal[0], "refused", refusal[1])
        return refusal is None

    # ---- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Handle the timers that are due. Begin to close connections that sent no `connect` in time, those with expired
        tokens, and HTTP polls and publications that waited for a heartbeat interval. Abort those whose closing
        handshake took too long. Ping silent clients and end dead ones."""
        if self._ticked_at is not None and self.now - self._ticked_at > STALL_SECONDS:
            self._woke_at = self.now
        self._ticked_at = self.now
        silent: dict[bytes, list[ClientConnection]] = {}
        for connection in self._wheel.expire(self.now):
            if connection.state is State.OPENING:
                # not the code for a client at fault: a crowded network or broker can be the reason as well
                text = f"no `connect` within {self._config.handshake:g} s"
                self.close(connection, CloseCode.TRY_ANOTHER, "handshake", text)
            elif connection.state is State.CLOSING:
                self._finish(connection, abort=True)
            elif self._check_heartbeat(connection):  # OPEN: a connection in GONE has no timer
                silent.setdefault(connection.format.ping, []).append(connection)
        for ping, connections in silent.items():
            self._delivery.write_to_all(connections, ping)

    def _check_heartbeat(self, connection: ClientConnection) -> bool:
        """Return whether to ping the OPEN connection, whose timer is due. Close it if its token has expired (and notify
        it before that), end it if it is dead, and otherwise set its next timer. One that waits at a rate counts as
        heard, and gets the error `rate_limited` again."""
        if self._identities.notify_expiring(connection):
            text = "the token has expired; connect with a new one"
            self.close(connection, CloseCode.TOKEN_EXPIRED, "token_expired", text)
            return False
        meter = connection.meter
        if meter is not None and meter.waits_for is not None:  # its socket is not read
            connection.heard_at = self.now
            self._rates.remind(connection, meter)
        if connection.format.one_way:
            return self._check_one_way(connection)
        silent = self.now - max(connection.heard_at, self._woke_at)
        if silent >= 2 * self._config.heartbeat:
            self._end_dead(connection, silent)
            return False
        self._schedule_heartbeat(connection)
        return silent >= self._config.heartbeat

    def _check_one_way(self, connection: ClientConnection) -> bool:
        """Return whether to ping an OPEN connection of HTTP. End it if its transport was full for two intervals. If an
        interval is over since it was heard, close a poll or a publication, and count a stream as heard and ping it."""
        queue, heartbeat = connection.queue, self._config.heartbeat
        if queue is not None and self.now - max(queue.since, self._woke_at) >= 2 * heartbeat:
            self._end_dead(connection, self.now - queue.since)
            return False
        is_due = self.now - connection.heard_at >= heartbeat
        if is_due and connection.format.once:
            code = CloseCode.TRY_ANOTHER if isinstance(connection.format, AnswerFormat) else CloseCode.NORMAL
            self.close(connection, code, "request", f"nothing came within {heartbeat:g} s")
            return False
        if is_due:
            connection.heard_at = self.now
        self._schedule_heartbeat(connection)
        return is_due

    def _end_dead(self, connection: ClientConnection, silent: float) -> None:
        """Close the socket of a dead connection without a close frame, which its client would not read. Count and log
        that. `silent` is the seconds since it was last heard, or since this process woke up if that is later; for
        HTTP, since its transport was full."""
        self._count("heartbeat")
        fields = {**log_fields(connection), "silent_seconds": round(silent, 3)}
        self._delivery.emit(Note("info", "dead_client", fields, connection.number))
        self._delivery.drop_batches(connection)
        self._leave(connection)
        self._finish(connection, abort=True)

    def _schedule_heartbeat(self, connection: ClientConnection) -> None:
        """Set the timer of an OPEN connection for its next ping, its death, the notice before its token expires or the
        expiry, whichever is first."""
        heard_at = max(connection.heard_at, self._woke_at)
        intervals = 1 if self.now - heard_at < self._config.heartbeat else 2
        due = heard_at + intervals * self._config.heartbeat
        access = connection.access
        if access is not None and access.expires_at is not None:
            due = min(due, access.expires_at if access.notice_at is None else access.notice_at)
        self._wheel.schedule(connection, due)

    def close_revoked(self) -> None:
        """Begin to close the OPEN connections whose tokens were revoked, each with an `error`, and log them."""
        for connection in self.open_connections():
            if self._identities.is_revoked(connection):
                self._identities.record_revoked(connection)
                text = "the token was revoked"
                self._refuse(connection, errors.UNAUTHENTICATED, text, CloseCode.UNAUTHENTICATED, "revoked")


def log_fields(connection: ClientConnection) -> dict[str, object]:
    """Return the fields that name the connection in a log line: client id and number. The process that has the socket
    adds the address."""
    return {"client": connection.client, "connection": connection.number}
