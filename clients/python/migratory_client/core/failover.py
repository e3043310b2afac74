"""Failover, for `ClientCore`: which server a client connects to next and when, after failures and when its broker asks
it to move.

`LinkState` is the state of one connection, `ReconnectCounter` counts the changes of broker by cause.
"""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from migratory_protocol.errors import FATAL, SAME_BROKER
from migratory_protocol.messages import Drain, Server

from migratory_client.core.events import Cause
from migratory_client.core.servers import ServerPool
from migratory_client.core.settings import Settings

_MOVE_SHARE = 0.9
"""The fraction of a move's period within which the client dials. The rest is left for connecting."""

_MAX_CHANGE_TIMES = 16
"""The number of most recent changes of broker whose times are stored. A broker treats clients with more recent changes
alike."""


class LinkState:
    """The state of one client link, from the attempt to connect until its end. All times are of the core's clock, in
    seconds. The attempt fails at `welcome_deadline` if no `welcome` has arrived."""

    __slots__ = (
        "broker_error", "heartbeat", "last_heard", "move_cause", "number", "opened_at", "ping_at", "url",
        "welcome_deadline",
    )  # fmt: skip

    def __init__(self, number: int, url: str, welcome_deadline: float) -> None:
        self.number = number
        self.url = url
        self.welcome_deadline = welcome_deadline
        self.last_heard = 0.0
        self.heartbeat = inf  # seconds between two pings
        self.ping_at = inf
        self.opened_at = 0.0  # when `welcome` arrived
        self.broker_error = ""  # the error that the broker sent before it closed the connection
        self.move_cause: Cause | None = None  # the broker asked for a move: "drained", it leaves; "moved", it stays

    def is_silent(self, now: float) -> bool:
        """Return whether the broker counts as dead: nothing was received for two heartbeat intervals. Never before
        `welcome`, which gives the interval."""
        return self.last_heard + 2 * self.heartbeat <= now


class ReconnectCounter:
    """The number of changes of broker, by cause, and the times of the most recent ones."""

    __slots__ = ("_times", "broken", "drained", "moved")

    def __init__(self) -> None:
        self.broken = self.drained = self.moved = 0
        self._times: tuple[float, ...] = ()

    def add(self, cause: Cause, now: float) -> None:
        """Count a change of broker for `cause`, and record its time."""
        setattr(self, cause, getattr(self, cause) + 1)
        self._times = (*self._times[1 - _MAX_CHANGE_TIMES :], now)

    def count_since(self, time: float) -> int:
        """Return the number of changes of broker at `time` or later, at most `_MAX_CHANGE_TIMES`."""
        return sum(at >= time for at in self._times)

    @property
    def total(self) -> int:
        """The number of changes so far, for any cause."""
        return self.broken + self.drained + self.moved

    def by_cause(self) -> dict[Cause, int]:
        """Return the number of changes of broker so far, by cause."""
        return {"broken": self.broken, "drained": self.drained, "moved": self.moved}


class Failover:
    """The schedule of connection attempts of one client. `next_attempt` is the time of the next one, infinity when none
    is scheduled. `servers` chooses the server."""

    __slots__ = ("_move_targets", "_penalty", "_random", "_settings", "next_attempt", "servers")

    def __init__(self, servers: tuple[Server, ...], random: Callable[[], float], settings: Settings) -> None:
        self._random = random
        self._settings = settings
        self.servers = ServerPool(servers, settings)
        self.next_attempt = inf
        self._move_targets: dict[str, Server] = {}  # servers that the current broker proposed and that are untried
        self._penalty = 0  # consecutive short-lived links that the client itself caused

    def plan_move(self, link: LinkState, message: Drain, now: float) -> list[str]:
        """Schedule the move that the broker of the current `link` asks for: at a random time within `_MOVE_SHARE` of
        the message's period, or at an earlier time that is scheduled already. Return one line of text for each proposed
        server that is refused and was not reported before.

        With `closes` the broker leaves: blacklist it, and move to one of the proposed servers, or else to any other.
        Otherwise the broker rebalances: move only to a server that it proposes, with another URL and a weight above 0,
        and schedule nothing without one. Ignore such a request from a broker that is leaving.
        """
        if link.move_cause == "drained" and not message.closes:
            return []
        proposed, problems = self.servers.parse(message.servers, link.url)
        self._move_targets = {server.url: server for server in proposed if server.url != link.url and server.weight > 0}
        if message.closes:
            link.move_cause = "drained"
            if self._was_stable(link, now):
                self.servers.reset_rounds()
            self.servers.avoid(link.url, now)
        elif self._move_targets:
            link.move_cause = "moved"
        else:
            return problems
        delay = self._random() * max(message.period, 0.0) * _MOVE_SHARE
        self.next_attempt = min(self.next_attempt, now + delay)
        return problems

    def pick_server(self, current: LinkState | None, now: float) -> str | None:
        """Cancel the next attempt, and return the URL to try now, which is never that of the link `current`: that of a
        server which a broker proposed for a move, or else of any server. A proposed server is used once. Return None
        when no other server accepts clients (weight above 0)."""
        self.next_attempt = inf
        exclude = "" if current is None else current.url
        url = self.servers.pick(now, self._random, exclude, tuple(self._move_targets.values()))
        if url is not None:
            self._move_targets.pop(url, None)
        return url

    def cancel_attempt(self) -> None:
        """Cancel the next attempt and forget the servers that a broker proposed for a move."""
        self.next_attempt = inf
        self._move_targets.clear()

    def attempt_failed(self, current: LinkState | None, now: float) -> None:
        """Schedule the next attempt, after a backoff, because one has failed. If it was a move for balance and no
        proposed server is left, end the move instead: the client stays with the link `current`, and nothing is
        scheduled."""
        if current is not None and current.move_cause == "moved" and not self._move_targets:
            current.move_cause = None
        else:
            self.schedule_retry(now)

    def link_ended(self, link: LinkState, code: int, now: float) -> None:
        """Cancel the next attempt and the proposed servers, after the current link ended with the close code `code`.
        Reset the backoff after a stable link. After a shorter one that the client itself caused (`FATAL`,
        `SAME_BROKER`), make the following waits longer. The caller schedules the reconnect."""
        self.cancel_attempt()
        if self._was_stable(link, now):
            self.servers.reset_rounds()
            self._penalty = 0
        elif code in FATAL or code in SAME_BROKER:
            self._penalty += 1

    def schedule_retry(self, now: float, max_delay: float = inf) -> None:
        """Set the time of the next attempt: after a random backoff, at most `max_delay` seconds."""
        self.next_attempt = now + min(self.servers.backoff(self._random(), self._penalty), max_delay)

    def _was_stable(self, link: LinkState, now: float) -> bool:
        """Return whether the link was up for `Settings.stable_after` seconds."""
        return now - link.opened_at >= self._settings.stable_after
