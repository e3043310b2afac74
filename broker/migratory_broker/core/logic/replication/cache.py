"""The cache of a broker: counts what the topic logs of all groups hold, and evicts their oldest committed entries, so
that they stay within the limits of entries and age per topic and of bytes altogether.

It also says when the cache or the tables of publishers are full. Topics are only counted here; sequencer.py limits
them.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from migratory_protocol.peer import Publication

from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.replication.topic_log import TopicLog

PUBLISHER_COUNT_INTERVAL = 1.0
"""Seconds between two counts of all publisher tables. Until the next count, added publishers are counted and forgotten
ones are not subtracted."""


class Cache:
    """All topic logs of this broker, with the limits of their memory, and the eviction that keeps them within these.

    For the limit of age `sweep` visits all logs in turn. For the limit of bytes those that have entries are visited in
    turn.
    """

    def __init__(self, config: LogicConfig) -> None:
        self._config = config
        self.bytes = 0
        self.short = 0  # entries younger than min_age that were evicted because of max_bytes
        self.short_at = float("-inf")  # wall clock of the last of them
        self._publishers = 0  # rows of all tables at the last count, and those added since
        self._counted_at = float("-inf")
        self._logs: deque[TopicLog] = deque()
        self._filled: OrderedDict[TopicLog, None] = OrderedDict()

    def register(self, log: TopicLog) -> None:
        """Add the log of a new topic to those that are counted and trimmed, with the bytes of its entries."""
        self._logs.append(log)
        self.grew(log, log.bytes)

    def grew(self, log: TopicLog, size: int) -> None:
        """Add `size` bytes, which may be negative, to the cache's total after the entries of `log` changed by as much.
        A log with entries may have some evicted from now on."""
        self.bytes += size
        if log.entries:
            self._filled[log] = None

    def unregister(self, logs: list[TopicLog]) -> None:
        """Stop counting and trimming these logs: subtract their bytes from the cache's total. The logs themselves do
        not change."""
        removed = {id(log) for log in logs}
        self._logs = deque(log for log in self._logs if id(log) not in removed)
        for log in logs:
            self._filled.pop(log, None)
        self.bytes -= sum(log.bytes for log in logs)

    @property
    def topics(self) -> int:
        return len(self._logs)

    def full(self, log: TopicLog, wall: float) -> bool:
        """Return whether nothing more may be numbered in this log now.

        That is so when the log has `messages_per_topic` uncommitted entries or more, the oldest of them at least
        `min_age` old, or when all logs together exceed `max_bytes` even after this call has evicted committed entries
        of any topics. `wall` is the wall clock in seconds.
        """
        config = self._config
        if log.last - log.committed >= config.messages_per_topic:
            oldest = log.entry(log.committed + 1)
            if oldest is not None and wall - oldest.time >= config.min_age:
                return True
        if self.bytes <= config.max_bytes:
            return False
        self._squeeze(wall)
        return self.bytes > config.max_bytes

    def publishers_full(self, wall: float) -> bool:
        """Return whether the tables have `max_publishers` rows, so that no publisher may be added; if not, count one
        more row. Rows are counted again if the last count is `PUBLISHER_COUNT_INTERVAL` old. `wall` is the wall clock
        in seconds.

        Rows of publishers are never evicted. Without the limit, a client that invents a name for every publication
        would fill the memory of every broker.
        """
        if not 0 <= wall - self._counted_at < PUBLISHER_COUNT_INTERVAL:
            self._counted_at = wall
            self._publishers = sum(len(log.table.rows) for log in self._logs)
        if self._publishers >= self._config.max_publishers:
            return True
        self._publishers += 1
        return False

    def trim(self, log: TopicLog, wall: float) -> None:
        """Evict the oldest committed entries of this log that are older than `max_age`, or that exceed
        `messages_per_topic` and are not younger than `min_age`. If all logs together exceed the byte limit, evict
        entries of any log too. `wall` is the wall clock in seconds."""
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
        """Evict and return the oldest entry of a log, and subtract its bytes. Raise InvariantError if it is not
        committed."""
        before = log.bytes
        entry = log.drop_first()
        self.bytes += log.bytes - before
        return entry

    def _squeeze(self, wall: float) -> None:
        """Evict the oldest committed entry of one topic after the other, of whatever age, until the bytes are within
        `max_bytes` or only uncommitted entries are left. Count in `short` those evicted before `min_age`. `wall` is the
        wall clock in seconds.

        Logs without entries are not visited: there may be a hundred thousand, and a call for each publication.
        """
        uncommitted = 0
        while self.bytes > self._config.max_bytes and uncommitted < len(self._filled):
            log, _ = self._filled.popitem(last=False)
            if not log.entries:
                continue
            self._filled[log] = None
            if log.base == log.committed:
                uncommitted += 1
                continue
            uncommitted = 0
            if wall - self._drop(log).time < self._config.min_age:
                self.short += 1
                self.short_at = wall

    def sweep(self, wall: float, count: int) -> None:
        """Trim the next `count` topics, each call continuing where the last one ended. Without this, entries of an idle
        topic would never be evicted for their age. `wall` is the wall clock in seconds."""
        for _ in range(min(count, len(self._logs))):
            log = self._logs[0]
            self._logs.rotate(-1)
            self.trim(log, wall)
