"""An index from message id to cached entry, for `TopicLog.find`: it finds duplicates of publications that are not among
the newest.

Clients that repeat only the publications for which they wait never need it. The first search beyond the newest entries
builds the index, later ones bring it up to date, and it is dropped with the last entry from which it was built. So
publishing maintains no index, and a search costs the same however much is cached.
"""

from __future__ import annotations

from array import array
from collections import deque
from itertools import islice

from migratory_protocol.peer import Publication

MIN_BUCKETS = 64
"""Buckets of the smallest index. The number of buckets is always a power of two."""


class MessageIndex:
    """A hash table from (publisher, message id) to the entries of one topic's log, in two arrays: 8 to 24 bytes an
    entry where Python's dicts take 150.

    An entry is named by its distance, from 1 up, from `base`, the sequence number before the log when the table was
    made. `_heads` has the newest entry of each bucket, `_older` for each entry the one before it in the same bucket, 0
    where there is none. `until` is the sequence number of the last entry that was in the log then; `TopicLog` drops the
    table once the log begins there.
    """

    __slots__ = ("_base", "_heads", "_indexed", "_older", "until")

    def __init__(self, base: int, entries: deque[Publication]) -> None:
        buckets = max(MIN_BUCKETS, 1 << len(entries).bit_length())
        self._base = self._indexed = base
        self._heads = array("I", bytes(4 * buckets))
        self._older = array("I", (0,))
        self.until = base + len(entries)  # once the log begins here, no entry of the first build is left

    def fits(self, last: int) -> bool:
        """Return whether the table has enough buckets for a log whose last sequence number is `last`. If not, the
        caller builds another table."""
        return last - self._base <= 2 * len(self._heads)

    def find(self, base: int, entries: deque[Publication], publisher: str, number: int) -> Publication | None:
        """Return the newest entry with this publisher and message id among `entries`, None if there is none. First add
        the entries that were appended since the last search. `entries` are the log's present ones, and `base` is the
        sequence number before the first of them."""
        self._update(base, entries)
        distance = self._heads[hash((publisher, number)) & (len(self._heads) - 1)]
        while distance > base - self._base:  # older entries are evicted
            entry = entries[self._base + distance - base - 1]
            if entry.id == number and entry.publisher == publisher:
                return entry
            distance = self._older[distance]
        return None

    def _update(self, base: int, entries: deque[Publication]) -> None:
        """Add the entries that were appended since the last search. `base` is the sequence number before the first of
        `entries`. The loop decides the cost, so it makes few calls per entry.

        `hash` differs between processes. No result depends on that; it only keeps clients from aiming at one bucket.
        """
        new = base + len(entries) - max(self._indexed, base)
        heads, older, mask = self._heads, self._older, len(self._heads) - 1
        # Entries that were evicted before anybody searched leave a gap without an entry.
        older.extend((0,) * (max(self._indexed, base) - self._indexed))
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
        self._indexed = base + len(entries)
