"""The bytes that were read from client connections and that the edge has not handled yet, counted for each client.

Only clients that hold much are affected: one with more than `MAX_CLIENT_BYTES` is not read until all its bytes are
handled (connection.py). Above the limit of all clients together, the bytes of the largest clients of the address with
the most are dropped, and these clients' connections are aborted.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

MAX_CLIENT_BYTES = 65_536
"""Bytes of memory of a client's unhandled reads, above which its socket is not read. The edge handles the input of an
established client within a few turns, so only a flood is delayed."""

READ_BYTES = 256
"""Bytes of memory of a read besides its data: objects, and the place in a queue."""


class ClientInput:
    """The reads of client `number` that the edge has not handled, oldest first. `size` is their bytes of memory;
    `paused`: the socket is not read because of them."""

    __slots__ = ("number", "paused", "reads", "size")

    def __init__(self, number: int) -> None:
        self.number = number
        self.reads: list[bytes] = []
        self.size = 0
        self.paused = False


class UnhandledInput:
    """The unhandled reads of all clients of this process. `total` is their bytes of memory. The owner calls
    `drop_largest` when `over_limit` is True."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._clients: dict[int, ClientInput] = {}
        self.total = 0

    @property
    def over_limit(self) -> bool:
        """True while all clients together hold more than the limit."""
        return self.total > self._limit

    def add(self, number: int, data: bytes) -> ClientInput:
        """Add a read of client `number`, and return all unhandled reads of this client."""
        held = self._clients.get(number)
        if held is None:
            held = self._clients[number] = ClientInput(number)
        size = len(data) + READ_BYTES
        held.reads.append(data)
        held.size += size
        self.total += size
        return held

    def take(self, held: ClientInput) -> bytes | None:
        """Remove and return the client's oldest read, None if its reads were dropped."""
        if not held.reads:
            return None
        data = held.reads.pop(0)
        size = len(data) + READ_BYTES
        held.size -= size
        self.total -= size
        if not held.reads:
            del self._clients[held.number]
        return data

    def is_paused(self, number: int) -> bool:
        """Return whether the client's socket is not read because of its unhandled reads."""
        held = self._clients.get(number)
        return held is not None and held.paused

    def drop(self, number: int) -> None:
        """Drop all reads of a client. Nothing happens if it has none."""
        held = self._clients.pop(number, None)
        if held is not None:
            self.total -= held.size
            held.reads.clear()
            held.size = 0

    def drop_largest(self, host: Callable[[int], str]) -> list[int]:
        """Drop all reads of the largest clients of the address with the most, then of the next address, until an eighth
        of the limit is free, so that the search is not repeated for each read. Return the clients' numbers. `host`
        returns the address of a client."""
        hosts = {number: host(number) for number in self._clients}
        totals: Counter[str] = Counter()
        for number, held in self._clients.items():
            totals[hosts[number]] += held.size
        dropped = []
        largest_first = sorted(self._clients.values(), key=lambda held: (totals[hosts[held.number]], held.size))
        while self.total > self._limit - self._limit // 8:
            number = largest_first.pop().number
            dropped.append(number)
            self.drop(number)
        return dropped
