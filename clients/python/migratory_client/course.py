"""Where a client goes next, and when: attempts after a failure, and moves that its broker asks for."""

from __future__ import annotations

from collections.abc import Callable
from math import inf

from migratory_protocol.errors import FATAL, SAME_BROKER
from migratory_protocol.messages import Drain, Server

from migratory_client.links import Link
from migratory_client.servers import ServerList
from migratory_client.settings import Settings

_MOVE_SHARE = 0.9  # of the period of a move: the rest is left for connecting


class Course:
    """`at` is the moment of the next attempt, infinity while none is wanted."""

    __slots__ = ("_named", "_penalty", "_random", "_settings", "at", "servers")

    def __init__(self, servers: tuple[Server, ...], random: Callable[[], float], settings: Settings) -> None:
        self._random = random
        self._settings = settings
        self.servers = ServerList(servers, settings)
        self.at = inf
        self._named: dict[str, Server] = {}  # where the serving broker wants this client to go; not tried yet
        self._penalty = 0  # short-lived links that were our own fault, in a row

    def asked(self, link: Link, message: Drain, now: float) -> list[str]:
        """The broker of `link`, which serves, asks for a move: because it leaves, or for balance. Who is asked for
        balance goes to a server that was named, or stays. Returns what is malformed among them."""
        if link.asked == "drained" and not message.closes:
            return []
        named, problems = self.servers.read(message.servers)
        self._named = {server.url: server for server in named if server.url != link.url and server.weight > 0}
        if message.closes:
            link.asked = "drained"
            if self.stood(link, now):
                self.servers.succeeded()
            self.servers.avoid(link.url, now)
        elif self._named:
            link.asked = "moved"
        else:
            return problems
        self.at = min(self.at, now + self._random() * max(message.period, 0.0) * _MOVE_SHARE)
        return problems

    def next(self, current: Link | None, now: float) -> str | None:
        """The server to try now; while a link serves, any but its own. None when none takes clients."""
        self.at = inf
        but = "" if current is None else current.url
        url = self.servers.pick(now, self._random, but, tuple(self._named.values()))
        if url is not None:
            self._named.pop(url, None)
        return url

    def arrived(self) -> None:
        """A broker said welcome."""
        self.at = inf
        self._named.clear()

    def failed(self, current: Link | None, now: float) -> None:
        """The attempt came to nothing: there is another one, unless the client may as well stay where it is."""
        if current is not None and current.asked == "moved" and not self._named:
            current.asked = None
        else:
            self.retry(now)

    def ended(self, link: Link, code: int, now: float) -> None:
        """The link that served has ended."""
        self.arrived()
        if self.stood(link, now):
            self.servers.succeeded()
            self._penalty = 0
        elif code in FATAL or code in SAME_BROKER:
            self._penalty += 1

    def retry(self, now: float, at_most: float = inf) -> None:
        self.at = now + min(self.servers.wait(self._random(), self._penalty), at_most)

    def stood(self, link: Link, now: float) -> bool:
        return now - link.opened >= self._settings.stable
