"""The log of one topic as this broker caches it, and the bounds that all logs of a broker share.

`base` < entries <= `last`; `committed` lies between. Entries leave at the front only, committed ones only, and what
they leave behind (`base`, its epoch, the publisher table) stays: an idle topic never forgets its position.
"""

from __future__ import annotations

from collections import OrderedDict, deque
from itertools import islice

from migratory_protocol.peer import Digest, Publication
from migratory_protocol.positions import Position

from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.context import must
from migratory_broker.core.logic.dedup import PublisherTable
from migratory_broker.core.logic.places import Places

OVERHEAD = 200  # bytes that an entry costs besides its payload, about
NEAR = 32  # entries from the end, among which most duplicates are


class TopicLog:
    __slots__ = ("base", "base_epoch", "bytes", "committed", "entries", "last", "name", "places", "table")

    def __init__(self, name: str) -> None:
        self.name = name
        self.base = 0
        self.base_epoch = 0  # epoch of entry `base`; 0 while there is none
        self.last = 0
        self.committed = 0
        self.entries: deque[Publication] = deque()
        self.bytes = 0
        self.table = PublisherTable()
        self.places: Places | None = None  # there once somebody searched for a message id far from the end

    def append(self, publication: Publication) -> int:
        """How many bytes that adds. Every publication passes here once for each copy: hence the short way."""
        sequence = publication.sequence
        must(sequence == self.last + 1, "DENSE: an entry is the next of its topic")
        self.entries.append(publication)
        self.last = sequence
        size = len(publication.payload) + OVERHEAD
        self.bytes += size
        if publication.id:
            self.table.rows[publication.publisher] = (publication.id, publication.epoch, sequence)
        return size

    def entry(self, sequence: int) -> Publication | None:
        """The cached entry of this sequence number."""
        if self.base < sequence <= self.last:
            return self.entries[sequence - self.base - 1]
        return None

    def between(self, after: int, to: int) -> list[Publication]:
        """Entries `after`+1..`to`, all of them cached."""
        entries = self.entries
        start, stop = after - self.base, to - self.base
        if stop - start <= 8:  # mostly the newest ones: a deque's end is near, its middle is not
            return [entries[index] for index in range(start, stop)]
        size = len(entries)
        if start <= size - stop:
            return list(islice(entries, start, stop))
        found = list(islice(reversed(entries), size - stop, size - start))
        found.reverse()
        return found

    def epoch_at(self, sequence: int) -> int | None:
        """Epoch of the entry at `sequence`, None where that is not known any more."""
        if sequence == self.base and self.base:
            return self.base_epoch
        entry = self.entry(sequence)
        return entry.epoch if entry else None

    def current(self, first: int) -> Position:
        """The current (committed) position; `first` is the first epoch of the history."""
        if not self.committed:
            return Position(first, 0)
        epoch = self.epoch_at(self.committed)
        must(epoch is not None, "COMMITTED-KNOWN: the epoch of the committed position is known")
        return Position(epoch or 0, self.committed)

    def digest(self) -> Digest:
        return Digest(self.name, self.base, self.last, self.epoch_at(self.last) or 0, len(self.table.rows))

    def find(self, publisher: str, number: int) -> Publication | None:
        """The cached entry with this message id, the newest first."""
        for entry in islice(reversed(self.entries), NEAR):
            if entry.id == number and entry.publisher == publisher:
                return entry
        if len(self.entries) <= NEAR:
            return None
        if self.places is None or not self.places.holds(self.last):
            self.places = Places(self.base, self.entries)
        return self.places.find(self.base, self.entries, publisher, number)

    def drop_first(self) -> Publication:
        must(self.base < self.committed, "EVICT-COMMITTED: only committed entries are evicted")
        entry = self.entries.popleft()
        self.base += 1
        self.base_epoch = entry.epoch
        self.bytes -= len(entry.payload) + OVERHEAD
        if self.places is not None and self.base >= self.places.until:
            self.places = None
        return entry

    def replace(self, base: int, base_epoch: int, entries: list[Publication]) -> None:
        """Other entries instead of all of these; the committed mark and the table are the caller's."""
        self.base, self.base_epoch = base, base_epoch
        self.entries = deque(entries)
        self.places = None
        self.last = base + len(entries)
        self.bytes = sum(len(entry.payload) for entry in entries) + OVERHEAD * len(entries)
        must(
            not entries or (entries[0].sequence == base + 1 and entries[-1].sequence == self.last),
            "DENSE: a log has no hole",
        )


