"""A broker's copy of one topic group, used by `group.py` and `term.py`: promises, logs and committed marks. `group.py`
has the rules about messages.

`promised`: no lower epoch is obeyed. `synced`: the epoch whose coordinator's logs these logs are prefixes of, 0 if
none. `view`: what this broker knows of that epoch. `floor`: the position of every topic without a log. `removed`: the
idle topics that the epoch removes when it is activated. All of it is in memory: the copy is lost when the process ends.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import islice
from typing import Protocol

from migratory_protocol.peer import BrokerId, ForwardReply, LogDigest, Publication, Sync, TopicPart
from migratory_protocol.positions import Position

from migratory_broker.core.logic.context import Context, expect, must
from migratory_broker.core.logic.events import Gap
from migratory_broker.core.logic.replication.cache import Cache
from migratory_broker.core.logic.replication.snapshot import check_floor, epoch_in, merge
from migratory_broker.core.logic.replication.topic_log import PublisherTable, TopicLog

LASTS_MODULUS = 2**62
"""The modulus of a snapshot's sum of last sequence numbers, so that it fits the wire whatever they are."""

MAX_REMOVED = 10_000
"""Idle topics that one epoch removes: some 10 ms of work at every broker, and a message of 2.5 MB at most."""


class ReplicationListener(Protocol):
    """The interface through which topic groups report commits, replies, and changes of their epochs.
    `serving.commits.CommitListener` implements it."""

    def committed(self, group: int, log: TopicLog, publications: list[Publication]) -> None:
        """Handle the commit of publications of one topic at this broker. They are consecutive, oldest first, and the
        log's committed mark includes them."""

    def reply(self, contact: str | None, reply: ForwardReply) -> None:
        """Send a reply of this broker, as coordinator, about one publication to the broker `contact` that forwarded it
        (None: to this broker's own clients)."""

    def synced(self, group: int) -> None:
        """Handle that the group's replica at this broker was synced by a Sync, or that the epoch that it is synced to
        was activated."""

    def activated(self, group: int, epoch: int, coordinator: str) -> None:
        """Handle the activation of the epoch that the group is synced to, by its coordinator `coordinator`."""


@dataclass(slots=True)
class EpochView:
    """A replica's knowledge of the epoch that it is synced to: the owner, the members, the number of copies that
    commits an entry, and whether the epoch is activated.

    It comes from the coordinator's `Sync`, or at the coordinator from its own record. `activated` is True
    from the start if the `Sync` is of an activated epoch; else it becomes True with the activation.
    """

    epoch: int
    owner: BrokerId
    members: tuple[BrokerId, ...]
    copies: int
    activated: bool


