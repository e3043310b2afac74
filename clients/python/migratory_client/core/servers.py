"""The server list, for `Failover`: the brokers' addresses, which of them to try next, and the backoff before an
attempt.

A server that failed is blacklisted for a while. When no server is left to try, the blacklist is emptied and a new
*round* begins. The backoff grows with the rounds and not with the attempts, so that a long list with one live broker at
its end is searched at a steady rate. Time and random numbers (0 <= r < 1) are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from migratory_protocol.messages import Server

from migratory_client.core.settings import Settings

_PORTS = {"ws": 80, "wss": 443}

_DEFAULT_WEIGHT = 100
"""The weight of a server that is given as a URL alone. Brokers' lists have the same default."""

_MAX_REPORTED = 100
"""The largest number of malformed entries that are remembered as reported. It bounds the memory if a broker keeps
sending new ones."""


def normalise_url(text: str) -> str:
    """Return the canonical form of a server's URL: no surrounding spaces, scheme and host in lower case, no default
    port, no slash at the end of the path.

    Raise ValueError, with the reason, when it is not a WebSocket URL, or has a user name, a fragment or white space
    inside.
    """
    url = text.strip()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"server {text[:100]!r}: {error}") from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError(f"server {text[:100]!r}: a URL that begins with ws:// or wss:// is needed{_suggestion(url)}")
    if not parts.hostname or port == 0:
        raise ValueError(f"server {text[:100]!r}: a host and, if given, a port from 1 to 65535 are needed")
    if parts.username is not None or parts.fragment or any(character.isspace() for character in url):
        raise ValueError(f"server {text[:100]!r}: a user name, a fragment or a space is not allowed")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    authority = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{authority}{parts.path.rstrip('/')}{query}"


def _suggestion(url: str) -> str:
    """Return ", such as" with a corrected URL for `127.0.0.1:8800` or an http:// URL, as the end of an error's text.
    Return "" for other text."""
    scheme, _, address = url.rpartition("://")
    authority = address.partition("/")[0]
    if scheme not in ("", "http", "https") or not authority or any(character.isspace() for character in authority):
        return ""
    return f", such as {'wss' if scheme == 'https' else 'ws'}://{authority[:100]}/ws"


def parse_servers(servers: Iterable[str | Server]) -> tuple[tuple[Server, ...], tuple[str, ...]]:
    """Return the distinct valid servers in their order, and one line of text for each malformed one.

    A URL that occurs twice has its first weight. The result is immutable and may be shared by many clients.
    """
    valid: dict[str, Server] = {}
    problems: dict[str, None] = {}
    for entry in servers:
        text, weight = (entry, _DEFAULT_WEIGHT) if isinstance(entry, str) else (entry.url, entry.weight)
        try:
            url = normalise_url(text)
        except ValueError as error:
            problems[str(error)] = None
            continue
        valid.setdefault(url, Server(url, weight))
    return tuple(valid.values()), tuple(problems)


