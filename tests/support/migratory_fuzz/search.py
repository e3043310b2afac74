"""A search for the inputs that cost most, for targets with a `measure`: much faster than a fuzzer under coverage.

It climbs: inputs are changed at random, and the costliest of each kind stay to be changed again. A kind is the mode of
the input and the magnitude of its length, so that the search does not end at one peak. The seed decides every choice.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Sequence
from random import Random

from migratory_protocol import limits

SCALE = 64
"""The divisor of the protocol's limits during a search. The limits bound the cost, so that an input above the bound
is above it at any scale."""

REPORT_SECONDS = 10.0
"""Seconds between two lines of progress."""


_LIMITS = ("MESSAGES", "TOPICS", "ITEMS", "JSON_VALUES", "TEXT", "PAYLOAD", "ENVELOPE", "MESSAGE", "SUBSCRIPTIONS")


def shrink_limits() -> None:
    """Divide the limits of the protocol by `SCALE`. Call it before any module that reads them is imported."""
    assert "migratory_protocol.messages" not in sys.modules, "the decoders have their limits already"
    for name in _LIMITS:
        setattr(limits, name, getattr(limits, name) // SCALE)


class Search:
    """A search, with the costliest inputs so far by kind. `worst` is the largest cost of a single step."""

    def __init__(
        self, measure: Callable[[bytes], Sequence[int]], tokens: Sequence[bytes], most: int, seed: int
    ) -> None:
        self._measure = measure
        self._tokens = tokens
        self._most = most
        self._random = Random(seed)
        self.best: dict[tuple[int, ...], tuple[int, bytes]] = {}
        self.worst = 0

    def run(self, seeds: Iterable[bytes], inputs: int, say: Callable[[str], None]) -> int:
        """Measure the seeds and then `inputs` changed inputs. Return `inputs`."""
        for data in seeds:
            self.try_input(data)
        begun = reported = time.monotonic()
        for count in range(1, inputs + 1):
            self.try_input(self._change(self._random.choice(list(self.best.values()))[1]))
            now = time.monotonic()
            if count == inputs or now - reported >= REPORT_SECONDS:
                reported = now
                rate = count / max(now - begun, 1e-9)
                say(f"  {count:,} inputs, {rate:,.0f}/s, {len(self.best)} kinds, costliest step {self.worst:,}")
        return inputs

    def try_input(self, data: bytes) -> None:
        """Measure an input, and store it when it is the costliest of its kind."""
        steps = self._measure(data)
        self.worst = max(self.worst, *steps)
        kind = (*(byte & 7 for byte in data[:2]), len(data).bit_length())  # the other bits select nothing
        cost = sum(steps)
        if cost > self.best.get(kind, (-1, b""))[0]:
            self.best[kind] = cost, data

    def costliest(self) -> list[bytes]:
        """Return the costliest input of each format, plain and compressed. With the protocol's real limits each
        takes about a second."""
        modes: dict[tuple[int, ...], tuple[int, bytes]] = {}
        for kind, found in self.best.items():
            modes[kind[:1]] = max(found, modes.get(kind[:1], found))
        return [data for _, data in modes.values()]

    def _change(self, data: bytes) -> bytes:
        random = self._random
        changed = bytearray(data)
        for _ in range(random.choice((1, 1, 2, 4))):
            at = random.randrange(len(changed) + 1)
            match random.randrange(6):
                case 0:
                    changed[at : at + 1] = bytes((random.randrange(256),))
                case 1:
                    changed[at:at] = random.choice(self._tokens)
                case 2:
                    del changed[at : at + random.randrange(1, 8)]
                case 3:
                    other = random.choice(list(self.best.values()))[1]
                    start = random.randrange(len(other) + 1)
                    changed[at:at] = other[start : start + random.randrange(1, 32)]
                case 4:
                    changed[at : at + 1] = bytes((random.choice((0, 8, 40, 80, 95, 96, 97, 104, 128, 167)),))
                case _:
                    if at < len(changed):
                        changed[at] = (changed[at] + random.choice((-8, -1, 1, 8))) % 256
        return bytes(changed[: self._most])
