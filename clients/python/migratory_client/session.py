"""The client core: which broker the client is with, and everything that every client does (docs/protocol.md).

    core = ClientCore(servers, random, client="c1", publisher="p1")     # servers: parse_servers([...])[0]
    for effect in core.step(event, now): ...                            # events and effects: events.py
    ... step(Tick(), now) at core.deadline at the latest

No socket, clock or thread: time is an argument, randomness the function given at construction, and all I/O is left to
whoever drives it (transport.py here, the load generator, the simulation). The states of a client:

    closed ──Open──> waiting ──time──> dialling ──Connected, Token──> greeting ──welcome──> serving
                        ^──────────────────┴────── Lost, time-out ───────┴──────Lost, silence──┘

While serving, a broker may ask for a move, because it leaves or has too many clients. That adds a second link that goes
the same way; at its welcome it becomes the serving one, and the old one *leaving*, which still delivers until every
subscription has its receipt on the new one: make before break.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf
from typing import assert_never

from migratory_protocol import messages as wire
from migratory_protocol.codec import MSGPACK, Codec
from migratory_protocol.errors import FATAL, SAME_BROKER, CloseCode
from migratory_protocol.messages import BrokerMessage, Message, Server

from migratory_client import events as ev
from migratory_client.asking import Asking
from migratory_client.course import Course
from migratory_client.events import Cause, Effect, Event
from migratory_client.farewells import farewell
from migratory_client.links import Changes, Link
from migratory_client.publishing import Publisher
from migratory_client.servers import ServerList
from migratory_client.settings import DEFAULTS, Settings
from migratory_client.subscriptions import Subscriptions


class ClientCore:
    """One client. `deadline` is when it wants a `Tick`: never later than needed, perhaps earlier."""

    __slots__ = (
        "_asking", "_candidate", "_client", "_codec", "_course", "_current", "_leaving", "_limit", "_links", "_lost_at",
        "_random", "_resuming", "_settings", "_token", "changes", "closed", "deadline", "publisher",
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
        """`random` gives numbers in 0..1, 1 excluded. `publisher` must be unique in the cluster within the duplicate
        window: a new one for every core that publishes, unless the old one's ids are continued by this very object.
        `codec` is what `Send` will be encoded with: how long a publication is depends on it.

        Raises ValueError when no server can ever be tried."""
        if not any(server.weight > 0 for server in servers):
            raise ValueError("no usable server: give at least one ws:// or wss:// URL with a weight above 0")
        self._settings = settings
        self._random = random
        self._client = client
        self._token = token
        self._course = Course(servers, random, settings)
        self._asking = Asking(settings)
        self._codec = codec
        self.publisher = Publisher(publisher, settings, codec)
        self.closed = True
        self.deadline = inf
        self.changes = Changes()
        self._limit = settings.max_payload
        self._links = 0  # numbers given
        self._candidate: Link | None = None
        self._current: Link | None = None
        self._leaving: Link | None = None
        self._resuming = False  # `Ready` is owed
        self._lost_at: float | None = None  # when the last serving link was lost

    def rename(self, client: str, publisher: str) -> None:
        """From now on, while closed, this is another client and publisher: one whose message ids begin anew."""
        self._client = client
        self.publisher = Publisher(publisher, self._settings, self._codec)

    # ---- events ------------------------------------------------------------------------------------------------

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event; returns what is to be done, in order."""
        out: list[Effect] = []
        match event:
            case ev.Received():  # first, because most are
                self._received(event.link, event.messages, now, out)
            case ev.Submit() if self.closed:
                out.append(ev.Failed(event.ticket, "closed", "the client is closed"))
            case ev.Submit():
                self.publisher.offer(event, self._serving(), self._limit, now, out)
                self._arm(self.publisher.deadline)
            case ev.Tick():
                self._tick(now, out)
            case ev.WantTopic():
                self._asking.want(event, self._serving(), now, out)
                self._arm(self._asking.due)
            case ev.DropTopic():
                self._asking.drop(event, self._serving(), out)
                self._check_ready(now, out)
            case ev.GiveUp():
                self.publisher.give_up(event.ticket, self._serving(), now, out)
                self._arm(self.publisher.deadline)
            case ev.Open():
                self._open(now, out)
            case ev.Close():
                self._close(out)
            case ev.Connected():
                self._connected(event.link, now, out)
            case ev.Token():
                self._greet(event.link, event.token, now, out)
            case ev.NoToken():
                self._no_token(event, now, out)
            case ev.Lost():
                link = self._find(event.link)
                if link is not None:
                    self._gone(link, event.code, event.reason, now, out)
            case _:  # pragma: no cover - the type checker sees that there is none
                assert_never(event)
        return out

    @property
    def connected(self) -> bool:
        return self._current is not None

    @property
    def reconnects(self) -> int:
        """Changes of broker, whatever the cause."""
        return self.changes.total

    @property
    def servers(self) -> ServerList:
        return self._course.servers

    @property
    def subscriptions(self) -> Subscriptions:
        return self._asking.subscriptions

    def _received(self, number: int, messages: list[BrokerMessage], now: float, out: list[Effect]) -> None:
        link = self._find(number)
        if link is None:
            return
        link.heard = now
        active = self.subscriptions.active
        for message in messages:
            if type(message) is Message:
                subscription = active.get(message.topic)
                if subscription is None or not subscription.take(number, message, out):
                    self.subscriptions.dropped += 1
            else:
                self._other(link, message, now, out)
                if self._find(number) is None:
                    return  # it was hung up: what else came on it is not ours any more

    def _other(self, link: Link, message: BrokerMessage, now: float, out: list[Effect]) -> None:
        """Any message but a publication."""
        match message:
            case wire.Ack():
                self.publisher.answered(message, self._serving(), now, out)
            case wire.Nack():
                self.publisher.refused(message, self._serving(), now, out)
                self._arm(self.publisher.deadline)
            case wire.Subscribed():
                self._asking.answered(link.number, message, now, out)
                self._check_ready(now, out)
            case wire.Welcome():
                self._welcome(link, message, now, out)
            case wire.Servers():
                self._learn(message.servers, out)
            case wire.Drain():
                self._asked_to_move(link, message, now, out)
            case wire.Error():
                self._error(link, message, now, out)
            case _:
                pass  # pong and unsubscribed: that they came is all they say

    def _open(self, now: float, out: list[Effect]) -> None:
        if self.closed:
            self.closed = False
            self._dial(now, out)

    def _close(self, out: list[Effect]) -> None:
        self.closed = True
        for link in (self._candidate, self._leaving, self._current):
            if link is not None:
                self._hang_up(link, out, bye=link is not self._candidate)
        self._candidate = self._leaving = self._current = None
        for topic in list(self.subscriptions.active):
            self.subscriptions.drop(topic, None)
        self.publisher.fail_all("closed", "the client was closed; the publication may still appear", out)
        self._course.arrived()
        self._asking.due = self.deadline = inf
        self._resuming = False
        self._lost_at = None

    def _connected(self, number: int, now: float, out: list[Effect]) -> None:
        link = self._candidate
        if link is None or link.number != number:
            return
        link.heard = now
        if self._settings.asks_token:
            out.append(ev.AskToken(number))
        else:
            self._greet(number, self._token, now, out)

    def _no_token(self, event: ev.NoToken, now: float, out: list[Effect]) -> None:
        link = self._candidate
        if link is not None and link.number == event.link:
            out.append(ev.Problem("no_token", event.reason))
            self._hang_up(link, out)
            self._not_made(now)

    def _greet(self, number: int, token: str | None, now: float, out: list[Effect]) -> None:
        if self._candidate is not None and self._candidate.number == number:
            moves = self.changes.since(now - self._settings.lately)
            if self._current is not None:
                moves += 1  # the one that this link is for
            out.append(ev.Send(number, [wire.Connect(wire.VERSION, self._client, token, moves)]))

    def _tick(self, now: float, out: list[Effect]) -> None:
        if self.closed:
            return
        current, candidate = self._current, self._candidate
        if candidate is not None and candidate.until <= now:
            self._hang_up(candidate, out, abort=True)
            limit = self._settings.connect_timeout
            self._gone(candidate, CloseCode.TRY_ANOTHER, f"no welcome within {limit:g} s", now, out)
        if current is not None:
            if current.silent(now):
                self._hang_up(current, out, abort=True)
                self._gone(current, 1006, f"nothing heard for {2 * current.interval:g} s", now, out)
            elif self._asking.due <= now:
                self._hang_up(current, out, abort=True)
                self._gone(current, CloseCode.TRY_ANOTHER, "a subscribe request was not answered", now, out)
            elif current.ping_at <= now:
                out.append(ev.Send(current.number, [wire.Ping()]))
                current.ping_at = now + current.interval
        if self._candidate is None and self._course.at <= now:
            self._dial(now, out)
        self.publisher.tick(self._serving(), now, out)
        self._set_deadline()

    # ---- messages ----------------------------------------------------------------------------------------------

    def _welcome(self, link: Link, message: wire.Welcome, now: float, out: list[Effect]) -> None:
        if link is not self._candidate:
            return
        link.opened = now
        link.interval = message.heartbeat if message.heartbeat > 0 else inf
        link.ping_at = now + self._random() * link.interval if link.interval < inf else inf
        self._limit = message.limits.payload
        self._learn(message.servers, out)
        self._leave(now, out)  # moved on before the move before was finished
        self._leaving, self._current, self._candidate = self._current, link, None
        self._course.arrived()
        out.append(ev.LinkUp(link.number, link.url, message.cluster, message.broker, message.incarnation))
        self._resuming = True
        self._asking.ask(link.number, list(self.subscriptions.active.values()), now, out)
        self.publisher.resend_all(link.number, self._limit, now, out)
        self._check_ready(now, out)
        self._set_deadline()

    def _error(self, link: Link, message: wire.Error, now: float, out: list[Effect]) -> None:
        if message.closes:
            link.problem = f"{message.code}: {message.text}"
        if not self._asking.refused(message, out):
            out.append(ev.Problem(message.code, message.text, message.closes))
        self._check_ready(now, out)

    def _asked_to_move(self, link: Link, message: wire.Drain, now: float, out: list[Effect]) -> None:
        if link is self._current:
            self._report(self._course.asked(link, message, now), out)
            self._set_deadline()

    # ---- links -------------------------------------------------------------------------------------------------

    def _find(self, number: int) -> Link | None:
        for link in (self._current, self._candidate, self._leaving):
            if link is not None and link.number == number:
                return link
        return None

    def _serving(self) -> int:
        return 0 if self._current is None else self._current.number

    def _dial(self, now: float, out: list[Effect]) -> None:
        """Try the next server; while a link serves, any but its own."""
        url = self._course.next(self._current, now)
        if url is None:
            if self._current is None:
                out.append(ev.Problem("no_servers", "no server of the list takes clients; tried again later"))
            self._course.retry(now, self._settings.backoff_cap)
            self._arm(self._course.at)
            return
        self._links += 1
        self._candidate = Link(self._links, url, now + self._settings.connect_timeout)
        self._arm(self._candidate.until)
        out.append(ev.Dial(self._links, url))

    def _gone(self, link: Link, code: int, reason: str, now: float, out: list[Effect]) -> None:
        """`link` has ended, by itself or hung up. Decide what follows."""
        reason = link.problem or reason or farewell(code) or "the connection was lost"
        if link is self._leaving:
            self._left(link, now, out)
            return
        if code not in SAME_BROKER:
            self.servers.avoid(link.url, now)
        if link is self._candidate:
            fatal = code in FATAL
            said = "" if code == 1006 else f" ({code})"  # no close frame came: its code says nothing
            out.append(ev.Problem("connect_failed", f"{link.url}: {reason}{said}", fatal))
            self._not_made(now)
            return
        self._course.ended(link, code, now)
        self._leave(now, out)  # half moved: some topics are here, some there; begin anew from the positions
        self._current = None
        self._asking.due = inf
        self._lost_at = now if self._lost_at is None else self._lost_at
        cause: Cause = "drained" if code == CloseCode.DRAINING or link.asked == "drained" else "broken"
        self.changes.note(cause, now)
        out.append(ev.LinkDown(link.number, code, reason, cause))
        if self._candidate is None:
            self._course.retry(now)
            self._arm(self._course.at)

    def _not_made(self, now: float) -> None:
        """The attempt has failed."""
        self._candidate = None
        self._course.failed(self._current, now)
        self._arm(self._course.at)

    def _leave(self, now: float, out: list[Effect]) -> None:
        """Part from the link before, if it is there still."""
        if self._leaving is not None:
            self._hang_up(self._leaving, out, bye=True)
            self._left(self._leaving, now, out)

    def _left(self, link: Link, now: float, out: list[Effect]) -> None:
        self._leaving = None
        cause: Cause = link.asked or "drained"
        self.changes.note(cause, now)
        code = CloseCode.DRAINING if cause == "drained" else CloseCode.NORMAL
        out.append(ev.LinkDown(link.number, code, "moved away", cause, True))

    def _hang_up(self, link: Link, out: list[Effect], *, abort: bool = False, bye: bool = False) -> None:
        if bye:
            out.append(ev.Send(link.number, [wire.Bye()]))
        out.append(ev.HangUp(link.number, abort))

    def _check_ready(self, now: float, out: list[Effect]) -> None:
        if self.subscriptions.unanswered:
            return
        self._asking.due = inf
        if not self._resuming or self._current is None:
            return
        self._resuming = False
        seconds: float | None = None
        if self._leaving is not None:
            seconds = 0.0
            self._leave(now, out)
        elif self._lost_at is not None:
            seconds = now - self._lost_at
        self._lost_at = None
        out.append(ev.Ready(self._current.number, seconds))

    def _learn(self, servers: list[Server], out: list[Effect]) -> None:
        self._report(self.servers.learn(servers), out)

    def _report(self, problems: list[str], out: list[Effect]) -> None:
        out.extend(ev.Problem("bad_server", line) for line in problems)

    # ---- time --------------------------------------------------------------------------------------------------

    def _arm(self, moment: float) -> None:
        self.deadline = min(self.deadline, moment)

    def _set_deadline(self) -> None:
        deadline = min(self._asking.due, self.publisher.deadline)
        if self._candidate is None:
            deadline = min(deadline, self._course.at)
        else:
            deadline = min(deadline, self._candidate.until)
        if self._current is not None:
            deadline = min(deadline, self._current.ping_at, self._current.heard + 2 * self._current.interval)
        self.deadline = deadline