class ServerPool:
    """The servers of one client: the configured ones, and those of the last list that a broker sent (`learned`), which
    are preferred.

    `rounds` is the number of rounds that were finished since the last stable link (`Settings.stable_after`).
    """

    __slots__ = ("_blacklist", "_configured", "_reported", "_settings", "_tried", "learned", "rounds")

    def __init__(self, configured: tuple[Server, ...], settings: Settings) -> None:
        self._configured = configured
        self._settings = settings
        self._blacklist: dict[str, float] = {}  # URL -> end of the blacklisting
        self._tried: set[str] = set()  # in this round
        self._reported: frozenset[str] = frozenset()
        self.learned: tuple[Server, ...] = ()  # preferred: a broker knows more than the configuration
        self.rounds = 0

    def learn(self, servers: Sequence[Server], sender: str) -> list[str]:
        """Replace the learned list by the one that the broker at the URL `sender` sent, and forget the blacklisting of
        servers that are neither in the new list nor configured. Keep both if no entry of the new list is valid. Return
        one line of text for each refused entry that was not reported before."""
        valid, new_problems = self.parse(servers, sender)
        if valid:
            self.learned = valid
            urls = {server.url for server in (*valid, *self._configured)}
            self._blacklist = {url: until for url, until in self._blacklist.items() if url in urls}
        return new_problems

    def parse(self, servers: Sequence[Server], sender: str) -> tuple[tuple[Server, ...], list[str]]:
        """Return the valid servers of a list that the broker at the URL `sender` sent, and one line of text for each
        refused entry that was not reported before. Remember these lines as reported.

        In a list that came over TLS, servers without TLS are refused: whoever can change such a list could else lead
        clients to a server where everything can be read.
        """
        valid, problems = parse_servers(servers)
        if sender.startswith("wss:"):
            plain = [server.url for server in valid if not server.url.startswith("wss:")]
            problems += tuple(f"server {url[:200]!r} is without TLS, and its list came over TLS" for url in plain)
            valid = tuple(server for server in valid if server.url.startswith("wss:"))
        new_problems = [line for line in problems if line not in self._reported]
        if new_problems:
            self._reported = frozenset([*self._reported, *new_problems][:_MAX_REPORTED])
        return valid, new_problems

    def avoid(self, url: str, now: float) -> None:
        """Blacklist the server at this URL, which failed or is leaving, for `Settings.blacklist` seconds from `now`."""
        self._blacklist[url] = now + self._settings.blacklist

    def reset_rounds(self) -> None:
        """Begin with the first round again, so that the backoff is short and no server counts as tried. The blacklist
        stays."""
        self._tried.clear()
        self.rounds = 0

    def backoff(self, random: float, penalty: int = 0) -> float:
        """Return the seconds to wait before the next attempt: `random` (0 <= `random` < 1) times the longest wait.

        The waits of two whole rounds together have a limit, because a server that is tried first in one round and last
        in the next must be tried again within it. The limit is `Settings.first_retry`, doubled `rounds` + `penalty`
        times, at most `Settings.backoff_cap`. With n servers of a weight above 0, the longest wait is 1 / (2n - 1) of
        the limit, but at least `first_retry`, so that a long list is not searched too fast.
        """
        settings = self._settings
        bound = min(settings.backoff_cap, settings.first_retry * 2.0 ** min(self.rounds + penalty, 30))
        urls = {server.url for server in (*self.learned, *self._configured) if server.weight > 0}
        return random * max(settings.first_retry, bound / max(1, 2 * len(urls) - 1))

    def pick(
        self, now: float, random: Callable[[], float], exclude: str = "", move_targets: Sequence[Server] = ()
    ) -> str | None:
        """Choose the server to try now, at random by weight, but not the URL `exclude`; mark it as tried in this round,
        and return its URL. Return None when no other server has a weight above 0.

        `move_targets`, which a broker proposed for a move and which do not have `exclude`, come first: they accept
        clients now, whatever the blacklist says. The others in order of preference: servers of the learned list that
        are neither tried nor blacklisted; such servers of the configured list, because a broker may advertise addresses
        that can't be reached from here; then all of both lists, in a new round, for which the blacklist is emptied.
        """
        if move_targets:
            return self._choose(list(move_targets), random())
        learned = {server.url for server in self.learned}
        others = tuple(server for server in self._configured if server.url not in learned)
        for candidates in (self.learned, others):
            pool = [
                server
                for server in candidates
                if server.weight > 0
                and server.url != exclude
                and server.url not in self._tried
                and self._blacklist.get(server.url, now) <= now
            ]
            if pool:
                return self._choose(pool, random())
        pool = [server for server in (*self.learned, *others) if server.weight > 0 and server.url != exclude]
        if not pool:
            return None
        self._blacklist.clear()
        self._tried.clear()
        self.rounds += 1
        return self._choose(pool, random())

    def _choose(self, pool: list[Server], random: float) -> str:
        """Choose a server of `pool`, which is not empty, by weight with `random` (0 <= `random` < 1). Mark it as tried
        in this round, and return its URL."""
        remainder = random * sum(server.weight for server in pool)
        url = pool[-1].url
        for server in pool:
            remainder -= server.weight
            if remainder < 0:
                url = server.url
                break
        self._tried.add(url)
        return url
