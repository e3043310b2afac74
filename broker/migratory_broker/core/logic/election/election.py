"""Who writes the next record of a group, when, and with whom on its list.

EAGER: a group without a coordinator's ephemeral is taken over by the live brokers in an order of the group's own, one
progress timeout after the other. CAS: a record is written against the version that was read, in one transaction with
the ephemeral; after an unknown result it is read again, and is mine if owner and epoch are mine.
"""

from __future__ import annotations

from migratory_protocol.peer import BrokerId

from migratory_broker.core.logic.context import Context, must
from migratory_broker.core.logic.election.ephemerals import ElectionState, Ephemerals, claim
from migratory_broker.core.logic.election.history import Histories
from migratory_broker.core.logic.events import ZkCreate, ZkDelete, ZkOperation, ZkReply, ZkWrite
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.records import (
    COORDINATORS,
    GROUPS,
    BadRecord,
    GroupRecord,
    decode_group,
    encode,
    group_number,
    rendezvous,
)
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry
from migratory_broker.core.logic.replication.term import Term

PACE = 0.5  # seconds between two looks at a group that cannot be taken over yet


class Election:
    def __init__(
        self, ctx: Context, groups: GroupRegistry, zookeeper: ZkRequests, membership: Membership, histories: Histories
    ) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.histories = histories
        self.groups = groups
        self.ephemerals = Ephemerals(ctx, zookeeper, self.list_coordinators)
        self.standings = self.ephemerals.standings
        self._listed_at = float("-inf")
        self._known = False  # the coordinators were listed at least once

    # ---- which groups have a coordinator ---------------------------------------------------------------------

    def list_coordinators(self) -> None:
        self._listed_at = self.ctx.now
        self.zookeeper.children(COORDINATORS, self._listing, watch=True)

    def _listing(self, reply: ZkReply) -> None:
        if reply.outcome != "ok" or reply.children is None:
            return
        there = {group_number(name) for name in reply.children}
        self._known = True
        for number, standing in enumerate(self.standings):
            if number in there:
                standing.absent_since = None
                standing.waiting = ""
            elif standing.absent_since is None:
                standing.absent_since = self.ctx.now

    def changed(self, path: str) -> None:
        if path == COORDINATORS:
            self.list_coordinators()

    def new_session(self) -> None:
        """RESTORE-EPHEMERAL: for groups owned in an activated epoch with nothing higher promised."""
        self._known = False
        for number, group in enumerate(self.groups):
            if group.term is not None and group.term.active and not self.standings[number].resigned:
                self.ephemerals.restore(number, group.term)

    # ---- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if not (self.zookeeper.connected and self.membership.registered):
            return
        if self.ctx.now - self._listed_at >= (self.ctx.config.relook if self._known else PACE):
            self.list_coordinators()
        for number, (group, standing) in enumerate(zip(self.groups, self.standings, strict=True)):
            if standing.busy:
                continue
            term = group.term
            if standing.unsure is not None:
                if self.ctx.now >= standing.not_before:
                    self._verify(number, standing.unsure)
            elif standing.claimed is not None and (standing.resigned or term is None or term.phase == "over"):
                self.ephemerals.let_go(number)
            elif term is not None and term.phase != "over":
                # one that is active and owes no commit is making progress: nearly all, nearly always
                if (
                    term.phase != "active"
                    or standing.absent_since is not None
                    or term.sequencer.waiting_since is not None
                ):
                    self._progress(number, term)
            elif self._known and standing.absent_since is not None:
                self._consider(number, standing)
        self.histories.survey()

    def _progress(self, number: int, term: Term) -> None:
        """PROGRESS: write the next record once, else let go and stand back for a random time."""
        standing = self.standings[number]
        term.check_activation()
        if standing.busy or self.ctx.now < standing.not_before:
            return
        if standing.absent_since is not None and term.active:
            standing.resigned = False
            standing.not_before = self.ctx.now + PACE
            if self._quorum_linked() and not self.ctx.draining:
                self.ephemerals.restore(number, term)
        elif standing.absent_since is not None and term.stuck:
            term.end("its ephemeral is gone")  # to be a candidate like any other
        elif term.stuck:
            if not term.retried and len(self.choose(term.record)) >= self.ctx.config.min_copies:
                self.renew(number, term)
            elif not term.active or self._others_live():
                self.resign(number)

    def _quorum_linked(self) -> bool:
        """Whether this broker could bring a list together at all."""
        return len(self.ctx.links) + 1 >= self.ctx.config.min_copies

    def _others_live(self) -> bool:
        return any(name != self.ctx.config.name for name in self.membership.live)

    def _consider(self, number: int, standing: ElectionState) -> None:
        now, ctx = self.ctx.now, self.ctx
        absent = standing.absent_since
        if now < standing.not_before or absent is None:
            return
        order = self.order(number)
        if ctx.config.name not in order:
            return
        since = max(absent, self.membership.registered_at or 0.0)
        if now - since >= order.index(ctx.config.name) * ctx.config.progress_timeout:
            self._read(number, None)

    def order(self, number: int) -> list[str]:
        """Live brokers in the order in which they try: those that hold the groups first, each spread evenly."""
        live = self.membership.live
        ranked = rendezvous(number, live)
        return sorted(ranked, key=lambda name: (live[name].draining, not live[name].ready))

    def hand_over(self, number: int, peer: str, epoch: int) -> None:
        """HAND-OVER: the coordinator named this broker its successor. It numbers until it promises."""
        standing = self.standings[number]
        if standing.busy or self.ctx.draining or not self.zookeeper.connected:
            return
        self._read(number, (peer, epoch))

    # ---- reading and writing ---------------------------------------------------------------------------------

    def _read(self, number: int, from_: tuple[str, int] | None) -> None:
        standing = self.standings[number]
        standing.busy = True
        standing.not_before = self.ctx.now + PACE

        def then(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok":
                return
            if reply.node is None:
                if from_ is None:
                    self._none(number)
                return
            record = self._record(number, reply.node.data)
            if record is None:
                return
            if from_ is None:
                self._next(number, record, reply.node.version)
            elif (record.owner[0], record.epoch, record.activated) == (from_[0], from_[1], True):
                self._next(number, record, reply.node.version, hand_over=True)

        self.zookeeper.get(f"{GROUPS}/{number}", then)

    def _record(self, number: int, data: bytes) -> GroupRecord | None:
        """None for what another program wrote: the group waits for a person."""
        try:
            return decode_group(data)
        except BadRecord as error:
            self._wait(number, f"its record cannot be read: {error}", "error")
            return None

    def _next(self, number: int, record: GroupRecord, version: int, *, hand_over: bool = False) -> None:
        replica = self.groups[number].replica
        if record.epoch < replica.promised and record.history == replica.history:
            return  # a stale read: a higher epoch is promised already
        source = record.as_source()
        if source is not None and not source.enough(filter(self.ctx.linked, source.members)):
            lost = self.histories.lost(number, source)
            if lost and self.histories.may_begin(number):
                self._begin_history(number, record.epoch, version)
            else:
                self._wait(number, "history lost" if lost else "too few of the last activated list can be reached")
            return
        self.histories.found(number)
        members = self.choose(record)
        if len(members) < self.ctx.config.min_copies:
            self._wait(number, f"only {len(members)} brokers can be listed")
            return
        following = record.next(self.ctx.me, members, self.ctx.config.min_copies)
        self._write(number, following, version, "hand over" if hand_over else "take over")

    def _none(self, number: int) -> None:
        """There is no record: the first one, after a survey."""
        verdict = self.histories.bootstrap(number)
        if verdict == "first":
            self._begin_history(number, 0, None)
        elif verdict == "lost":
            if self.histories.may_begin(number):
                self._begin_history(number, self.histories.known_epoch(number), None)
            else:
                self._wait(number, "history unknown: brokers hold something, ZooKeeper has no record")
        elif verdict == "wait":
            self._wait(number, "waiting for brokers before the first record")

    def _begin_history(self, number: int, known: int, version: int | None) -> None:
        """FIRST-EPOCH: the wall clock in milliseconds, and above every epoch known."""
        ctx = self.ctx
        members = self.choose(None)
        if len(members) < ctx.config.min_copies:
            self._wait(number, f"only {len(members)} brokers can be listed")
            return
        epoch = max(int(ctx.wall * 1000), known + 1, self.groups[number].replica.promised + 1)
        record = GroupRecord(
            ctx.random.integer() >> 1,
            epoch,
            epoch,
            ctx.me,
            members,
            ctx.config.min_copies,
            activated=False,
            source=None,
        )
        self._write(number, record, version, "new history" if known else "first record")

    def choose(self, record: GroupRecord | None) -> list[BrokerId]:
        """The next list: this broker, and every broker that its links lead to, old members and learners alike."""
        newest = self.membership.newest
        linked = [broker for broker in self.ctx.links.items() if broker[1] >= newest.get(broker[0], 0)]
        return sorted([self.ctx.me, *linked])

    def renew(self, number: int, term: Term, members: list[BrokerId] | None = None) -> None:
        """The owner writes the next record itself; its ephemeral stays."""
        must(term.phase != "over", "OWNER: an epoch that is over has no owner who goes on from it")
        must(not self.standings[number].busy, "ONE-REQUEST: what is decided about a group is decided on one read")
        chosen = members if members is not None else self.choose(term.record)
        following = term.record.next(self.ctx.me, chosen, self.ctx.config.min_copies)
        self._write(number, following, term.version, "relist" if members is not None else "renew")

    def _write(self, number: int, record: GroupRecord, version: int | None, why: str) -> None:
        standing = self.standings[number]
        path, ephemeral = f"{GROUPS}/{number}", f"{COORDINATORS}/{number}"
        data = encode(record)
        mine = claim(record)
        operations: list[ZkOperation] = [ZkCreate(path, data) if version is None else ZkWrite(path, data, version)]
        if why in ("relist", "renew"):
            operations.append(ZkWrite(ephemeral, mine, -1))
        elif why == "hand over":
            operations += [ZkDelete(ephemeral), ZkCreate(ephemeral, mine, ephemeral=True)]
        else:
            operations.append(ZkCreate(ephemeral, mine, ephemeral=True))
        standing.busy = True
        before, standing.claimed = standing.claimed, mine
        retried = why == "renew"

        def then(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome == "ok":
                self._won(number, record, reply.versions[0], why, retried)
            elif reply.outcome == "refused":
                standing.claimed = before
                self.ctx.note("info", "record_refused", group=number, epoch=record.epoch, why=why, error=reply.error)
                standing.not_before = self.ctx.now + self.ctx.random.between(0, self.ctx.config.progress_timeout / 2)
                term = self.groups[number].term
                if term is not None and term.phase != "over":
                    self.ephemerals.superseded(number, term)
                self.list_coordinators()
            else:
                standing.unsure, standing.looked = record, False

        self.zookeeper.commit(operations, then)

    def _won(self, number: int, record: GroupRecord, version: int, why: str, retried: bool) -> None:
        standing = self.standings[number]
        standing.absent_since = None
        standing.waiting = ""
        standing.resigned = False
        standing.not_before = 0.0
        group = self.groups[number]
        known = group.replica.history
        if record.source is None and record.epoch == record.first and (known or why == "new history"):
            self.ctx.observe("migratory_history_resets_total")
            self.histories.resets += 1
            why = "the brokers that held the history are gone"
            self.ctx.note("error", "history_reset", group=number, epoch=record.epoch, why=why)
        self.histories.found(number)
        self.ctx.note("info", "record_written", group=number, epoch=record.epoch, why=why)
        if record.epoch < group.replica.promised:
            self.resign(number)
            return
        group.begin_term(record, version, retried=retried)

    def _verify(self, number: int, record: GroupRecord) -> None:
        """UNKNOWN-READS-AGAIN: twice, if it is not there, because reads may lag behind."""
        standing = self.standings[number]
        standing.busy = True

        def then(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok":
                return
            there = self._record(number, reply.node.data) if reply.node else None
            if reply.node is not None and there is not None and there.epoch >= record.epoch:
                standing.unsure = None
                if (there.owner, there.epoch) == (record.owner, record.epoch):
                    self._won(number, there, reply.node.version, "read again", retried=True)
            elif standing.looked:
                standing.unsure = None
            else:
                standing.looked = True
                standing.not_before = self.ctx.now + self.ctx.config.progress_timeout
            self.list_coordinators()

        self.zookeeper.get(f"{GROUPS}/{number}", then)

    # ---- letting go, and holding on --------------------------------------------------------------------------

    def resign(self, number: int) -> None:
        """Delete the own ephemeral and stand back for a random time, so that another candidate has its turn."""
        group, standing = self.groups[number], self.standings[number]
        term = group.term
        timeout = self.ctx.config.progress_timeout
        standing.not_before = self.ctx.now + self.ctx.random.between(timeout, 3 * timeout)
        standing.resigned = True
        if term is not None and not term.active:
            term.end("no progress")
            group.term = None
        self.ctx.note("warning", "stands_back", group=number)
        self.ephemerals.let_go(number)

    def resign_all(self) -> None:
        """Cut off from the others while ZooKeeper is heard: they shall not wait for this broker."""
        if not self.zookeeper.connected or self._quorum_linked():
            return
        for number, group in enumerate(self.groups):
            standing = self.standings[number]
            if group.term is not None and not standing.busy and not standing.resigned:
                self.resign(number)

    def _wait(self, number: int, why: str, level: str = "warning") -> None:
        """WAITS-AND-SAYS-SO."""
        standing = self.standings[number]
        if standing.waiting != why:
            standing.waiting = why
            self.ctx.note(level, "group_waits", group=number, why=why)
