"""Where a message id stands among the cached entries of a log: for duplicates of what is not among the newest.

Nobody needs it while clients repeat only what they wait for. So it is made by the first search that goes deep, brought
up to date by the next ones, and goes with the last entry that it was made of: publishing keeps no books for it, and a
search costs the same however much is cached.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import islice

from migratory_protocol.peer import Publication

SMALLEST = 64  # buckets


class Places:
    """A hash table in two arrays, 8 to 24 bytes for each entry: Python's dicts would take 150. An entry is known by
    its distance from `base`, 1 and up; `heads` has the newest entry of each bucket, `older` the one before each entry
    in its own bucket, 0 where there is none."""

    __slots__ = ("_base", "_heads", "_known", "_older", "until")

    def __init__(self, base: int, entries: deque[Publication]) -> None:
        buckets = max(SMALLEST, 1 << len(entries).bit_length())
        self._base = self._known = base
        self._heads = array("I", bytes(4 * buckets))
        self._older = array("I", (0,))
        self.until = base + len(entries)  # once the log begins there, all that this was made of is gone

    def holds(self, last: int) -> bool:
        """Whether it is large enough for a log that ends at `last`."""
        return last - self._base <= 2 * len(self._heads)

    def find(self, base: int, entries: deque[Publication], publisher: str, number: int) -> Publication | None:
        """The newest of the entries behind `base` with this message id."""
        self._learn(base, entries)
        distance = self._heads[hash((publisher, number)) & (len(self._heads) - 1)]
        while distance > base - self._base:  # what stands before that is evicted
            entry = entries[self._base + distance - base - 1]
            if entry.id == number and entry.publisher == publisher:
                return entry
            distance = self._older[distance]
        return None

    def _learn(self, base: int, entries: deque[Publication]) -> None:
        """Take up what came since the last search: the one loop that counts here, so without a call for each entry.

        `hash` differs from process to process, which shows in no answer: only nobody can aim at one bucket."""
        new = base + len(entries) - max(self._known, base)
        heads, older, mask = self._heads, self._older, len(self._heads) - 1
        # evicted before anybody searched: a hole that stays empty
        older.extend((0,) * (max(self._known, base) - self._known))
        distance = len(older)
        for entry in reversed(list(islice(reversed(entries), new))):
            number = entry.id
            if number:
                bucket = hash((entry.publisher, number)) & mask
                older.append(heads[bucket])
                heads[bucket] = distance
            else:
                older.append(0)
            distance += 1
        self._known = base + len(entries)