class Bounds:
    """The bounds of all logs together: by number and age per topic, by bytes over the broker."""

    def __init__(self, config: LogicConfig) -> None:
        self._config = config
        self.bytes = 0
        self.short = 0  # entries younger than min_age that had to go for max_bytes
        self.short_at = float("-inf")  # wall clock of the last of them
        self._publishers = 0  # rows of all tables when they were last counted, and those that were added since
        self._counted_at = float("-inf")
        self._ring: deque[TopicLog] = deque()  # every log, so that age takes from all in turn
        self._holding: OrderedDict[TopicLog, None] = OrderedDict()  # every one with entries, so that bytes do

    def register(self, log: TopicLog) -> None:
        self._ring.append(log)
        self.grew(log, log.bytes)

    def grew(self, log: TopicLog, size: int) -> None:
        """Its entries have changed, by so many bytes."""
        self.bytes += size
        if log.entries:
            self._holding[log] = None

    def unregister(self, logs: list[TopicLog]) -> None:
        gone = {id(log) for log in logs}
        self._ring = deque(log for log in self._ring if id(log) not in gone)
        for log in logs:
            self._holding.pop(log, None)
        self.bytes -= sum(log.bytes for log in logs)

    @property
    def topics(self) -> int:
        return len(self._ring)

    def full(self, log: TopicLog, wall: float) -> bool:
        """Whether nothing more may be numbered: uncommitted entries fill the bound of their topic, or all logs are over
        the byte limit with all gone that could be evicted."""
        config = self._config
        if log.last - log.committed >= config.messages_per_topic:
            oldest = log.entry(log.committed + 1)
            if oldest is not None and wall - oldest.time >= config.min_age:
                return True
        if self.bytes <= config.max_bytes:
            return False
        self._squeeze(wall)
        return self.bytes > config.max_bytes

    def crowded(self, wall: float) -> bool:
        """Whether one more publisher is one too many. Whoever makes up a name for every message would otherwise fill
        the memory of every broker, and the tables are never evicted. Counted anew once a second at most."""
        if not 0 <= wall - self._counted_at < 1.0:
            self._counted_at = wall
            self._publishers = sum(len(log.table.rows) for log in self._ring)
        if self._publishers >= self._config.max_publishers:
            return True
        self._publishers += 1
        return False

    def trim(self, log: TopicLog, wall: float) -> None:
        """Evict what the bounds no longer keep of this log."""
        config = self._config
        while log.base < log.committed:
            age = wall - log.entries[0].time
            surplus = len(log.entries) > config.messages_per_topic
            if not (age > config.max_age or (surplus and age >= config.min_age)):
                break
            self._drop(log)
        if self.bytes > config.max_bytes:
            self._squeeze(wall)

    def _drop(self, log: TopicLog) -> Publication:
        before = log.bytes
        entry = log.drop_first()
        self.bytes += log.bytes - before
        return entry

    def _squeeze(self, wall: float) -> None:
        """Bytes are above the limit: the oldest committed entry of one topic after the other goes. Topics without any
        are passed over once: there may be a hundred thousand of them, and a squeeze for each publication."""
        idle = 0
        while self.bytes > self._config.max_bytes and idle < len(self._holding):
            log, _ = self._holding.popitem(last=False)
            if not log.entries:
                continue
            self._holding[log] = None
            if log.base == log.committed:
                idle += 1
                continue
            idle = 0
            if wall - self._drop(log).time < self._config.min_age:
                self.short += 1
                self.short_at = wall

    def sweep(self, wall: float, count: int) -> None:
        """Age the next `count` topics: idle ones have nobody else to do it."""
        for _ in range(min(count, len(self._ring))):
            log = self._ring[0]
            self._ring.rotate(-1)
            self.trim(log, wall)
