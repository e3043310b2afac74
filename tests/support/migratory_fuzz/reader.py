"""Choices out of a fuzzer's bytes, the same ones in every run: what is drawn from an input that has ended is 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Reader:
    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        found = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return found

    def number(self, most: int) -> int:
        """From 0 to `most`, at most 65535."""
        wide = (self.byte() << 8 | self.byte()) if most > 255 else self.byte()
        return wide % (most + 1)

    def choose(self, values: Sequence[T]) -> T:
        return values[self.number(len(values) - 1)]

    def chance(self, one_in: int) -> bool:
        """True for one value of a byte in so many, and never when the input has ended."""
        return self.byte() % one_in == one_in - 1

    def take(self, count: int) -> bytes:
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def rest(self) -> bytes:
        return self.take(self.left)
