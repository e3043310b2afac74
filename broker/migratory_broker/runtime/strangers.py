"""Connections of those who have not said yet who they are or what they want: a listener that serves few holds few.

Who is one too many does not stay outside. Whoever comes to work says so at once, while those that hold the places may
only mean to hold them: so the longest there goes, of the address that has the most.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

C = TypeVar("C", bound=Hashable)


class Strangers(Generic[C]):
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
