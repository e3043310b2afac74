"""The client core, for drivers: the state machine of one client (docs/reference/protocol.md).

    core = ClientCore(servers, random, client="c1", publisher="p1")     # servers: parse_servers([...])[0]
    for effect in core.step(event, now): ...                            # events and effects: events.py
    ... step(Tick(), now) at core.deadline at the latest

The core has no socket, clock or thread. Time is an argument, randomness is a function given at construction, and a
driver does the I/O: `migratory_client.driver` on asyncio, or the load generator, or the simulation. The states:

    closed ──Open──> dialling ──Connected──> connecting ──welcome──> serving
                     ^    │ Disconnected,       │ Disconnected,         │ Disconnected,
                     time │ timeout             │ timeout               │ silence
                     └─ waiting <───────────────┴───────────────────────┘

`Close` leads from every state to closed. With `Settings.request_token`, a client that is connected stays in dialling
until its `Token` has come. A broker that refuses the client's identity for good (close code 4001) closes the core,
unless another one serves it.

While serving, a broker may ask for a move, because it leaves or has too many clients. The core then opens a second
link. At its `welcome` the second link becomes the current one and the first the *leaving* one, which still delivers
until every subscription has its receipt on the current link: make before break.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import assert_never

from migratory_protocol import errors
from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK, Codec
from migratory_protocol.errors import FATAL, SAME_BROKER, CloseCode
from migratory_protocol.messages import BrokerMessage, Message, Server

from migratory_client.core import events as ev
from migratory_client.core.events import Cause, Effect, Event
from migratory_client.core.failover import Failover, LinkState, ReconnectCounter
from migratory_client.core.links import close_reason
from migratory_client.core.publishing import Publisher
from migratory_client.core.servers import ServerPool
from migratory_client.core.settings import DEFAULTS, Settings
from migratory_client.core.subscriptions import SubscribeRequests, TopicStreams

_NO_CLOSE_FRAME = 1006
"""The close code of a connection that ended without a close frame (RFC 6455, 7.4.1)."""


class ClientCore:
    """The state machine of one client. It needs a `Tick` at `deadline`, which is infinity while nothing is scheduled.
    Nothing is due before `deadline`; a tick that finds nothing due only computes a later one."""

    __slots__ = (
        "_candidate", "_client", "_codec", "_current", "_failover", "_last_link", "_leaving", "_lost_at",
        "_max_payload", "_random", "_ready_pending", "_renewing", "_requests", "_settings", "_token", "closed",
        "deadline", "publisher", "reconnect_counter",
    )  # fmt: skip

    def __init__(
        self,
        servers: tuple[Server, ...],
        random: Callable[[], float],
        *,
        client: str = "",
        publisher: str = "",
        token: str | None = None,
        settings: Settings = DEFAULTS,
        codec: Codec = MSGPACK,
    ) -> None:
        """Create a closed client. `random` returns numbers r with 0 <= r < 1. `client` is the client's name in brokers'
        logs. `token` is sent to each broker, unless `Settings.request_token` has the core ask for one.

        `publisher` must be unique in the cluster within the duplicate window: use a new one for every core, because
        only this object knows which ids it has issued. The driver must encode the messages of `Send` with `codec`, on
        which the size of a publication depends.

        Raise ValueError when no server has a weight above 0.
        """
        if not any(server.weight > 0 for server in servers):
            raise ValueError("no usable server: give at least one ws:// or wss:// URL with a weight above 0")
        self._settings = settings
        self._random = random
        self._client = client
        self._token = token
        self._failover = Failover(servers, random, settings)
        self._requests = SubscribeRequests(settings)
        self._codec = codec
        self.publisher = Publisher(publisher, settings, codec)
        self.closed = True
        self.deadline = inf
        self.reconnect_counter = ReconnectCounter()
        self._max_payload = settings.max_payload
        self._last_link = 0
        self._candidate: LinkState | None = None
        self._current: LinkState | None = None
        self._leaving: LinkState | None = None
        self._ready_pending = False  # `Ready` is due once all receipts have arrived
        self._lost_at: float | None = None  # when the last current link was lost
        self._renewing = 0  # the link for which a new token was requested, 0: none

    def rename(self, client: str, publisher: str) -> None:
        """Replace the names of client and publisher, as after a fork. The new publisher's ids start at 1. Call this
        only while closed."""
        self._client = client
        self.publisher = Publisher(publisher, self._settings, self._codec)

    # ---- events ------------------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """Handle one event at time `now`, and set `deadline`. Return the effects, to be carried out in order. Events
        about links that have ended have no effect."""
        out: list[Effect] = []
        match event:
            case ev.Received():  # first, because it is the most frequent
                self._handle_received(event.link, event.messages, now, out)
            case ev.Submit() if self.closed:
                out.append(ev.PublishFailed(event.ticket, "closed", "the client is closed"))
            case ev.Submit():
                self.publisher.submit(event, self._current_number(), self._max_payload, now, out)
                self._advance_deadline(self.publisher.deadline)
            case ev.Tick():
                self._handle_tick(now, out)
            case ev.SubscribeTopic():
                self._requests.subscribe(event, self._current_number(), now, out)
                self._advance_deadline(self._requests.deadline)
            case ev.UnsubscribeTopic():
                self._requests.unsubscribe(event, self._current_number(), out)
                self._check_ready(now, out)
            case ev.GiveUp():
                self.publisher.give_up(event.ticket, self._current_number(), now, out)
                self._advance_deadline(self.publisher.deadline)
            case ev.Open():
                self._open(now, out)
            case ev.Close():
                self._close(out)
            case ev.Connected():
                self._handle_connected(event.link, now, out)
            case ev.Token():
                self._send_connect(event.link, event.token, now, out)
            case ev.TokenFailed():
                self._handle_token_failed(event, now, out)
            case ev.Disconnected():
                link = self._find(event.link)
                if link is not None:
                    self._link_ended(link, event.code, event.reason, now, out)
            case _:  # pragma: no cover - the type checker proves that it is unreachable
                assert_never(event)
        return out

    @property
    def connected(self) -> bool:
        """True while a broker serves this client: a link is up."""
        return self._current is not None

    @property
    def reconnects(self) -> int:
        """The number of changes of broker so far, for any cause."""
        return self.reconnect_counter.total

    @property
    def servers(self) -> ServerPool:
        """The servers of this client, from its configuration and from brokers."""
        return self._failover.servers

    @property
    def subscriptions(self) -> TopicStreams:
        """The streams of the topics that this client is subscribed to, and the positions of those that it left."""
        return self._requests.streams

    def _handle_received(self, number: int, messages: list[BrokerMessage], now: float, out: list[Effect]) -> None:
        """Handle messages that arrived on a link. Ignore an unknown link, and the rest of the messages when one of them
        ends the link."""
        link = self._find(number)
        if link is None:
            return
        link.last_heard = now
        active = self.subscriptions.active
        for message in messages:
            if type(message) is Message:
                stream = active.get(message.topic)
                if stream is None or not stream.accept_message(number, message, out):
                    self.subscriptions.dropped += 1
            else:
                self._handle_control(link, message, now, out)
                if self._find(number) is None:
                    return  # the message ended the link: the rest of the frame is ignored

    def _handle_control(self, link: LinkState, message: BrokerMessage, now: float, out: list[Effect]) -> None:
        """Handle a message of a broker that is not a publication."""
        match message:
            case wire.Ack():
                self.publisher.accept_ack(message, self._current_number(), now, out)
            case wire.Nack():
                self.publisher.accept_nack(message, self._current_number(), now, out)
                self._advance_deadline(self.publisher.deadline)
            case wire.Subscribed():
                self._requests.accept_receipts(link.number, message, now, out)
                self._advance_deadline(self._requests.retry_at)
                self._check_ready(now, out)
            case wire.Welcome():
                self._handle_welcome(link, message, now, out)
            case wire.Servers():
                self._learn_servers(message.servers, link, out)
            case wire.Drain():
                self._handle_drain(link, message, now, out)
            case wire.TokenExpiring():
                self._handle_token_expiring(link, message, out)
            case wire.Error():
                self._handle_error(link, message, now, out)
            case _:
                pass  # pong and unsubscribed: they only show that the broker is alive

    def _open(self, now: float, out: list[Effect]) -> None:
        if self.closed:
            self.closed = False
            self._dial(now, out)

    def _close(self, out: list[Effect]) -> None:
        """Disconnect all links, end all subscriptions without an effect, remembering their positions, and end all
        pending publications with `PublishFailed`. Afterwards nothing is scheduled."""
        self.closed = True
        for link in (self._candidate, self._leaving, self._current):
            if link is not None:
                self._disconnect(link, out, bye=link is not self._candidate)
        self._candidate = self._leaving = self._current = None
        for topic in list(self.subscriptions.active):
            self.subscriptions.remove(topic, None)
        self.publisher.fail_all("closed", "the client was closed; the publication may still appear", out)
        self._failover.cancel_attempt()
        self._requests.deadline = self.deadline = inf
        self._ready_pending = False
        self._lost_at = None

    def _handle_connected(self, number: int, now: float, out: list[Effect]) -> None:
        """Send `connect` on the link that is being connected, or request a token for it first. Ignore any other
        link."""
        link = self._candidate
        if link is None or link.number != number:
            return
        link.last_heard = now
        if self._settings.request_token:
            out.append(ev.RequestToken(number))
        else:
            self._send_connect(number, self._token, now, out)

    def _handle_token_expiring(self, link: LinkState, message: wire.TokenExpiring, out: list[Effect]) -> None:
        """Request a new token for the current link, or report a `Problem` if the client has a fixed one. Ignored for
        other links: one that is being left ends before."""
        if link is not self._current:
            return
        if self._settings.request_token:
            self._renewing = link.number
            out.append(ev.RequestToken(link.number))
        else:
            text = f"the token expires in {message.seconds:g} s; a function as `token` would renew it"
            out.append(ev.Problem("token_expiring", text))

    def _handle_token_failed(self, event: ev.TokenFailed, now: float, out: list[Effect]) -> None:
        """End the link that is being connected, if it is the one that asked for the token, and schedule another
        attempt. The current link, if it asked for a new token, stays and ends with its old one. Report a problem in
        both cases, and ignore any other link."""
        link = self._candidate
        if link is not None and link.number == event.link:
            out.append(ev.Problem("no_token", event.reason))
            self._disconnect(link, out)
            self._attempt_failed(now)
        elif event.link == self._renewing == self._current_number():
            # the link ends with its token, and the next one asks again
            self._renewing = 0
            out.append(ev.Problem("no_token", event.reason))

    def _send_connect(self, number: int, token: str | None, now: float, out: list[Effect]) -> None:
        """Send `connect` with the token on the link that is being connected, with the number of recent changes of
        broker, or on the current link if it awaits a new token. Ignore any other link."""
        if number == self._renewing == self._current_number():
            self._renewing = 0
            self.publisher.access += 1
            out.append(ev.Send(number, [wire.Connect(wire.VERSION, self._client, token)]))
        elif self._candidate is not None and self._candidate.number == number:
            changes = self.reconnect_counter.count_since(now - self._settings.recent_changes)
            if self._current is not None:
                changes += 1  # the move that this link completes
            out.append(ev.Send(number, [wire.Connect(wire.VERSION, self._client, token, changes)]))

    def _handle_tick(self, now: float, out: list[Effect]) -> None:
        """Do what is due at `now`: end links on which an answer or the heartbeat is overdue, send a ping, dial, request
        topics again, and expire or resend publications. Nothing happens while closed."""
        if self.closed:
            return
        current, candidate = self._current, self._candidate
        if candidate is not None and candidate.welcome_deadline <= now:
            self._disconnect(candidate, out, abort=True)
            limit = self._settings.connect_timeout
            self._link_ended(candidate, CloseCode.TRY_ANOTHER, f"no welcome within {limit:g} s", now, out)
        if current is not None:
            if current.is_silent(now):
                self._disconnect(current, out, abort=True)
                reason = f"nothing received for {2 * current.heartbeat:g} s"
                self._link_ended(current, _NO_CLOSE_FRAME, reason, now, out)
            elif self._requests.deadline <= now:
                self._disconnect(current, out, abort=True)
                self._link_ended(current, CloseCode.TRY_ANOTHER, "a subscribe request was not answered", now, out)
            elif current.ping_at <= now:
                out.append(ev.Send(current.number, [wire.Ping()]))
                current.ping_at = now + current.heartbeat
        if self._candidate is None and self._failover.next_attempt <= now:
            self._dial(now, out)
        self._requests.retry(self._current_number(), now, out)
        self.publisher.tick(self._current_number(), now, out)
        self._recompute_deadline()

    # ---- messages ----------------------------------------------------------------------------------------------

    def _handle_welcome(self, link: LinkState, message: wire.Welcome, now: float, out: list[Effect]) -> None:
        """Make the link that was being connected the current one, and the one before it the leaving one. An earlier
        move that is not finished ends. Report `LinkUp`, request all topics and send all pending publications on the new
        link. Ignore a `welcome` on any other link."""
        if link is not self._candidate:
            return
        link.opened_at = now
        link.heartbeat = message.heartbeat if message.heartbeat > 0 else inf
        link.ping_at = now + self._random() * link.heartbeat if link.heartbeat < inf else inf
        self._max_payload = message.limits.payload
        self.publisher.duplicate_window = message.duplicate_window or inf
        self._learn_servers(message.servers, link, out)
        self._finish_move(now, out)  # this move began before the previous one had all its receipts
        self._leaving, self._current, self._candidate = self._current, link, None
        self._failover.cancel_attempt()
        out.append(ev.LinkUp(link.number, link.url, message.cluster, message.broker, message.incarnation))
        self._ready_pending = True
        self._requests.restart(link.number, now, out)
        self.publisher.resend_all(link.number, self._max_payload, now, out)
        self._check_ready(now, out)
        self._recompute_deadline()

    def _handle_error(self, link: LinkState, message: wire.Error, now: float, out: list[Effect]) -> None:
        """Handle an error that a broker sent: pause publishing at `rate_limited`, and end the subscriptions of the
        request that it refuses. Report an error that ends no subscription as a problem, except a refused identity that
        ends the link: the end of the link reports that."""
        if message.closes:
            link.broker_error = f"{message.code}: {message.text}"
        if message.code == errors.RATE_LIMITED and link is self._current:
            self.publisher.pause(message.retry_after or 0.0, now)
            self._recompute_deadline()
        refused = message.code == errors.UNAUTHENTICATED and message.closes  # reported as the link ends
        if not self._requests.accept_error(message, out) and not refused:
            out.append(ev.Problem(message.code, message.text, message.closes))
        self._check_ready(now, out)

    def _handle_drain(self, link: LinkState, message: wire.Drain, now: float, out: list[Effect]) -> None:
        if link is self._current:
            self._report_malformed(self._failover.plan_move(link, message, now), out)
            self._recompute_deadline()

    # ---- links -------------------------------------------------------------------------------------------------

    def _find(self, number: int) -> LinkState | None:
        """Return the link with this number, or None when it has ended."""
        for link in (self._current, self._candidate, self._leaving):
            if link is not None and link.number == number:
                return link
        return None

    def _current_number(self) -> int:
        """Return the number of the current link, 0 without one."""
        return 0 if self._current is None else self._current.number

    def _dial(self, now: float, out: list[Effect]) -> None:
        """Begin to connect to the next server, and never to the current link's. If no server accepts clients, schedule
        another try, and report that as a problem unless a broker serves the client."""
        url = self._failover.pick_server(self._current, now)
        if url is None:
            if self._current is None:
                text = "all servers of the list have weight 0, so none takes clients; the client retries"
                out.append(ev.Problem("no_servers", text))
            self._failover.schedule_retry(now, self._settings.backoff_cap)
            self._advance_deadline(self._failover.next_attempt)
            return
        self._last_link += 1
        self._candidate = LinkState(self._last_link, url, now + self._settings.connect_timeout)
        self._advance_deadline(self._candidate.welcome_deadline)
        out.append(ev.Dial(self._last_link, url))

    def _link_ended(self, link: LinkState, code: int, reason: str, now: float, out: list[Effect]) -> None:
        """Handle the end of a link with close code `code`. For the leaving link, only report `LinkDown` and count the
        move.

        If the broker refused the client's identity, and no other broker serves the client, close it. Otherwise
        blacklist the server, unless `code` is in `SAME_BROKER`. Report the failed attempt, or the end of the current
        link, and schedule the next attempt unless one is under way.
        """
        reason = link.broker_error or reason or close_reason(code) or "the connection was lost"
        if link is self._leaving:
            self._count_move(link, now, out)
            return
        if code == CloseCode.UNAUTHENTICATED and (link is self._current or self._current is None):
            self._end_refused(f"{link.url}: {reason} ({code})", out)
            return
        if code not in SAME_BROKER:
            self.servers.avoid(link.url, now)
        if link is self._candidate:
            fatal = code in FATAL
            suffix = "" if code == _NO_CLOSE_FRAME else f" ({code})"
            out.append(ev.Problem("connect_failed", f"{link.url}: {reason}{suffix}", fatal))
            self._attempt_failed(now)
            return
        self._failover.link_ended(link, code, now)
        self._finish_move(now, out)  # half moved, topics on either link: start again from the positions
        self._current = None
        self._requests.deadline = inf
        self._lost_at = now if self._lost_at is None else self._lost_at
        cause: Cause = "drained" if code == CloseCode.DRAINING or link.move_cause == "drained" else "broken"
        self.reconnect_counter.add(cause, now)
        out.append(ev.LinkDown(link.number, code, reason, cause))
        if self._candidate is None:
            self._failover.schedule_retry(now)
            self._advance_deadline(self._failover.next_attempt)

    def _end_refused(self, reason: str, out: list[Effect]) -> None:
        """Report that the client's identity is refused for good, by every broker. End all subscriptions and pending
        publications with that refusal, and close the client."""
        code = errors.UNAUTHENTICATED
        out.append(ev.Problem(code, reason, True))
        for topic in self.subscriptions.active:
            out.append(ev.SubscribeRefused(topic, code, reason))
        self.publisher.fail_all(code, f"{reason}; the publication may still appear", out)
        self._close(out)

    def _attempt_failed(self, now: float) -> None:
        """Forget the link that was being connected, and schedule the next attempt. After the last proposed server of a
        move for balance, schedule none."""
        self._candidate = None
        self._failover.attempt_failed(self._current, now)
        self._advance_deadline(self._failover.next_attempt)

    def _finish_move(self, now: float, out: list[Effect]) -> None:
        """Disconnect the leaving link and count the move. Without a leaving link: nothing."""
        if self._leaving is not None:
            self._disconnect(self._leaving, out, bye=True)
            self._count_move(self._leaving, now, out)

    def _count_move(self, link: LinkState, now: float, out: list[Effect]) -> None:
        """Forget the leaving `link`, count a change of broker by the cause of the move, and report `LinkDown` with
        `replaced`."""
        self._leaving = None
        cause: Cause = link.move_cause or "drained"
        self.reconnect_counter.add(cause, now)
        code = CloseCode.DRAINING if cause == "drained" else CloseCode.NORMAL
        out.append(ev.LinkDown(link.number, code, "moved away", cause, True))

    def _disconnect(self, link: LinkState, out: list[Effect], *, abort: bool = False, bye: bool = False) -> None:
        """Let the driver end the link; with `bye`, say so to the broker first. With `abort`, end it without a closing
        handshake."""
        if bye:
            out.append(ev.Send(link.number, [wire.Bye()]))
        out.append(ev.Disconnect(link.number, abort))

    def _check_ready(self, now: float, out: list[Effect]) -> None:
        """Once every subscription was answered on the current link, end the wait for receipts, finish a move, and
        report `Ready`. While an answer is awaited, do nothing. If it was reported already, do not report it again."""
        if self.subscriptions.unanswered:
            return
        self._requests.deadline = inf
        if not self._ready_pending or self._current is None:
            return
        self._ready_pending = False
        seconds: float | None = None
        if self._leaving is not None:
            seconds = 0.0
            self._finish_move(now, out)
        elif self._lost_at is not None:
            seconds = now - self._lost_at
        self._lost_at = None
        out.append(ev.Ready(self._current.number, seconds))

    def _learn_servers(self, servers: list[Server], link: LinkState, out: list[Effect]) -> None:
        self._report_malformed(self.servers.learn(servers, link.url), out)

    def _report_malformed(self, problems: list[str], out: list[Effect]) -> None:
        out.extend(ev.Problem("bad_server", line) for line in problems)

    # ---- time --------------------------------------------------------------------------------------------------

    def _advance_deadline(self, time: float) -> None:
        self.deadline = min(self.deadline, time)

    def _recompute_deadline(self) -> None:
        deadline = min(self._requests.deadline, self.publisher.deadline)
        if self._current is not None:
            deadline = min(deadline, self._requests.retry_at)
        if self._candidate is None:
            deadline = min(deadline, self._failover.next_attempt)
        else:
            deadline = min(deadline, self._candidate.welcome_deadline)
        if self._current is not None:
            deadline = min(deadline, self._current.ping_at, self._current.last_heard + 2 * self._current.heartbeat)
        self.deadline = deadline
