"""Choices from a fuzzer's bytes, the same in every run. Behind the end of the input, every choice is 0."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

T = TypeVar("T")


class Reader:
    """A cursor over the bytes of an input."""

    def __init__(self, data: bytes) -> None:
        self._data = data
        self._at = 0

    @property
    def left(self) -> int:
        """Return the number of unread bytes."""
        return max(0, len(self._data) - self._at)

    def byte(self) -> int:
        """Consume and return the next byte, 0 behind the end."""
        found = self._data[self._at] if self._at < len(self._data) else 0
        self._at += 1
        return found

    def number(self, most: int) -> int:
        """Consume bytes, and return a number from 0 to `most`, which is at most 65535."""
        wide = (self.byte() << 8 | self.byte()) if most > 255 else self.byte()
        return wide % (most + 1)

    def choose(self, values: Sequence[T]) -> T:
        """Consume bytes, and return one of the values."""
        return values[self.number(len(values) - 1)]

    def chance(self, one_in: int) -> bool:
        """Consume a byte. Return whether it is one of the 256 / `one_in` values that count, which no byte behind the
        end of the input is (for `one_in` above 1)."""
        return self.byte() % one_in == one_in - 1

    def take(self, count: int) -> bytes:
        """Consume and return the next `count` bytes, fewer at the end."""
        found = self._data[self._at : self._at + count]
        self._at += count
        return found

    def rest(self) -> bytes:
        """Consume and return all unread bytes."""
        return self.take(self.left)
