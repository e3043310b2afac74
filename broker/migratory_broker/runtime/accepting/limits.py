"""Limits of accepting, for the listeners: a rate of connections a second, a budget of connections for each turn of the
loop, the file descriptors of the process, and the connections that have not identified themselves yet."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

from migratory_broker.runtime.errors import DescriptorError

RESERVED_DESCRIPTORS = 128
"""File descriptors that clients may not use: for peers, ZooKeeper, the administration and for answering clients that
are refused."""

NEEDED_DESCRIPTORS = RESERVED_DESCRIPTORS + 16
"""The lowest descriptor limit with which a broker starts: the reserved ones, and a few for clients."""


class Pace(Protocol):
    """The interface of a rate limit. `try_acquire` returns whether one more connection may be accepted now, and counts
    it if so; `refund` takes one such count back. `delay`, called after a refusal, returns the seconds until the next
    attempt."""

    def try_acquire(self) -> bool: ...

    def refund(self) -> None: ...

    def delay(self) -> float: ...


class AcceptRate:
    """A rate limit of `rate` connections a second, with bursts of up to a quarter of `rate`, at least one (a token
    bucket). Listeners may share one."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = max(1.0, rate / 4)
        self._clock = clock
        self._tokens = self._burst
        self._filled = clock()

    def try_acquire(self) -> bool:
        """Return whether one more connection is within the rate now. If so, take its token."""
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def refund(self) -> None:
        """Give back the token of an attempt that accepted no connection, or of a connection that was refused at once
        for its address, so that its sender delays no other client."""
        self._tokens = min(self._burst, self._tokens + 1)

    def delay(self) -> float:
        """Return the seconds from the last `try_acquire` until the next connection is allowed, at least 0.001."""
        return max(0.001, (1 - self._tokens) / self._rate)


def descriptor_limit() -> int:
    """Return how many file descriptors this process may have open, by the limit in force now; 2**31 without a limit.
    Another process may change that limit at any time."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else soft


def connection_capacity() -> int:
    """Return the number of connections that this process may hold altogether at the present descriptor limit,
    `RESERVED_DESCRIPTORS` left aside. Connections that are open now are part of this number."""
    return max(0, descriptor_limit() - RESERVED_DESCRIPTORS)


def check_descriptors() -> None:
    """Raise DescriptorError if this process may open fewer than `NEEDED_DESCRIPTORS` files; otherwise do nothing."""
    limit = descriptor_limit()
    if limit < NEEDED_DESCRIPTORS:
        raise DescriptorError(
            f"a process may open {limit} files here (ulimit -n), but a broker needs {NEEDED_DESCRIPTORS} or more: "
            f"{RESERVED_DESCRIPTORS} for itself, and one for each client; raise the limit (ulimit -n, LimitNOFILE=)"
        )


CONNECTION_COST = 0.0002
"""Seconds of CPU that a connection costs until its subscriptions are made, as measured
(docs/reference/performance.md)."""
TURN_SHARE = 0.25
"""The fraction of the next turn that new connections may take. If a connection costs twice as much as assumed, they
take half of it."""
MIN_ACCEPTS, MAX_ACCEPTS = 8, 64
"""The smallest and the largest number of connections that a turn may accept, whatever the last turn's length."""


class AcceptBudget:
    """The number of connections that one turn of the loop may accept, so that a storm of connects hardly delays
    publications.

    A connection makes work for the next turns: a handshake, subscriptions, a receipt. What is published meanwhile waits
    for the turn to end. So a turn accepts as many connections as lengthen the next one by no more than `TURN_SHARE`,
    from `MIN_ACCEPTS` to `MAX_ACCEPTS`.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._left_waiting_at: float | None = None  # when a turn left some, that wait

    def allowance(self) -> int:
        """Return how many connections this turn may accept. If the last turn left some waiting, that is in proportion
        to the time since then, from `MIN_ACCEPTS` to `MAX_ACCEPTS`; otherwise `MIN_ACCEPTS`."""
        turn = 0.0 if self._left_waiting_at is None else self._clock() - self._left_waiting_at
        return max(MIN_ACCEPTS, min(MAX_ACCEPTS, int(TURN_SHARE * turn / CONNECTION_COST)))

    def end_turn(self, waiting: bool) -> None:
        """Record that this turn accepts no more connections, and whether some still wait to be accepted."""
        self._left_waiting_at = self._clock() if waiting else None


ConnectionT = TypeVar("ConnectionT", bound=Hashable)


class UnidentifiedConnections(Generic[ConnectionT]):
    """The connections of one listener that still have to identify themselves (finish a TLS handshake, send a Hello or a
    request), at most `limit`.

    Above the limit, the oldest connection of the host with the most is evicted: an honest client identifies itself at
    once, while an idle one may only mean to occupy a place. Iteration is over a copy, oldest first.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._hosts: dict[ConnectionT, str] = {}  # the longest there first
        self._counts: Counter[str] = Counter()  # connections of each host

    def add(self, connection: ConnectionT, host: str) -> ConnectionT | None:
        """Add a connection from `host`. If there are more than `limit` then, remove the oldest one of the host with the
        most, which may be this one, and return it for the caller to close. Otherwise return None."""
        self._hosts[connection] = host
        self._counts[host] += 1
        if len(self._hosts) <= self.limit:
            return None
        largest = max(self._counts.values())
        evicted = next(connection for connection, host in self._hosts.items() if self._counts[host] == largest)
        self.discard(evicted)
        return evicted

    def discard(self, connection: ConnectionT) -> bool:
        """Remove a connection that was identified or closed. Return whether it was there."""
        host = self._hosts.pop(connection, None)
        if host is None:
            return False
        self._counts[host] -= 1
        if not self._counts[host]:
            del self._counts[host]
        return True

    def __iter__(self) -> Iterator[ConnectionT]:
        return iter(list(self._hosts))

    def __len__(self) -> int:
        return len(self._hosts)


def host_of(transport: asyncio.BaseTransport | None) -> str:
    """Return the IP address of the other end, "unknown" when the connection is gone or `transport` is None."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return str(name[0]) if name else "unknown"
