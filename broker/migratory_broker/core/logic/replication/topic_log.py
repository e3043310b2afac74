"""The log of one topic as this broker caches it, with its publisher table, used by the replica and the sequencer.

`base`, `committed` and `last` are sequence numbers, `base` <= `committed` <= `last`: the entries `base` + 1 to `last`
are cached, and those up to `committed` are committed. Eviction removes only committed entries, the oldest first.
`base`, its epoch and the publisher table stay after an eviction, until the topic is removed as idle.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from itertools import islice
from typing import Literal

from migratory_protocol import limits
from migratory_protocol.peer import LogDigest, Publication, PublisherRow, payload_digest
from migratory_protocol.positions import Position

from migratory_broker.core.logic.context import must
from migratory_broker.core.logic.replication.message_index import MessageIndex

ENTRY_OVERHEAD = 200
"""Bytes that an entry takes besides its payload, estimated."""

SCANNED_ENTRIES = 32
"""The number of newest entries in which a message id is searched one by one, before an index is used. Most duplicates
are among them."""


class PublisherTable:
    """Each publisher's last message id in one topic, its position, and the digest of its payload. `rows`: publisher ->
    (id, epoch, sequence number, digest).

    The table is part of the log: it is sent, cut and replaced with the log, and never rebuilt from cached entries. A
    publisher leaves it when the coordinator says so, `duplicate_window` or more after its last publication or repeat,
    at every broker at the same place in the log.
    """

    __slots__ = ("rows",)

    def __init__(self, rows: Iterable[PublisherRow] = ()) -> None:
        self.rows: dict[str, tuple[int, int, int, bytes]] = {
            row.publisher: (row.id, row.epoch, row.sequence, row.digest) for row in rows
        }

    def forget(self, publisher: str) -> None:
        self.rows.pop(publisher, None)

    def as_rows(self) -> list[PublisherRow]:
        return [PublisherRow(publisher, *row) for publisher, row in self.rows.items()]

    def judge(self, publisher: str, number: int, mark: int) -> Literal["new", "duplicate", "gap", "too high"]:
        """NEXT-OR-MARK: return what message id `number` of a publisher is. At or below its last id it is a "duplicate".
        It is "new" if it is the next id, or equals `mark`, the lowest id for which the publisher still waits. Otherwise
        it is a "gap": it would overtake an id that may still arrive. Of a publisher without a row, only the id `mark`
        is new.

        ID-BOUND: of a publisher with a row, an id more than `ID_JUMP` above the next one is "too high", even if it
        equals `mark`: no publisher gave up that many, and the id might leave it no higher ones.
        """
        row = self.rows.get(publisher)
        if row is not None:
            if number <= row[0]:
                return "duplicate"
            if number == row[0] + 1:
                return "new"
            if number > row[0] + 1 + limits.ID_JUMP:
                return "too high"
        return "new" if number == mark else "gap"


class TopicLog:
    """The cached entries of one topic, the sequence number up to which they are committed, and the publisher table.
    `bytes` is what the entries take, as estimated."""

    __slots__ = (
        "appended_at", "base", "base_epoch", "bytes", "committed", "entries", "last", "message_index", "name", "table",
    )  # fmt: skip

    def __init__(self, name: str, base: int = 0, base_epoch: int = 0) -> None:
        self.name = name
        self.base = self.last = self.committed = base
        self.base_epoch = base_epoch  # epoch of entry `base`; 0 while there is none
        self.appended_at = 0.0  # when this broker got the newest entry, by its monotonic clock
        self.entries: deque[Publication] = deque()
        self.bytes = 0
        self.table = PublisherTable()
        self.message_index: MessageIndex | None = None  # made by the first search that goes beyond SCANNED_ENTRIES

    def append(self, publication: Publication) -> int:
        """Add the next entry and return the bytes that it takes. A QoS 1 publication becomes its publisher's row in the
        table. Raise InvariantError if the entry is not the next of the log. Called once per publication and copy."""
        sequence = publication.sequence
        must(sequence == self.last + 1, "DENSE: an entry is the next of its topic")
        self.entries.append(publication)
        self.last = sequence
        size = len(publication.payload) + ENTRY_OVERHEAD
        self.bytes += size
        if publication.id:
            digest = payload_digest(publication.payload)
            self.table.rows[publication.publisher] = (publication.id, publication.epoch, sequence, digest)
        return size

    def entry(self, sequence: int) -> Publication | None:
        """Return the entry with this sequence number, None if it is not cached."""
        if self.base < sequence <= self.last:
            return self.entries[sequence - self.base - 1]
        return None

    def between(self, after: int, to: int) -> list[Publication]:
        """Return the entries with sequence numbers `after` + 1 to `to`, oldest first. The caller makes sure that all
        are cached."""
        entries = self.entries
        start, stop = after - self.base, to - self.base
        if stop - start <= 8:  # mostly the newest: a deque reaches its ends quickly, its middle slowly
            return [entries[index] for index in range(start, stop)]
        size = len(entries)
        if start <= size - stop:
            return list(islice(entries, start, stop))
        selected = list(islice(reversed(entries), size - stop, size - start))
        selected.reverse()
        return selected

    def epoch_at(self, sequence: int) -> int | None:
        """Return the epoch of the entry at `sequence`. None if it is neither cached nor the last one before the log
        (`base`), and for sequence number 0."""
        if sequence == self.base and self.base:
            return self.base_epoch
        entry = self.entry(sequence)
        return entry.epoch if entry else None

    def current(self, first: int) -> Position:
        """Return the position of the last committed publication, cached or not: (`first`, 0) if none is committed and
        the log begins at 0. `first` is the first epoch of the history. Raise InvariantError if the epoch of the
        committed position is not known."""
        if not self.committed:
            return Position(first, 0)
        epoch = self.epoch_at(self.committed)
        must(epoch is not None, "COMMITTED-KNOWN: the epoch of the committed position is known")
        return Position(epoch or 0, self.committed)

    def digest(self) -> LogDigest:
        return LogDigest(self.name, self.base, self.last, self.epoch_at(self.last) or 0, len(self.table.rows))

    def find(self, publisher: str, number: int) -> Publication | None:
        """Return the newest cached entry with this publisher and message id, None if there is none. A search beyond the
        `SCANNED_ENTRIES` newest entries builds an index, or brings it up to date."""
        for entry in islice(reversed(self.entries), SCANNED_ENTRIES):
            if entry.id == number and entry.publisher == publisher:
                return entry
        if len(self.entries) <= SCANNED_ENTRIES:
            return None
        if self.message_index is None or not self.message_index.fits(self.last):
            self.message_index = MessageIndex(self.base, self.entries)
        return self.message_index.find(self.base, self.entries, publisher, number)

    def drop_first(self) -> Publication:
        """Evict and return the oldest entry. Raise InvariantError if it is not committed, or there is none. Drop the
        index once none of the entries is left from which it was built."""
        must(self.base < self.committed, "EVICT-COMMITTED: only committed entries are evicted")
        entry = self.entries.popleft()
        self.base += 1
        self.base_epoch = entry.epoch
        self.bytes -= len(entry.payload) + ENTRY_OVERHEAD
        if self.message_index is not None and self.base >= self.message_index.until:
            self.message_index = None
        return entry

    def replace(self, base: int, base_epoch: int, entries: list[Publication]) -> None:
        """Replace all entries. The first one must follow sequence number `base`, whose entry was of `base_epoch`, and
        there must be no hole: raise InvariantError if the first or the last number is wrong. The committed mark and the
        table stay: the caller sets them."""
        self.base, self.base_epoch = base, base_epoch
        self.entries = deque(entries)
        self.message_index = None
        self.last = base + len(entries)
        self.bytes = sum(len(entry.payload) for entry in entries) + ENTRY_OVERHEAD * len(entries)
        must(
            not entries or (entries[0].sequence == base + 1 and entries[-1].sequence == self.last),
            "DENSE: a log has no hole",
        )
