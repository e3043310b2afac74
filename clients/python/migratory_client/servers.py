"""The server list: which brokers there are, which of them to try next, and how long to wait before.

A server that failed goes on a temporary blacklist. When nothing is left to try, the blacklist is emptied and a new
*round* begins; the waits grow with the rounds, not with the attempts, so that a long list with one live broker at its
end is searched at a steady pace. Pure: time and random numbers (0 <= r < 1) are arguments.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

from migratory_protocol.messages import Server

from migratory_client.settings import Settings

_PORTS = {"ws": 80, "wss": 443}


def normalise_url(text: str) -> str:
    """`text` as the one spelling under which a server is known: no spaces around it, scheme and host in lower case,
    no default port, no slash at the end.

    Raises ValueError, which says what is wrong, when it is not a WebSocket URL.
    """
    url = text.strip()
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        raise ValueError(f"server {text[:100]!r}: {error}") from None
    scheme = parts.scheme.lower()
    if scheme not in _PORTS:
        raise ValueError(f"server {text[:100]!r}: a URL that begins with ws:// or wss:// is needed{_meant(url)}")
    if not parts.hostname or port == 0:
        raise ValueError(f"server {text[:100]!r}: a host and, if given, a port from 1 to 65535 are needed")
    if parts.username is not None or parts.fragment or any(character.isspace() for character in url):
        raise ValueError(f"server {text[:100]!r}: no user name, fragment or space may be in it")
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    place = host if port in (None, _PORTS[scheme]) else f"{host}:{port}"
    query = f"?{parts.query}" if parts.query else ""
    return f"{scheme}://{place}{parts.path.rstrip('/')}{query}"


def _meant(url: str) -> str:
    """A guess for who gave `127.0.0.1:8800`, or what a browser is given."""
    scheme, _, rest = url.rpartition("://")
    place = rest.partition("/")[0]
    if scheme not in ("", "http", "https") or not place or any(character.isspace() for character in place):
        return ""
    return f", such as {'wss' if scheme == 'https' else 'ws'}://{place[:100]}/ws"


def parse_servers(servers: Iterable[str | Server]) -> tuple[tuple[Server, ...], tuple[str, ...]]:
    """The distinct valid servers in their order, and one line for each that is malformed. A URL that comes twice
    keeps its first weight. May be called once for many clients: the result is immutable."""
    found: dict[str, Server] = {}
    problems: dict[str, None] = {}
    for entry in servers:
        text, weight = (entry, 100) if isinstance(entry, str) else (entry.url, entry.weight)
        try:
            url = normalise_url(text)
        except ValueError as error:
            problems[str(error)] = None
            continue
        found.setdefault(url, Server(url, weight))
    return tuple(found.values()), tuple(problems)


class ServerList:
    """The servers of one client."""

    __slots__ = ("_avoided", "_given", "_reported", "_settings", "_tried", "learned", "rounds")

    def __init__(self, given: tuple[Server, ...], settings: Settings) -> None:
        self._given = given
        self._settings = settings
        self._avoided: dict[str, float] = {}  # the blacklist: URL -> until when
        self._tried: set[str] = set()  # in this round
        self._reported: frozenset[str] = frozenset()
        self.learned: tuple[Server, ...] = ()  # from a broker: it knows better than the configuration
        self.rounds = 0  # since the last success

    def learn(self, servers: Sequence[Server]) -> list[str]:
        """Take a broker's list. Returns what is malformed in it, each line once in a client's life."""
        known, fresh = self.read(servers)
        if known:
            self.learned = known
            urls = {server.url for server in (*known, *self._given)}
            self._avoided = {url: until for url, until in self._avoided.items() if url in urls}
        return fresh

    def read(self, servers: Sequence[Server]) -> tuple[tuple[Server, ...], list[str]]:
        """What a broker names, and what is malformed in it, each line once in a client's life."""
        known, problems = parse_servers(servers)
        fresh = [line for line in problems if line not in self._reported]
        if fresh:  # remembered up to a bound: a broker that sends ever new nonsense must not fill the memory
            self._reported = frozenset([*self._reported, *fresh][:100])
        return known, fresh

    def avoid(self, url: str, now: float) -> None:
        self._avoided[url] = now + self._settings.blacklist

    def succeeded(self) -> None:
        """A link stood: the next failure begins a round of its own."""
        self._tried.clear()
        self.rounds = 0

    def wait(self, random: float, penalty: int = 0) -> float:
        """Seconds before the next attempt: full jitter under a bound that doubles with each round (and each penalty)
        up to the cap.

        The bound is for two whole rounds, because a server that is tried first in one round and last in the next
        must still be met within the cap: with n servers one wait has a share of 1 / (2n - 1), but never a bound below
        the first retry's, so that a long list is not rushed through."""
        settings = self._settings
        bound = min(settings.backoff_cap, settings.first_retry * 2.0 ** min(self.rounds + penalty, 30))
        urls = {server.url for server in (*self.learned, *self._given) if server.weight > 0}
        return random * max(settings.first_retry, bound / max(1, 2 * len(urls) - 1))

    def pick(self, now: float, random: Callable[[], float], but: str = "", named: Sequence[Server] = ()) -> str | None:
        """The URL to try now, by weight; not `but`. None when no server takes clients.

        Servers that a broker has `named` for a move come first: it knows that they take clients now, whatever the
        blacklist says. For the others, the order of preference: untried of the learned list; untried of the configured
        list (a broker may advertise addresses that cannot be reached from here); then the next round.
        """
        if named:
            return self._choose(list(named), random())
        learned = {server.url for server in self.learned}
        rest = tuple(server for server in self._given if server.url not in learned)
        for candidates in (self.learned, rest):
            pool = [
                server
                for server in candidates
                if server.weight > 0
                and server.url != but
                and server.url not in self._tried
                and self._avoided.get(server.url, now) <= now
            ]
            if pool:
                return self._choose(pool, random())
        pool = [server for server in (*self.learned, *rest) if server.weight > 0 and server.url != but]
        if not pool:
            return None
        self._avoided.clear()
        self._tried.clear()
        self.rounds += 1
        return self._choose(pool, random())

    def _choose(self, pool: list[Server], random: float) -> str:
        left = random * sum(server.weight for server in pool)
        url = pool[-1].url
        for server in pool:
            left -= server.weight
            if left < 0:
                url = server.url
                break
        self._tried.add(url)
        return url