class Replica:
    """The logs of one topic group at this broker, with the promised epoch and the epoch that they are synced to."""

    def __init__(self, ctx: Context, cache: Cache, group: int, listener: ReplicationListener) -> None:
        self.ctx = ctx
        self.cache = cache
        self.group = group
        self.history = 0
        self.first = 0
        self.promised = 0
        self.synced = 0
        self.view: EpochView | None = None
        self.topics: dict[str, TopicLog] = {}
        self.floor = Position(0, 0)
        self.removed: list[str] = []
        self._followed: set[str] = set()  # topics without a publication that have subscribers
        self._committed = listener.committed

    # ---- state -----------------------------------------------------------------------------------------------

    @property
    def listed(self) -> bool:
        """True if this incarnation is on the list of the epoch that the replica is synced to. False also while it is
        synced to none."""
        return self.view is not None and self.ctx.me in self.view.members

    @property
    def settled(self) -> bool:
        """True if the replica is synced to an activated epoch that lists this incarnation, and no higher epoch is
        promised."""
        return self.listed and self.view is not None and self.view.activated and self.promised == self.synced

    @property
    def immediate(self) -> bool:
        """IMMEDIATE-COMMIT: True if an entry is committed as soon as this broker accepts it: a listed member of an
        activated epoch with two copies holds the second copy, besides the coordinator's. True at the coordinator of
        such an epoch too, where only votes commit what it numbers."""
        view = self.view
        return view is not None and view.copies == 2 and view.activated and self.listed and view.owner in view.members

    def synced_in(self, history: int) -> int:
        """Return `synced` if this replica is of the history `history`, else 0: logs of another history count for
        nothing."""
        return self.synced if history == self.history else 0

    def digests(self) -> list[LogDigest]:
        return [log.digest() for log in self.topics.values()]

    def lasts(self) -> dict[str, int]:
        """Return the last sequence number of each topic, by name."""
        return {name: log.last for name, log in self.topics.items()}

    def position(self, topic: str) -> Position:
        """Return the current (committed) position of a topic. Before its first commit, and for a topic without a log,
        that is the floor, or (first epoch of the history, 0) while no topic was removed."""
        return (self.topics.get(topic) or self.vacant(topic)).current(self.first)

    def vacant(self, topic: str) -> TopicLog:
        """FLOOR: return a new empty log for a topic that has none, as if everything up to the floor had been evicted.
        It is not added to `topics`."""
        floor = self.floor
        return TopicLog(topic, floor.sequence, floor.epoch if floor.sequence else 0)

    def idle_topics(self) -> list[str]:
        """REMOVED-EMPTY: return the names of topics, `MAX_REMOVED` at most, without a publication for
        `topic_idle_timeout`, of which neither a cached entry nor a publisher is left. [] with a timeout of 0. Nothing
        is removed."""
        timeout = self.ctx.config.topic_idle_timeout
        if not timeout:
            return []
        limit = self.ctx.now - timeout
        idle = (
            log.name
            for log in self.topics.values()
            if log.appended_at <= limit and log.base == log.last and not log.table.rows
        )
        return list(islice(idle, MAX_REMOVED))

    # ---- changes ---------------------------------------------------------------------------------------------

    def promise(self, epoch: int) -> None:
        must(epoch >= self.promised, "PROMISE-RISES: a promise is never taken back")
        self.promised = epoch

    def log(self, topic: str) -> TopicLog:
        """Return the log of a topic. If there is none, create and add an empty one that begins at sequence number 0."""
        return self.topics.get(topic) or self._add(TopicLog(topic))

    def open(self, topic: str) -> TopicLog:
        """Return the log of a topic, for its next publication. FLOOR: if there is none, create and add one above the
        floor, and report the sequence numbers up to the floor as missing to the edges, with a `Gap`. They know which
        subscribers have an older position."""
        log = self.topics.get(topic)
        if log is None:
            log = self._add(self.vacant(topic))
            if log.base:
                self.ctx.emit(Gap(topic, "truncated", self.floor, 1, log.base))
        return log

    def _add(self, log: TopicLog) -> TopicLog:
        """Add the log of a new topic to this group and to the cache, and return it. Its idle time begins now."""
        self.topics[log.name] = log
        log.appended_at = self.ctx.now
        self._followed.discard(log.name)
        self.cache.register(log)
        return log

    def append(self, log: TopicLog, publication: Publication) -> None:
        """Store the next entry of a log, and count its bytes in the cache. The log's idle time begins anew."""
        size = log.append(publication)
        log.appended_at = self.ctx.now
        if len(log.entries) > 1:  # the common case, without a call
            self.cache.bytes += size
        else:
            self.cache.grew(log, size)

    def commit(self, log: TopicLog, to: int) -> None:
        """COMMITTED-ONLY: commit the log's entries up to sequence number `to`, or to the last one if `to` is higher.
        Report them to the listener and trim the log. Nothing if they are committed already.

        All that is delivered live or acknowledged passes here. Only `install` commits otherwise, without a report: the
        logs of a replica that was not synced before.
        """
        to = min(to, log.last)
        if to <= log.committed:
            return
        publications = log.between(log.committed, to)
        log.committed = to
        self._committed(self.group, log, publications)
        self.cache.trim(log, self.ctx.wall)

    def commit_all(self) -> None:
        for log in self.topics.values():
            self.commit(log, log.last)

    def activate(self) -> None:
        """ACTIVATION-COMMITS: mark the synced epoch as activated, commit all entries and remove the idle topics that it
        names. Nothing if it is activated already. Raise InvariantError if the replica is synced to no epoch."""
        view = self.view
        must(view is not None, "ACTIVATION-COMMITS: an epoch that is activated was synced to")
        if view is not None and not view.activated:
            view.activated = True
            self.commit_all()
            self.remove_idle(view.epoch)

    def remove_idle(self, activated: int) -> None:
        """REMOVED-WITH-EPOCH: remove the idle topics that the synced epoch names if that epoch is `activated`, an epoch
        that is known to be activated; otherwise nothing. FLOOR: the floor rises above every position that they had.
        Their subscribers are remembered (`follow`)."""
        if self.removed and activated == self.synced:
            logs = [self.topics[name] for name in self.removed]
            self.removed = []
            self.floor = Position(activated, 1 + max(self.floor.sequence, *(log.last for log in logs)))
            self.drop(logs)
            for log in logs:
                self.follow(log.name)

    def begin_history(self, history: int, first: int) -> None:
        """NEW-HISTORY: drop all logs and begin the history `history` with first epoch `first`, synced to no epoch, with
        the floor (`first`, 0). The promise stays. Subscribers are not notified: the caller does that with
        `announce_reset`."""
        self.drop(list(self.topics.values()))
        self.ctx.histories += 1
        self.history, self.first = history, first
        self.floor, self.removed = Position(first, 0), []
        self.synced = 0
        self.view = None

    def follow(self, topic: str) -> None:
        """Remember a subscribed topic that has no log, so that its subscribers are notified when another history
        begins. The number of such topics is limited, to this group's share of `max_topics` and 100 more; beyond it a
        topic is not remembered."""
        limit = self.ctx.config.max_topics // self.ctx.config.groups + 100
        if topic not in self.topics and len(self._followed) < limit:
            self._followed.add(topic)

    def announce_reset(self, topics: set[str]) -> None:
        """Emit a `Gap` of kind `reset` for each of `topics`, and for each remembered topic, with its current position
        in the history that has begun.

        Topics without a log are remembered (`follow`): their subscribers must be notified of the history after this one
        as well.
        """
        for topic in sorted(topics | self._followed):
            self.ctx.emit(Gap(topic, "reset", self.position(topic)))
            self.follow(topic)

    def drop(self, logs: list[TopicLog]) -> None:
        """Remove these logs from the group and from the cache. Nobody is notified, and the floor stays."""
        if logs:
            self.cache.unregister(logs)
            for log in logs:
                del self.topics[log.name]

    def adopt(self, parts: dict[str, list[TopicPart]], useful: bool) -> None:
        """Replace this candidate's logs by those merged from the promises. Committed marks stay.

        `parts` has the topics to which promises add anything. Without `useful` this broker's own logs are not synced to
        the source epoch or a later one, count for nothing, and those without a part are dropped. Live subscribers are
        notified of gaps. Raise InvariantError if a committed entry would be cut.
        """
        if not useful:
            self._drop_unknown([log for name, log in self.topics.items() if name not in parts])
        for topic in sorted(parts):
            merged = merge(self.topics.get(topic) if useful else None, parts[topic])
            log = self.log(topic)
            committed = log.committed
            must(merged.last >= committed, "COMMITTED-STAYS: a committed entry is never cut")
            self._replace(log, merged.base, merged.base_epoch, list(merged.entries))
            log.table = merged.table
            self._restore_committed(log, committed, silent=False)

    def _drop_unknown(self, logs: list[TopicLog]) -> None:
        """Drop logs of topics that the coordinator does not have. Raise InvariantError if anything above the floor is
        committed in one of them."""
        for log in logs:
            must(log.committed <= self.floor.sequence, "COMMITTED-STAYS: a topic with committed entries is not dropped")
        self.drop(logs)

    # ---- Sync ------------------------------------------------------------------------------------------------

    def fits(self, sync: Sync, parts: list[TopicPart]) -> bool:
        """Return whether `parts` would turn these logs into those of the Sync's sender, as far as that shows: no part
        keeps entries that are not here, and number of topics and sum of last sequence numbers are the sender's. Nothing
        changes."""
        same = sync.history == self.history
        lasts = {} if sync.whole or not same else self.lasts()
        for part in parts:
            if part.deleted:
                lasts.pop(part.topic, None)
            elif not part.whole and part.keep > (self.topics[part.topic].last if part.topic in lasts else -1):
                return False
            else:
                lasts[part.topic] = part.last
        return len(lasts) == sync.topics_total and sum(lasts.values()) % LASTS_MODULUS == sync.lasts_total

    def check(self, sync: Sync, parts: list[TopicPart]) -> None:
        """Raise PeerError unless a snapshot that fits may be installed. COMMITTED-STAYS: it cuts and replaces no
        committed entry. FLOOR: its floor exists and does not fall within a history. It removes only what
        `_check_removed` allows. Nothing changes."""
        expect(sync.first <= sync.epoch, "snapshot", "a history begins before its last epoch")
        check_floor(sync.floor, sync.epoch)
        same_history = sync.history == self.history
        falls = same_history and sync.floor.epoch and sync.floor < self.floor
        expect(not falls, "committed", "FLOOR: the floor never falls within a history")
        named = {part.topic for part in parts if not part.deleted}
        if sync.removed:
            self._check_removed(sync, parts)
        # a topic that began again, of which only the floor is committed, may go as if it had been removed
        committed = {
            name: log
            for name, log in self.topics.items()
            if same_history and log.committed and (name in named or log.committed > sync.floor.sequence)
        }
        for part in parts:
            log = committed.pop(part.topic, None)
            if log is None:
                continue
            stays = not part.deleted and part.last >= log.committed
            expect(stays, "committed", "COMMITTED-STAYS: a committed entry is never cut")
            known, now = log.epoch_at(log.committed), epoch_in(part, log.committed)
            same = known is None or now is None or known == now
            expect(same, "committed", "COMMITTED-STAYS: a committed entry is never replaced")
        dropped = sync.whole and bool(committed)
        expect(not dropped, "committed", "COMMITTED-STAYS: a topic with committed entries does not go")

    def _check_removed(self, sync: Sync, parts: list[TopicPart]) -> None:
        """REMOVED-WITH-EPOCH: raise PeerError unless the epoch of the Sync is not activated yet, and the topics that it
        removes exist at the sender, `MAX_REMOVED` at most, each named once. REMOVED-EMPTY: raise it unless nothing of
        them is left at the sender.

        This broker may still cache publications that the sender has evicted, as each evicts by its own clock and size.
        Publisher tables are the same everywhere.
        """
        own = {} if sync.whole or sync.history != self.history else self.topics
        empty = {name for name, log in own.items() if not log.table.rows}
        for part in parts:
            empty.discard(part.topic)
            if not part.deleted and part.base == part.last and not part.table:
                empty.add(part.topic)
        removed = set(sync.removed)
        once = not sync.activated and len(sync.removed) == len(removed) <= MAX_REMOVED
        rule = "REMOVED-WITH-EPOCH, REMOVED-EMPTY: an epoch removes topics of which nothing is left, each once"
        expect(once and removed <= empty, "snapshot", rule)

    def install(self, sync: Sync, parts: list[TopicPart]) -> None:
        """SYNC-WHOLE: make logs and publisher tables the sender's in one step; only then `promised = synced = epoch`.
        If the epoch is activated, commit what is committed at the sender, or everything where `immediate` holds, and
        report it to the listener. A replica that was not synced before, or is of another history, commits without a
        report. Notify subscribers of gaps, and of the new history if another one was replaced.

        Raise InvariantError if the epoch is below the promise, or a committed entry would be cut or replaced.
        """
        must(sync.epoch >= self.promised, "SYNC-PROMISE: a Sync below the promise is refused")
        switched = sync.history != self.history
        before = set(self.topics)
        replaced = switched and self.history != 0
        fresh = switched or not self.synced
        if switched:
            self.begin_history(sync.history, sync.first)
        self.floor, self.removed = max(self.floor, sync.floor), sync.removed
        named = set()
        marks: list[tuple[TopicLog, int]] = []
        dropped: list[TopicLog] = []
        for part in parts:
            named.add(part.topic)
            if part.deleted:
                if part.topic in self.topics:
                    dropped.append(self.topics[part.topic])
                continue
            marks.append((self._install(part, silent=fresh), part.committed))
        if sync.whole:
            dropped.extend(log for name, log in self.topics.items() if name not in named)
        self._drop_unknown(dropped)
        self.promised = self.synced = sync.epoch
        self.view = EpochView(sync.epoch, sync.owner, tuple(sync.members), sync.copies, sync.activated)
        if sync.activated:
            if fresh:
                for log, mark in marks:
                    log.committed = max(log.committed, log.last if self.immediate else min(mark, log.last))
            elif self.immediate:
                self.commit_all()
            else:
                for log, mark in marks:
                    self.commit(log, mark)
        if replaced:
            self.announce_reset(before | set(self.topics))

    def _install(self, part: TopicPart, silent: bool) -> TopicLog:
        """Make one topic's log and publisher table the sender's, and return the log. The committed mark stays, but is
        not before the log's beginning. `silent`: do not notify subscribers of a gap. Raise InvariantError if a
        committed entry would be cut or replaced."""
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
        log.table = PublisherTable(part.table)
        now = log.epoch_at(committed)
        must(known is None or now is None or known == now, "COMMITTED-STAYS: a committed entry is never replaced")
        self._restore_committed(log, committed, silent)
        return log

    def _replace(self, log: TopicLog, base: int, base_epoch: int, entries: list[Publication]) -> None:
        """Replace the entries of a log, and count the change of its bytes in the cache. Its idle time begins anew if
        its last sequence number changes."""
        before, last = log.bytes, log.last
        log.replace(base, base_epoch, entries)
        if log.last != last:
            log.appended_at = self.ctx.now
        self.cache.grew(log, log.bytes - before)

    def _restore_committed(self, log: TopicLog, committed: int, silent: bool) -> None:
        """GAP-TOLD: set the log's committed mark to `committed`, or to the log's beginning if that is later. In the
        latter case entries were committed and evicted elsewhere before they came here: notify live subscribers of the
        gap, unless `silent`."""
        log.committed = max(committed, log.base)
        if log.base > committed and not silent:
            self.ctx.emit(Gap(log.name, "truncated", log.current(self.first), committed + 1, log.base))
