"""Limits of accepting: connections a second and a turn, descriptors, unidentified connections."""

from __future__ import annotations

import asyncio
import resource
from collections import Counter
from collections.abc import Callable, Hashable, Iterator
from typing import Generic, Protocol, TypeVar

RESERVE = 128
"""Descriptors kept for peers, ZooKeeper, administration and for refusing."""


class Pace(Protocol):
    """Whether one more connection is taken now; if not, how many seconds to wait until asking again."""

    def take(self) -> bool: ...

    def wait(self) -> float: ...


class AcceptRate:
    """A bucket of `rate` connections a second, filled for at most a quarter of a second ahead. Shared by listeners."""

    def __init__(self, rate: int, clock: Callable[[], float]) -> None:
        self._rate = rate
        self._burst = max(1.0, rate / 4)
        self._clock = clock
        self._tokens = self._burst
        self._filled = clock()

    def take(self) -> bool:
        now = self._clock()
        self._tokens = min(self._burst, self._tokens + (now - self._filled) * self._rate)
        self._filled = now
        if self._tokens < 1:
            return False
        self._tokens -= 1
        return True

    def wait(self) -> float:
        """Seconds until there is room for one more."""
        return max(0.001, (1 - self._tokens) / self._rate)


def descriptor_room() -> int:
    """Connections that this process can hold beside its reserve."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 2**31 if soft == resource.RLIM_INFINITY else max(16, soft - RESERVE)


CONNECTION_COST = 0.0002
"""Seconds of CPU for a connection until its subscriptions are carried out (docs/performance.md)."""
TURN_SHARE = 0.25
"""Of a turn. Where a connection costs twice as much, it is half, and turns still end."""
MIN_ACCEPTS, MAX_ACCEPTS = 8, 64


class AcceptBudget:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._at: float | None = None  # when a turn left some, that wait

    def most(self) -> int:
        """For this turn."""
        turn = 0.0 if self._at is None else self._clock() - self._at
        return max(MIN_ACCEPTS, min(MAX_ACCEPTS, int(TURN_SHARE * turn / CONNECTION_COST)))

    def left(self, some: bool) -> None:
        """At the end of it: whether some wait, who are for the next turn."""
        self._at = self._clock() if some else None


C = TypeVar("C", bound=Hashable)


class UnidentifiedConnections(Generic[C]):
    """At most `most` of them."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._hosts: dict[C, str] = {}  # the longest there first

    def add(self, connection: C, host: str) -> C | None:
        """One more, from there. Who has to go for it, if anybody; it is none of them any more."""
        self._hosts[connection] = host
        if len(self._hosts) <= self._most:
            return None
        counts = Counter(self._hosts.values())
        crowded = max(counts.values())
        gone = next(stranger for stranger, host in self._hosts.items() if counts[host] == crowded)
        del self._hosts[gone]
        return gone

    def discard(self, connection: C) -> None:
        """It is known now, or gone."""
        self._hosts.pop(connection, None)

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._hosts))

    def __len__(self) -> int:
        return len(self._hosts)


def host_of(transport: asyncio.BaseTransport | None) -> str:
    """The address at the other end, "unknown" where there is none any more."""
    name = transport.get_extra_info("peername") if transport is not None else None
    return str(name[0]) if name else "unknown"
