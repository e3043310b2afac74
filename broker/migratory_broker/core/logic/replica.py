"""What this broker holds of one topic group: promises, logs, committed marks. Rules about messages are in `member.py`.

`promised`: no lower epoch is obeyed. `synced`: the epoch whose coordinator's log this log is a prefix of. `view`: that
epoch's record as far as it was told. All of it lives as long as the process: losing it is a crash.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from migratory_protocol.peer import Broker, Digest, Publication, Sync, TopicPart
from migratory_protocol.positions import Position

from migratory_broker.core.logic.cache import Bounds, TopicLog
from migratory_broker.core.logic.context import Context, must
from migratory_broker.core.logic.events import Gap
from migratory_broker.core.logic.snapshot import merge

OnCommit = Callable[[TopicLog, list[Publication]], None]


@dataclass(slots=True)
class View:
    """The record of the epoch that a replica is synced to."""

    epoch: int
    owner: Broker
    members: tuple[Broker, ...]
    copies: int
    activated: bool


class Replica:
    def __init__(self, ctx: Context, bounds: Bounds, group: int, on_commit: OnCommit) -> None:
        self.ctx = ctx
        self.bounds = bounds
        self.group = group
        self.history = 0
        self.first = 0
        self.promised = 0
        self.synced = 0
        self.view: View | None = None
        self.topics: dict[str, TopicLog] = {}
        self._followed: set[str] = set()  # topics without a publication to which somebody subscribed
        self._on_commit = on_commit

    # ---- what it is ------------------------------------------------------------------------------------------

    @property
    def listed(self) -> bool:
        """Whether this incarnation is on the list of the epoch it is synced to (else it only learns)."""
        return self.view is not None and self.ctx.me in self.view.members

    @property
    def settled(self) -> bool:
        """Synced in an activated list, nothing higher promised."""
        return self.listed and self.view is not None and self.view.activated and self.promised == self.synced

    @property
    def immediate(self) -> bool:
        """IMMEDIATE-COMMIT: with two copies, a listed member's own accept is the second: coordinator and member."""
        view = self.view
        return view is not None and view.copies == 2 and view.activated and self.listed and view.owner in view.members

    def synced_in(self, history: int) -> int:
        """`synced`, if it is of that history: another history's log is worth nothing in this one."""
        return self.synced if history == self.history else 0

    def digest(self) -> list[Digest]:
        return [log.digest() for log in self.topics.values()]

    def lasts(self) -> dict[str, int]:
        return {name: log.last for name, log in self.topics.items()}

    def position(self, topic: str) -> Position:
        """The current (committed) position of a topic."""
        log = self.topics.get(topic)
        return log.current(self.first) if log else Position(self.first, 0)

    # ---- how it changes --------------------------------------------------------------------------------------

    def promise(self, epoch: int) -> None:
        must(epoch >= self.promised, "PROMISE-RISES: a promise is never taken back")
        self.promised = epoch

    def log(self, topic: str) -> TopicLog:
        """The log of a topic, made if there is none."""
        log = self.topics.get(topic)
        if log is None:
            log = self.topics[topic] = TopicLog(topic)
            self._followed.discard(topic)
            self.bounds.register(log)
        return log

    def append(self, log: TopicLog, publication: Publication) -> None:
        size = log.append(publication)
        if len(log.entries) > 1:  # mostly
            self.bounds.bytes += size
        else:
            self.bounds.grew(log, size)

    def commit(self, log: TopicLog, to: int) -> None:
        """COMMITTED-ONLY: what is delivered, replayed and acknowledged goes through here. `to` may lie behind."""
        to = min(to, log.last)
        if to <= log.committed:
            return
        publications = log.between(log.committed, to)
        log.committed = to
        self._on_commit(log, publications)
        self.bounds.trim(log, self.ctx.wall)

    def commit_all(self) -> None:
        for log in self.topics.values():
            self.commit(log, log.last)

    def activate(self) -> None:
        """ACTIVATION-COMMITS: with its epoch's activation, and not before, the adopted log is committed."""
        view = self.view
        must(view is not None, "VIEW: an epoch that is activated was synced to")
        if view is not None and not view.activated:
            view.activated = True
            self.commit_all()

    def begin_history(self, history: int, first: int) -> None:
        """NEW-HISTORY: forget the old one whole. Its topics' subscribers are told by `tell_reset`."""
        self.drop(list(self.topics.values()))
        self.ctx.histories += 1
        self.history, self.first = history, first
        self.synced = 0
        self.view = None

    def follow(self, topic: str) -> None:
        """Somebody was told position (first, 0) of a topic: to be told, too, should another history begin. The number
        is bounded as that of topics is; names beyond it are of nobody who publishes."""
        limit = self.ctx.config.max_topics // self.ctx.config.groups + 100
        if topic not in self.topics and len(self._followed) < limit:
            self._followed.add(topic)

    def tell_reset(self, topics: set[str]) -> None:
        """Another history goes on at the current position of each topic, those without a publication included: whoever
        is told position (first, 0) here is to be told of the history after this one, too."""
        for topic in sorted(topics | self._followed):
            self.ctx.emit(Gap(topic, "reset", self.position(topic)))
            self.follow(topic)

    def drop(self, logs: list[TopicLog]) -> None:
        if logs:
            self.bounds.unregister(logs)
            for log in logs:
                del self.topics[log.name]

    def adopt(self, parts: dict[str, list[TopicPart]], useful: bool) -> None:
        """A candidate's log becomes what its answers add up to. `parts` name the topics in which they add anything;
        without `useful` the own log is not synced to the source epoch and counts for nothing."""
        if not useful:
            gone = [log for name, log in self.topics.items() if name not in parts]
            for log in gone:
                must(log.committed == 0, "COMMITTED-STAYS: a topic with committed entries does not go")
            self.drop(gone)
        for topic in sorted(parts):
            merged = merge(self.topics.get(topic) if useful else None, parts[topic])
            log = self.log(topic)
            committed = log.committed
            must(merged.last >= committed, "COMMITTED-STAYS: a committed entry is never cut")
            self._replace(log, merged.base, merged.base_epoch, list(merged.entries))
            log.table = merged.table
            self._keep_committed(log, committed, silent=False)

    # ---- Sync ------------------------------------------------------------------------------------------------

    def fits(self, sync: Sync, parts: list[TopicPart]) -> bool:
        """Whether this log would become the sender's: number of topics and sum of their last sequence numbers."""
        same = sync.history == self.history
        lasts = {} if sync.whole or not same else self.lasts()
        for part in parts:
            if part.gone:
                lasts.pop(part.topic, None)
            elif not part.whole and part.keep > (self.topics[part.topic].last if part.topic in lasts else -1):
                return False
            else:
                lasts[part.topic] = part.last
        return len(lasts) == sync.topics_total and sum(lasts.values()) == sync.lasts_total

    def install(self, sync: Sync, parts: list[TopicPart]) -> None:
        """SYNC-WHOLE: log, tail and table become the sender's in one step; only then `promised = synced = epoch`."""
        must(sync.epoch >= self.promised, "SYNC-PROMISE: a Sync below the promise is refused")
        switched = sync.history != self.history
        before = set(self.topics)
        told = switched and self.history != 0
        fresh = switched or not self.synced
        if switched:
            self.begin_history(sync.history, sync.first)
        named = set()
        marks: list[tuple[TopicLog, int]] = []
        gone: list[TopicLog] = []
        for part in parts:
            named.add(part.topic)
            if part.gone:
                if part.topic in self.topics:
                    gone.append(self.topics[part.topic])
                continue
            marks.append((self._install(part, silent=fresh), part.committed))
        if sync.whole:
            gone.extend(log for name, log in self.topics.items() if name not in named)
        for log in gone:
            must(log.committed == 0, "COMMITTED-STAYS: a topic with committed entries does not go")
        self.drop(gone)
        self.promised = self.synced = sync.epoch
        self.view = View(sync.epoch, sync.owner, tuple(sync.members), sync.copies, sync.activated)
        if sync.activated:
            if fresh:
                for log, mark in marks:
                    log.committed = max(log.committed, log.last if self.immediate else min(mark, log.last))
            elif self.immediate:
                self.commit_all()
            else:
                for log, mark in marks:
                    self.commit(log, mark)
        if told:
            self.tell_reset(before | set(self.topics))

    def _install(self, part: TopicPart, silent: bool) -> TopicLog:
        log = self.log(part.topic)
        committed = log.committed
        known = log.epoch_at(committed)
        must(part.last >= committed, "COMMITTED-STAYS: a committed entry is never cut")
        if part.whole:
            self._replace(log, part.base, part.base_epoch, part.entries)
        else:
            base, base_epoch = log.base, log.base_epoch
            entries = log.between(base, part.keep) if part.keep > base else []
            entries.extend(entry for entry in part.entries if entry.sequence > base)
            older = [entry for entry in part.older if entry.sequence <= base]
            if older and older[-1].sequence == base:
                base, base_epoch = part.base, part.base_epoch
                entries = older + entries
            self._replace(log, base, base_epoch, entries)
        log.table.rows = {row.publisher: (row.id, row.epoch, row.sequence) for row in part.table}
        now = log.epoch_at(committed)
        must(known is None or now is None or known == now, "COMMITTED-STAYS: a committed entry is never replaced")
        self._keep_committed(log, committed, silent)
        return log

    def _replace(self, log: TopicLog, base: int, base_epoch: int, entries: list[Publication]) -> None:
        before = log.bytes
        log.replace(base, base_epoch, entries)
        self.bounds.grew(log, log.bytes - before)

    def _keep_committed(self, log: TopicLog, committed: int, silent: bool) -> None:
        """GAP-TOLD: what was evicted elsewhere before it came here was committed; live subscribers are told."""
        log.committed = max(committed, log.base)
        if log.base > committed and not silent:
            self.ctx.emit(Gap(log.name, "truncated", log.current(self.first), committed + 1, log.base))
