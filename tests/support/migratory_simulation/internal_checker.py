"""The invariants of docs/concepts/replication.md, checked from inside over copies, promises and coordinators.

The checker reads the ZooKeeper records in the modelled ensemble and, after each step, the groups of the broker that
stepped. From both it derives on its own what is committed (accepted in an epoch by minCopies listed incarnations) and
compares everything that brokers say with that. Each check raises `Violation` at the step that breaks it. `after_step`
reads most of `Logic`'s names.
"""

from __future__ import annotations

from math import inf
from typing import TYPE_CHECKING

from migratory_broker.core.logic.membership.records import GroupRecord, SourceEpoch, decode_group
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_protocol.peer import BrokerId, Promise
from migratory_protocol.positions import Position

from migratory_simulation.epochs import Committed, EpochState, Incarnations
from migratory_simulation.external_checker import Key, Violation, key_of

if TYPE_CHECKING:
    from migratory_simulation.process import Process
    from migratory_simulation.world import World


HISTORY_WAIT = 12.0
"""Seconds, scaled by the run's tempo, after which replaced processes that still run have fenced themselves. A new
history must wait for that long."""
SLACK = 0.001
"""Seconds of tolerance for rounding of virtual times."""


class InternalChecker:
    """The committed state of the cluster, derived from ZooKeeper records and brokers, and the invariants over it."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.epochs: dict[tuple[int, int], EpochState] = {}
        self.latest: dict[int, GroupRecord] = {}
        self.since_activated: dict[int, list[GroupRecord]] = {}
        self.lives = Incarnations()
        self.committed: dict[tuple[str, int], Committed] = {}
        self.over: dict[tuple[int, int], float] = {}  # (group, first) -> when the replaced must have fenced themselves
        self.floors: dict[tuple[int, int], list[Position]] = {}  # (group, first) -> floors, rising
        self.removed: dict[tuple[str, int], Position] = {}  # (topic, first) -> floor of its last removal
        self.unrecorded: set[int] = set()  # groups whose records ZooKeeper has lost
        self._seen: dict[int, dict[int, tuple[int, int]]] = {}  # process -> group -> promised, synced
        # process -> topic -> last, base, publishers in its table, committed
        self._lasts: dict[int, dict[str, tuple[int, int, int, int]]] = {}
        world.ensemble.on_commit.append(self._changed)

    # ---- records

    def data_lost(self) -> None:
        """Note that ZooKeeper has lost records. Forget those of which no broker knows that they were written: nothing
        was done for them, so that their numbers may be given again."""
        for group, records in self.since_activated.items():
            while len(records) > 1 and not records[-1].activated and not self._is_known(group, records[-1].epoch):
                del self.epochs[group, records.pop().epoch]
                self.latest[group] = records[-1]
                self.world.coverage["records that nobody had read"] += 1
        self.unrecorded.update(self.latest)

    def _is_known(self, group: int, epoch: int) -> bool:
        """Return whether a running broker has read a record of the group from this epoch on, or promised the epoch."""
        running = self.world.running()
        read = [record for process in running if (record := process.logic.zookeeper.recorded.get(group)) is not None]
        newest = [record.epoch for record in read] + [process.replica(group).promised for process in running]
        return any(known >= epoch for known in newest)

    def continues(self, group: int) -> bool:
        """Return whether the group's coordinator can still commit in the last activated epoch, so that no later one was
        activated (RESTORE-COUNT): with it, minCopies members run that have promised no higher epoch."""
        record = self.since_activated[group][0]
        members = [
            process.identity
            for process in self.world.running()
            if not process.replaced
            and process.identity in record.members
            and process.replica(group).promised <= record.epoch
        ]
        return record.activated and tuple(record.owner) in members and len(members) >= record.copies

    def restorable(self, group: int, without: Process | None = None) -> bool:
        """Return whether the group's record could be restored (RESTORE-COUNT) when `without` is gone: all but at most
        minCopies - 1 of the configured brokers are on each list since the last activated one. Replaced processes that
        still run are asked nothing."""
        running = (process for process in self.world.running() if not process.replaced)
        alive = {process.identity for process in running if process is not without}
        return all(
            len(self.world.names) - sum(tuple(broker) in alive for broker in record.members) <= record.copies - 1
            for record in self.since_activated.get(group, [])
        )

    def _synced_runs(self, group: int, source: SourceEpoch) -> bool:
        """Return whether a member of the source epoch runs that is synced to it. If not, enough answers may show that
        it never was activated, and its record must be restored again (RESTORE-AGAIN)."""
        return any(
            process.identity in source.members and process.replica(group).synced >= source.epoch
            for process in self.world.running()
        )

    def _changed(self, path: str, data: bytes | None, version: int) -> None:
        """Handle a change that ZooKeeper has committed at `path`: record a broker's registration, or check and store a
        group's record. Ignore deletions and other nodes. Raise Violation for a wrong record."""
        if path.startswith("/brokers/") and data is not None:
            self.lives.begins(path.removeprefix("/brokers/"), int(data), self.world.scheduler.now)
        elif path.startswith("/groups/") and data is not None:
            self._record(int(path.removeprefix("/groups/")), decode_group(data))

    def _record(self, group: int, record: GroupRecord) -> None:
        """Check a new record of a group against the one before, and store it. Raise Violation if an epoch falls, or the
        record of an epoch changes in more than being activated."""
        before = self.latest.get(group)
        coverage = self.world.coverage
        self.world.trace("zookeeper", "**", f"group {group}: {record}")
        if before is not None and record.epoch == before.epoch:
            if (record.owner, record.members, record.copies) != (before.owner, before.members, before.copies):
                raise Violation(5, f"group {group}: the record of an epoch changed from {before} to {record}")
            if record.activated and not before.activated:
                self.latest[group] = record
                self._activated(group, record)
            return
        if before is not None and record.epoch < before.epoch:
            raise Violation(5, f"group {group}: epoch {record.epoch} was recorded after {before.epoch}")
        self.latest[group] = record
        self.epochs[group, record.epoch] = EpochState(record)
        self.since_activated.setdefault(group, []).append(record)
        if before is None or record.history != before.history:
            self._new_history(group, before, record)
        elif group in self.unrecorded:
            self.unrecorded.discard(group)
            coverage["restored records"] += 1
        elif before.owner == record.owner and before.activated:
            coverage["relistings"] += 1
        else:
            coverage["takeovers"] += 1
        if before is not None and any(broker not in before.members for broker in record.members):
            coverage["promotions"] += 1
        if record.activated:
            self._activated(group, record)

    def _new_history(self, group: int, before: GroupRecord | None, record: GroupRecord) -> None:
        """Record a new history, and check that the old one was lost, and long enough ago. Raise Violation otherwise,
        also in a safe plan and under `onHistoryLoss: halt`, which allow no new history."""
        self.world.coverage["histories"] += 1
        self.world.external.history_begins(group, record.first)
        if before is None:
            return
        now = self.world.scheduler.now
        unrecorded = group in self.unrecorded
        # A history whose record is gone as well is replaced at once (docs/concepts/guarantees.md, Not promised).
        self.over[group, before.first] = now + HISTORY_WAIT * self.world.options.tempo if unrecorded else now
        source = before.as_source()
        refuted = source is not None and not self._synced_runs(group, source) and not self.restorable(group)
        restorable = unrecorded and (self.restorable(group) or self.continues(group))
        self.unrecorded.discard(group)
        self.since_activated[group] = [record]
        if source is None:
            return
        if restorable:
            raise Violation(1, f"group {group}: a new history, though the record can be restored: {before}")
        if unrecorded:
            self.world.coverage["unrestorable records"] += 1
            return
        if self.world.on_history_loss == "halt":
            raise Violation(1, f"group {group}: a new history under `halt`: {record}")
        if self.world.options.plan.safe:
            raise Violation(1, f"group {group}: a new history, though no list lost more than q - 1: {before}")
        if refuted:
            self.world.coverage["unrestorable records"] += 1
            return
        here = self.lives.here(source.members)
        if source.enough(here):
            raise Violation(1, f"group {group}: a new history, though {here} of {source} are not replaced")
        waited = now - self.lives.lost_at(source)
        if waited < HISTORY_WAIT * self.world.options.tempo - SLACK:
            raise Violation(1, f"group {group}: a new history {waited:.2f} s after the old one was lost: {source}")

    def halts(self, process: Process, group: int) -> None:
        """Check that the history of a group which a broker halts is lost. Raise Violation of invariant 7 otherwise."""
        record = self.latest.get(group)
        source = None if record is None else record.as_source()
        if group in self.unrecorded:
            if self.restorable(group) or self.continues(group):
                raise Violation(7, f"{process.label} halts group {group}, whose record can be restored: {record}")
            return
        if record is None:
            return  # brokers hold something of a group without a record: unknown
        here = [] if source is None else self.lives.here(source.members)
        if source is not None and not self._synced_runs(group, source) and not self.restorable(group):
            return
        if source is None or source.enough(here):
            raise Violation(7, f"{process.label} halts group {group}, though {here} of {source} are not replaced")

    def _activated(self, group: int, record: GroupRecord) -> None:
        """Record that an epoch is activated, and count the votes. Raise Violation unless enough listed brokers hold its
        log, and its owner holds all that was committed."""
        term = self.epochs[group, record.epoch]
        if len(term.synced) < record.copies:
            raise Violation(1, f"group {group}: {record} is activated, though only {sorted(term.synced)} hold its log")
        term.activated = True
        self.since_activated[group] = [record]
        owner = self.process_of(record.owner)
        if owner is not None:
            self._check_adopted(group, record, owner)
        self._check_removal(group, record)
        for topic in list(term.votes):
            self._count(group, term, topic, owner)

    def _check_adopted(self, group: int, record: GroupRecord, owner: Process) -> None:
        """Check that the log of an epoch's owner, which activates it, holds every committed publication, unless its
        topic was removed. Raise Violation otherwise."""
        where = f"{owner.label} activates epoch {record.epoch} of group {group}"
        topics = owner.replica(group).topics
        suffix = any((topic, record.first) not in self.committed and log.last > 0 for topic, log in topics.items())
        for (topic, first), committed in self.committed.items():
            if self.world.external.group_of[topic] != group or first != record.first:
                continue
            log = topics.get(topic)
            last = 0 if log is None else log.last
            removed = self.removed.get((topic, first))
            if removed is not None and log is not None and last <= removed.sequence:
                raise Violation(2, f"{where} with {topic} up to {last}, not above the floor {removed} of its removal")
            if removed is not None and log is None and committed.last < removed.sequence:
                continue
            if last < committed.last:
                raise Violation(1, f"{where} with {topic} up to {last}; committed are {committed.last}")
            for entry in () if log is None else log.entries:
                known = committed.entries.get(entry.sequence)
                if known is not None and known != (entry.epoch, key_of(entry.payload)):
                    raise Violation(1, f"{where} with {entry} in {topic}, where {known} was committed")
            suffix = suffix or last > committed.last
        if suffix:
            self.world.coverage["adopted suffixes"] += 1

    def _check_removal(self, group: int, record: GroupRecord) -> None:
        """Check FLOOR and REMOVED-EMPTY: an activated epoch removes only idle topics of which nothing is left, and its
        floor is above all that was committed in them. Raise Violation otherwise."""
        floors = self.floors.setdefault((group, record.first), [Position(record.first, 0)])
        holders = [
            process
            for process in self.world.running()
            if process.identity in self.epochs[group, record.epoch].synced
            and process.replica(group).synced == record.epoch
        ]
        holders.sort(key=lambda process: process.identity != tuple(record.owner))  # the owner first
        removed = holders[0].replica(group).removed if holders else []
        for process in holders:
            replica = process.replica(group)
            if replica.floor != floors[-1]:
                raise Violation(2, f"{process.label} begins epoch {record.epoch} with floor {replica.floor}: {floors}")
            if replica.removed != removed:
                raise Violation(3, f"{process.label} removes {replica.removed}, {holders[0].label} {removed}")
        if not removed:
            return
        options = self.world.options
        logs = [holders[0].replica(group).topics[topic] for topic in removed]
        for log in logs:
            committed = self.committed.get((log.name, record.first), Committed())
            silent = self.world.scheduler.now - committed.at
            if log.table.rows:
                raise Violation(4, f"{log.name} is removed with the publishers {sorted(log.table.rows)}")
            if silent < options.topic_idle / 2:  # brokers' clocks may run ahead
                raise Violation(1, f"{log.name} is removed {silent:.2f} s after its last publication")
            if log.last > log.base and holders[0].identity == tuple(record.owner):
                raise Violation(1, f"{log.name} is removed with publications that can be replayed")
        floors.append(Position(record.epoch, 1 + max(floors[-1].sequence, *(log.last for log in logs))))
        self.world.coverage["topics removed"] += len(removed)
        for topic in removed:
            self.removed[topic, record.first] = floors[-1]

    # ---- steps of brokers

    def process_of(self, broker: BrokerId) -> Process | None:
        """Return the running process of an incarnation, or None."""
        for process in self.world.processes:
            if process.running and process.identity == tuple(broker):
                return process
        return None

    def is_coordinator(self, process: Process) -> bool:
        """Return whether the process owns the latest ZooKeeper record of any group."""
        return any(tuple(record.owner) == process.identity for record in self.latest.values())

    def process_ended(self, process: Process) -> None:
        """Forget the state of a process that ended."""
        self._seen.pop(process.number, None)
        self._lasts.pop(process.number, None)

    def may_lose(self, process: Process, *, drains: bool = True) -> bool:
        """Return whether every member list since the last activated one has lost at most minCopies - 1 members when
        this process and, unless `drains` is false, the draining ones are gone. Of an epoch that was restored though it
        may not have been activated, every member is needed (RESTORE-SOURCE)."""
        alive = {
            other.identity for other in self.world.running() if other is not process and not (drains and other.draining)
        }
        if self.world.options.plan.loses_data and not all(self.restorable(group, process) for group in self.latest):
            return False
        return all(
            sum(tuple(broker) not in alive for broker in record.members) <= record.copies - 1
            and (record.source is None or record.activated or record.source.enough(alive))
            for records in self.since_activated.values()
            for record in records
        )

    def after_step(self, process: Process) -> None:
        """Check the changes that a broker's step made, and raise Violation for a wrong one. Most steps change nothing,
        so this is kept cheap."""
        number = process.number
        seen = self._seen.get(number)
        if seen is None:
            seen = self._seen[number] = {}
        lasts = self._lasts.get(number)
        if lasts is None:
            lasts = self._lasts[number] = {}
        for view in process.logic.groups:
            replica = view.replica
            state = (replica.promised, replica.synced)
            group = view.number
            if seen.get(group) != state:
                self._moved(process, group, seen.get(group, (0, 0)), state, lasts)
                seen[group] = state
            for topic, log in replica.topics.items():
                known = lasts.get(topic)
                rows = len(log.table.rows)
                if known is not None and known[3] != log.committed:
                    lasts[topic] = (*known[:3], log.committed)
                    if view.term is not None:
                        process.progress.committed_at[group] = process.local_now()
                if known is None or known[0] != log.last or known[1] != log.base or known[2] != rows:
                    lasts[topic] = (log.last, log.base, rows, log.committed)
                    if known is not None and rows < known[2]:
                        self.check_forgotten(process, group, state, log)
                    self._grown(process, group, state, log, known)
                    committed = self.committed.get((topic, replica.first))
                    if log.committed > (0 if committed is None else committed.last) and not (
                        log.committed == log.base and self._is_floor(group, replica.first, log.current(replica.first))
                    ):
                        raise Violation(5, f"{process.label} takes {topic} for committed up to {log.committed}")

    def answered(self, candidate: Process, promise: Promise) -> None:
        """Count a promise that a candidate gets in time from a log that is not synced to its source, and that it
        therefore must not merge."""
        term = candidate.logic.groups[promise.group].term
        source = None if term is None else term.record.source
        if term is None or source is None or term.phase != "preparing" or term.epoch != promise.epoch:
            return
        if promise.last and promise.synced < source.epoch:
            self.world.coverage["answers below the source"] += 1

    def check_forgotten(self, process: Process, group: int, state: tuple[int, int], log: TopicLog) -> None:
        """Check FORGET-ALIKE for a publisher table that has become shorter in the epoch `state` (promised, synced).
        Raise Violation of invariant 4 otherwise.

        A coordinator forgets a publisher that was silent for the duplicate window by its own clock, and whose last
        publication is committed. Another broker that holds the same log of the same epoch may have forgotten only
        publishers that the coordinator forgot.
        """
        term = self.epochs.get((group, state[1]))
        if term is None or state[0] != state[1]:
            return
        rows = log.table.rows
        owner = self.process_of(term.record.owner)
        if owner is process:
            now = process.local_now()
            for publisher, numbered in term.publishers.get(log.name, {}).items():
                silent = now - numbered
                if publisher in rows:
                    continue
                where = f"{process.label} forgets {publisher} in {log.name}"
                if silent < self.world.options.duplicate_window - SLACK:
                    raise Violation(4, f"{where} {silent:.1f} s after its last publication")
                if any(entry.id and entry.publisher == publisher for entry in log.between(log.committed, log.last)):
                    raise Violation(4, f"{where}, whose last publication is not committed")
        elif owner is not None:
            replica = owner.replica(group)
            theirs = replica.topics.get(log.name)
            # A member with the same log has received the same forgotten publishers.
            if (replica.promised, replica.synced) == state and theirs is not None and theirs.last == log.last:
                early = sorted(theirs.table.rows.keys() - rows.keys())
                if early:
                    raise Violation(4, f"{process.label} has forgotten {early} in {log.name}, its coordinator has not")

    def _moved(
        self,
        process: Process,
        group: int,
        before: tuple[int, int],
        state: tuple[int, int],
        lasts: dict[str, tuple[int, int, int, int]],
    ) -> None:
        """Record that a replica promised a higher epoch or synced to another one. Raise Violation if the promised
        epoch falls."""
        if state[0] > before[0]:
            self._promised(group, process.identity, state[0])
        term = self.epochs.get((group, state[1]))
        if term is not None and process.identity in term.record.members:
            term.synced.add(process.identity)
        if state[0] < before[0]:
            raise Violation(5, f"{process.label} group {group}: promised falls from {before[0]} to {state[0]}")
        for topic in self.world.options.topics:  # also topics that are gone: they may come back unchanged
            if self.world.external.group_of[topic] == group:
                lasts.pop(topic, None)

    def _grown(
        self,
        process: Process,
        group: int,
        state: tuple[int, int],
        log: TopicLog,
        known: tuple[int, int, int, int] | None,
    ) -> None:
        """Record a log that changed: evictions, new sequence numbers, and the broker's vote. `known` is its state
        before: last and base sequence number, number of publishers, committed mark; None if it is new."""
        promised, synced = state
        if known is not None and log.base > known[1]:
            self.world.coverage["evictions"] += 1
        term = self.epochs.get((group, synced))
        if term is None:
            return
        if log.epoch_at(log.last) == synced:
            self._numbered(process, term, log)
        if promised == synced and (me := process.identity) in term.record.members:
            votes = term.votes.setdefault(log.name, {})
            if votes.get(me, -1) < log.last:
                votes[me] = log.last
                self._count(group, term, log.name, process)

    @staticmethod
    def _numbered(process: Process, term: EpochState, log: TopicLog) -> None:
        """Record newly assigned sequence numbers. Raise Violation unless the coordinator of an activated epoch assigned
        them."""
        before = term.numbered.get(log.name, 0)
        if log.last <= before:
            return
        term.numbered[log.name] = log.last
        publishers = term.publishers.setdefault(log.name, {})
        for sequence in range(max(before, log.base) + 1, log.last + 1):
            entry = log.entry(sequence)
            if entry is not None and entry.id and entry.epoch == term.record.epoch:
                publishers[entry.publisher] = process.local_now()
        record = term.record
        if tuple(record.owner) != process.identity:
            raise Violation(
                5,
                f"{process.label} has {log.name} {record.epoch}:{log.last}, which the coordinator, "
                f"{record.owner}, never numbered",
            )
        if not term.activated:
            raise Violation(
                5, f"{process.label} numbers {log.name} {record.epoch}:{log.last} before the epoch is activated"
            )

    def _promised(self, group: int, me: BrokerId, promised: int) -> None:
        """Record in every lower epoch that lists `me` that this member has promised a higher one. Once enough have,
        nothing new may commit there."""
        for (other, epoch), term in self.epochs.items():
            if other != group or epoch >= promised or me not in term.record.members or me in term.promised_higher:
                continue
            term.promised_higher.add(me)
            record = term.record
            if term.limits is None and len(term.promised_higher) >= len(record.members) - record.copies + 1:
                term.limits = dict(term.numbered)

    def _count(self, group: int, term: EpochState, topic: str, process: Process | None) -> None:
        """Count the votes of listed incarnations for a topic, and commit what has enough. Raise Violation if the
        epoch may not commit any more."""
        record = term.record
        if not term.activated:
            return
        votes = sorted(term.votes[topic].values(), reverse=True)
        if len(votes) < record.copies:
            return
        reached = votes[record.copies - 1]
        if reached <= term.committed.get(topic, 0):
            return
        term.committed[topic] = reached
        committed = self.committed.setdefault((topic, record.first), Committed())
        if term.limits is not None and reached > max(term.limits.get(topic, 0), committed.last):
            raise Violation(
                5,
                f"{topic} {record.epoch}:{reached} is committed after {sorted(term.promised_higher)} "
                f"promised more than {record.epoch}",
            )
        holder = None if process is None else process.replica(group).topics.get(topic)
        if holder is not None:
            for sequence in range(min(committed.last, reached - 1) + 1, reached + 1):
                entry = holder.entry(sequence)
                if entry is not None:
                    self._commit(topic, committed, entry.position, key_of(entry.payload))
        if reached > committed.last:
            committed.last, committed.at = reached, self.world.scheduler.now

    def _is_floor(self, group: int, first: int, position: Position) -> bool:
        """Return whether the position is a floor of the group in that history: all of it was committed and is gone."""
        return position in self.floors.get((group, first), ())

    def _commit(self, topic: str, committed: Committed, position: Position, key: Key) -> None:
        """Record a committed publication. Raise Violation if another one is committed at its position, or the same one
        at another position."""
        known = committed.entries.get(position.sequence)
        if known is not None:
            if known != (position.epoch, key):
                raise Violation(3, f"{topic} {position} {key} is committed where {known} was committed")
            return  # committed in an earlier epoch, too: the duplicate window began then
        other = committed.keys.get(key)
        if other is not None and other != position.sequence:
            raise Violation(4, f"{topic}: {key} is committed at sequence numbers {other} and {position.sequence}")
        if key.id:
            now, window = self.world.scheduler.now, self.world.options.duplicate_window
            at, before = committed.ids.get((key.publisher, key.id), (-window, key))
            if before != key and now - at < window / 2:  # brokers' clocks may run ahead
                raise Violation(4, f"{topic} {position}: {key} is committed {now - at:.1f} s after {before}")
            committed.ids[key.publisher, key.id] = now, key
        committed.entries[position.sequence] = (position.epoch, key)
        committed.keys[key] = position.sequence

    def ready(self, process: Process) -> None:
        """Check READY: a broker that accepts clients has been synced, as a listed member, to an activated epoch of
        every group. Raise Violation of invariant 1 otherwise."""
        me = process.identity
        for number in range(self.world.options.groups):
            terms = [term for (group, _), term in self.epochs.items() if group == number]
            if not any(term.activated and me in term.record.members and me in term.synced for term in terms):
                raise Violation(1, f"{process.label} takes clients, and was on no activated list of group {number} yet")

    def heard(self, process: Process) -> None:
        """Check what FENCE-ISOLATED relies on: the moment that a broker records for ZooKeeper's last answer is not
        later than the moment at which it was given, however long the answer lay in a socket. Raise Violation of
        invariant 1 otherwise.

        A broker that registers records the moment at which it got the answer, because it serves no clients yet.
        """
        zookeeper = process.logic.zookeeper
        if zookeeper.heard_at == process.logic.membership.registered_at:
            return
        late = zookeeper.heard_at - process.offset - process.zk.served_at
        if late > SLACK:
            raise Violation(
                1, f"{process.label} counts ZooKeeper as heard {late:.3f} s after its last answer was given"
            )

    # ---- statements of brokers

    def shown(self, process: Process, topic: str, position: Position, key: Key | None) -> None:
        """Check that a publication that a broker shows for the first time, or with `key` None a position that it names,
        is committed. Raise Violation otherwise."""
        first = self.world.external.history_of(topic, position.epoch)
        if key is None and self._is_floor(self.world.external.group_of[topic], first, position):
            return
        committed = self.committed.get((topic, first))
        if committed is None or position.sequence > committed.last:
            raise Violation(
                5,
                f"{process.label} shows {topic} {position}; committed are {0 if committed is None else committed.last}",
            )
        known = committed.entries.get(position.sequence)
        if known is not None and (known[0] != position.epoch or (key is not None and known[1] != key)):
            raise Violation(3, f"{process.label} shows {key} at {topic} {position}, where {known} was committed")
        if known is None and key is not None:  # committed and evicted within one step
            self._commit(topic, committed, position, key)

    def named_current(self, process: Process, topic: str, position: Position) -> None:
        """Check that a position that a broker names as a topic's last one is committed, or the beginning of the topic.
        Raise Violation otherwise."""
        if position.sequence:
            self.shown(process, topic, position, None)

    def acknowledged(
        self, process: Process, topic: str, publisher: str, number: int, position: Position | None
    ) -> None:
        """Check that an acknowledgement has the position at which the publication is committed, in a history that is
        not over. Raise Violation otherwise. A replaced process may continue a history without a record until it must
        have fenced itself."""
        key = Key(publisher, topic, number)
        if position is None:
            raise Violation(1, f"{process.label} acknowledges {key} without a position")
        first = self.world.external.history_of(topic, position.epoch)
        committed = self.committed.get((topic, first))
        epoch, stored = committed.entries.get(position.sequence, (0, None)) if committed else (0, None)
        if stored is None or (epoch, *stored[:3]) != (position.epoch, *key[:3]):
            raise Violation(
                1, f"{process.label} acknowledges {key} at {position}; committed at {self.committed_at(key, first)}"
            )
        over = self.over.get((self.world.external.group_of[topic], first), inf)
        if over <= self.world.scheduler.now or (over < inf and not process.replaced):
            raise Violation(1, f"{process.label} acknowledges {key} at {position}, in a history that is over")

    def committed_epoch(self, topic: str, first: int, sequence: int) -> int:
        """Return the epoch of the publication that is committed at a sequence number of a history, 0 if it is not
        known."""
        committed = self.committed.get((topic, first))
        return committed.entries.get(sequence, (0, None))[0] if committed else 0

    def committed_at(self, key: Key, first: int) -> Position | None:
        """Return the position at which a publication is committed in a history, None if it is not."""
        committed = self.committed.get((key.topic, first))
        sequence = None if committed is None else committed.keys.get(key)
        if committed is None or sequence is None:
            return None
        return Position(committed.entries[sequence][0], sequence)

    def is_committed(self, key: Key) -> bool:
        """Return whether a publication is committed in any history."""
        return any(key in committed.keys for (topic, _), committed in self.committed.items() if topic == key.topic)
