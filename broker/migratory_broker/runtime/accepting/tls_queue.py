"""The queue of TLS handshakes whose clients have sent something: a few are continued in each turn of the loop.

One step of a handshake takes 0.35 to 5.7 ms of CPU, by the kind of key. When a broker dies, or when somebody attacks,
hundreds of hellos come in one turn, and continuing all of them at once would stall everything else for seconds. So
received bytes are read at once, which is cheap, and processed in the deferred queue of the pump (`Pump.defer`).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

Defer = Callable[[Callable[[Any], None], Any, float], object]
"""A function that schedules `action(argument)` for later, as `Pump.defer` does."""


class WaitingHandshake(Protocol):
    """The interface of a handshake that waits for its turn. `advance` continues it with all bytes that were received.
    `evict` lets it fail, with `reason` as the text of the error."""

    def advance(self) -> None: ...

    def evict(self, reason: str) -> None: ...


_Addresses = dict[str, dict[WaitingHandshake, int]]
"""The bytes of each waiting handshake, by address; the next address is first, and of each the next handshake."""


class TlsHandshakeQueue:
    """The TLS handshakes of one listener that wait for their turn. The addresses take turns, so that one with many
    handshakes delays itself; those of one address are continued in the order in which they began to wait.

    Handshakes that had a turn before alternate with new ones. They are nearly done, and behind all new ones of a storm
    each of them would reach its time limit.

    A single entry at a time is in the deferred queue, so that other work there is not behind all handshakes. `held` is
    the bytes that were received for all handshakes that wait, `evicted` the number of handshakes so far that were ended
    at `max_held`.

    :param defer: schedules the next step, as `Pump.defer` does.
    :param max_held: the limit of `held`; above it, the handshake that holds most is evicted.
    """

    def __init__(self, defer: Defer, max_held: int = 2**62) -> None:
        self._defer = defer
        self._max_held = max_held
        self._new: _Addresses = {}
        self._continued: _Addresses = {}  # those that had a turn before
        self._last_was_new = False
        self._scheduled = False
        self._count = 0
        self.held = 0
        self.evicted = 0

    def __len__(self) -> int:
        """Return the number of handshakes that wait for their turn."""
        return self._count

    def add(self, handshake: WaitingHandshake, address: str, size: int, continued: bool = False) -> None:
        """Queue a handshake that received `size` bytes, or count the bytes if it waits already. `continued`: it had a
        turn before. If all together hold more than `max_held` then, evict the one that holds most, perhaps this one."""
        waiting = (self._continued if continued else self._new).setdefault(address, {})
        if handshake not in waiting:
            self._count += 1
        waiting[handshake] = waiting.get(handshake, 0) + size
        self.held += size
        if self.held > self._max_held:
            self._evict_largest()
        self._schedule()

    def discard(self, handshake: WaitingHandshake, address: str) -> None:
        """Remove a handshake that has ended, without telling it. Nothing happens if it does not wait."""
        for addresses in (self._new, self._continued):
            if handshake in addresses.get(address, {}):
                self._remove(handshake, address, addresses)

    def _remove(self, handshake: WaitingHandshake, address: str, addresses: _Addresses) -> None:
        """Remove a waiting handshake and its bytes from one of the two tables."""
        waiting = addresses[address]
        self.held -= waiting.pop(handshake)
        self._count -= 1
        if not waiting:
            del addresses[address]

    def _evict_largest(self) -> None:
        """Remove and evict the waiting handshake that holds most bytes."""
        _, largest, address = max(
            (
                (size, handshake, address)
                for addresses in (self._new, self._continued)
                for address, waiting in addresses.items()
                for handshake, size in waiting.items()
            ),
            key=lambda entry: entry[0],
        )
        self.discard(largest, address)
        self.evicted += 1
        largest.evict(f"more than {self._max_held} bytes wait for TLS handshakes, and most of them for this one")

    def _schedule(self) -> None:
        """Defer the next step if a handshake waits and no step is scheduled."""
        if self._count and not self._scheduled:
            self._scheduled = True
            self._defer(self._advance, None, 0.0)

    def _advance(self, _: None) -> None:
        """Continue one handshake: a new one and one that had a turn before in alternation, if there are both, and of
        these the first one of the next address. The address goes behind all others. Schedule the next step if more
        handshakes wait."""
        self._scheduled = False
        if not self._count:
            return  # all have ended
        self._last_was_new = not self._continued or (bool(self._new) and not self._last_was_new)
        addresses = self._new if self._last_was_new else self._continued
        address = next(iter(addresses))
        handshake = next(iter(addresses[address]))
        self._remove(handshake, address, addresses)
        if address in addresses:
            addresses[address] = addresses.pop(address)
        self._schedule()
        handshake.advance()
