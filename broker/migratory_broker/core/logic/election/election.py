"""The choice of the broker that writes the next ZooKeeper record of a group, when, and with which brokers on its list,
for `Logic`.

EAGER: a group without a coordinator's ephemeral is taken over by the live brokers in an order of the group's own, one
progress timeout after the other. SUSPECT: so is a group whose coordinator is taken to be dead, before its ephemeral
goes. CAS: a record is written against the version that was read, in one transaction with the ephemeral. If the outcome
of the write is unknown, the record is read again; it is this broker's if owner and epoch are.
"""

from __future__ import annotations

from typing import Literal

from migratory_protocol.peer import BrokerId, HeldCopy

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
    SourceEpoch,
    decode_group,
    encode,
    group_number,
    rendezvous,
)
from migratory_broker.core.logic.membership.suspicion import Suspicions
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry
from migratory_broker.core.logic.replication.term import Term

RETRY_INTERVAL = 0.5
"""Seconds between two reads about a group that cannot be taken over yet."""

Cause = Literal[
    "first record", "new history", "take over", "hand over", "suspect", "relist", "renew", "restore", "read again"
]
"""The reason for which a record is written. It is logged, and it decides how the transaction changes the ephemeral."""


class Election:
    """This broker as a candidate to coordinate every topic group, and as the owner of the groups that it
    coordinates."""

    def __init__(
        self,
        ctx: Context,
        groups: GroupRegistry,
        zookeeper: ZkRequests,
        membership: Membership,
        histories: Histories,
        suspicions: Suspicions,
    ) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.histories = histories
        self.suspicions = suspicions
        self.groups = groups
        self.ephemerals = Ephemerals(ctx, zookeeper, on_change=self.list_coordinators)
        self.states = self.ephemerals.states
        self._listed_at = float("-inf")
        self._known = False  # the coordinators were listed at least once

    # ---- which groups have a coordinator ---------------------------------------------------------------------

    def list_coordinators(self) -> None:
        """Request from ZooKeeper which groups have a coordinator's ephemeral, and watch for changes. The reply updates
        `absent_since` of each group."""
        self._listed_at = self.ctx.now
        self.zookeeper.children(COORDINATORS, self._listing, watch=True)

    def _listing(self, reply: ZkReply) -> None:
        """Note for each group, by the list of coordinators, whether its ephemeral exists, and if not, since when it is
        known to be absent. Look again at one that this broker had deleted. Nothing if the read failed."""
        if reply.outcome != "ok" or reply.children is None:
            return
        present = {group_number(name) for name in reply.children}
        self._known = True
        for number, state in enumerate(self.states):
            if number in present:
                state.absent_since = None
                if state.deleted:
                    self.ephemerals.look_again(number)
            elif state.absent_since is None:
                state.absent_since = self.ctx.now

    def changed(self, path: str) -> None:
        if path == COORDINATORS:
            self.list_coordinators()

    def new_session(self) -> None:
        """RESTORE-EPHEMERAL: in a new ZooKeeper session, request to create the ephemerals again of the groups that this
        broker coordinates in an activated epoch. Groups from which it resigned, or with a pending request, are left
        out. No takeover begins for a missing ephemeral before the coordinators were listed again."""
        self._known = False
        for number, group in enumerate(self.groups):
            if group.term is not None and group.term.active and not self.states[number].resigned:
                self.ephemerals.restore(number, group.term)

    def records_lost(self) -> None:
        """Forget what was known of ZooKeeper's records and ephemerals, which are gone. Note the groups that this broker
        coordinates as `unrecorded`, so that it restores their records."""
        self._known = False
        for group, state in zip(self.groups, self.states, strict=True):
            state.unsure = state.claimed = None
            state.resigned = state.hidden = state.deleted = False
            state.not_before = 0.0
            state.absent_since = self.ctx.now
            state.unrecorded = group.term is not None

    # ---- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take the next step for every group without a pending ZooKeeper request: verify a write, delete or restore an
        ephemeral, watch a term's progress or begin a takeover. List the coordinators if that is due, and begin a
        scheduled survey. A group that has a coordinator gives no reason for waiting any more. Nothing without ZooKeeper
        or before the registration."""
        if not (self.zookeeper.connected and self.membership.registered):
            return
        if self.ctx.now - self._listed_at >= (self.ctx.config.refresh_interval if self._known else RETRY_INTERVAL):
            self.list_coordinators()
        suspicious = self.suspicions.any
        for number, (group, state) in enumerate(zip(self.groups, self.states, strict=True)):
            if state.busy:
                continue
            term = group.term
            if state.unsure is not None:
                if self.ctx.now >= state.not_before:
                    self._verify(number, state.unsure)
            elif state.claimed is not None and (state.resigned or term is None or term.phase == "over"):
                self.ephemerals.delete(number)
            elif term is not None and term.phase != "over":
                # an active term without uncommitted entries makes progress: the usual case, checked without a call
                waits = term.sequencer.waiting_since is not None or term.outbid
                if term.phase != "active" or state.absent_since is not None or waits:
                    self._progress(number, term)
                else:
                    state.waiting = ""
            elif self._known and state.absent_since is not None:
                self._consider(number, state, state.absent_since, None)
            elif (
                suspicious
                and (view := group.replica.view) is not None
                and (since := self.suspicions.since(view.owner)) is not None
            ):
                self._consider(number, state, since, (view.owner[0], view.epoch))
            elif state.absent_since is None:
                state.waiting = ""  # not while the ephemeral alone exists: its owner may be suspected
        self.histories.survey()

    def _progress(self, number: int, term: Term) -> None:
        """PROGRESS: write the activation of the term if it may be activated. Then, unless a request about the group is
        pending or this broker backs off, do the first of these that applies:

        - The term is activated and its record is gone: restore the record.
        - RESTORE-AGAIN: the promises show that the term's source epoch was never activated: restore the record from
          other copies, but of a stuck term only if its history is noted as lost, for which all brokers have answered.
        - The term is activated and its ephemeral is gone: create it again, if enough brokers are linked and this one
          does not drain.
        - The term is stuck and its ephemeral is gone: end the term.
        - The term is stuck: write the next record, once. If that was done, or too few brokers can be listed, resign;
          from an activated term only while another broker lives.
        """
        state = self.states[number]
        term.check_activation()
        if state.busy or self.ctx.now < state.not_before:
            return
        if state.unrecorded and term.active:
            state.not_before = self.ctx.now + RETRY_INTERVAL
            self._no_record(number)
        elif state.absent_since is None and term.refuted and (not term.stuck or self.histories.is_lost(number)):
            # RESTORE-AGAIN. If it is stuck, another candidate may reach more brokers, unless all have answered
            state.not_before = self.ctx.now + RETRY_INTERVAL
            self._no_record(number, term)
        elif state.absent_since is not None and term.active:
            state.resigned = False
            state.not_before = self.ctx.now + RETRY_INTERVAL
            if self._quorum_linked() and not self.ctx.draining:
                self.ephemerals.restore(number, term)
        elif state.absent_since is not None and term.stuck:
            term.end("its ephemeral is gone")  # from now on a candidate like any other
        elif term.stuck:
            if not term.retried and len(self.choose()) >= self.ctx.config.min_copies:
                self.renew(number, term)
            elif not term.active or self._others_live():
                self.resign(number)

    def _quorum_linked(self) -> bool:
        """Return whether this broker and the linked ones together are at least `min_copies`, enough for a member
        list."""
        return len(self.ctx.links) + 1 >= self.ctx.config.min_copies

    def _others_live(self) -> bool:
        return any(name != self.ctx.config.name for name in self.membership.live)

    def _consider(self, number: int, state: ElectionState, absent: float, predecessor: tuple[str, int] | None) -> None:
        """Begin the takeover of a group whose coordinator is gone, or suspected, since `absent`, if it is this broker's
        turn in the group's order and it does not back off. `predecessor` (name, epoch): the suspected coordinator,
        whose ephemeral exists; None if the ephemeral is gone."""
        now, ctx = self.ctx.now, self.ctx
        if now < state.not_before:
            return
        order = self.order(number)
        if ctx.config.name not in order:
            return
        since = max(absent, self.membership.registered_at or 0.0)
        if now - since >= order.index(ctx.config.name) * ctx.config.progress_timeout:
            self._read(number, "take over" if predecessor is None else "suspect", predecessor)

    def order(self, number: int) -> list[str]:
        """Return the names of the live brokers in the order in which they try to take over a group.

        Ready brokers, which hold a copy of every group, come before those that are not; draining ones come last.
        Suspected ones are left out. The order differs from group to group, so that groups spread evenly.
        """
        live = self.membership.live
        since = self.suspicions.since
        ranked = rendezvous(number, [name for name in live if since((name, live[name].incarnation)) is None])
        return sorted(ranked, key=lambda name: (live[name].draining, not live[name].ready))

    def hand_over(self, number: int, peer: str, epoch: int) -> None:
        """HAND-OVER: request the group's record, and write the next one, as the successor of `peer`, if `peer` still
        owns it in `epoch` and it is activated. `peer` numbers until it promises. Nothing while a request about the
        group is pending, during a drain, and without ZooKeeper."""
        state = self.states[number]
        if state.busy or self.ctx.draining or not self.zookeeper.connected:
            return
        self._read(number, "hand over", (peer, epoch))

    # ---- reading and writing ---------------------------------------------------------------------------------

    def _read(self, number: int, cause: Cause, predecessor: tuple[str, int] | None) -> None:
        """Request the group's record from ZooKeeper, and then write the next one or wait. With `predecessor` (name,
        epoch): only if the record is that owner's, of that epoch, and for a hand-over activated. No other read follows
        within `RETRY_INTERVAL`.

        SUSPECT: a suspected owner that wrote a later record lived after its link broke. Its session decides.
        """
        state = self.states[number]
        state.busy = True
        state.not_before = self.ctx.now + RETRY_INTERVAL

        def receive(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome != "ok":
                return
            if reply.node is None:
                if predecessor is None:
                    self._no_record(number)
                return
            record = self._record(number, reply.node.data)
            if record is None:
                return
            is_next = predecessor is None or (record.owner[0], record.epoch) == predecessor
            if is_next and (record.activated or cause != "hand over"):
                self._next(number, record, reply.node.version, cause)

        self.zookeeper.get(f"{GROUPS}/{number}", receive)

    def _record(self, number: int, data: bytes) -> GroupRecord | None:
        """Return the decoded record. For data that is no group record return None, and record and log that the group
        waits: an operator must act."""
        try:
            return decode_group(data)
        except BadRecord as error:
            self._wait(number, f"its record cannot be read: {error}", "error")
            return None

    def _next(self, number: int, record: GroupRecord, version: int, cause: Cause) -> None:
        """Write the record that follows `record`, or the first one of a new history if the old one is lost and a new
        one may begin. If neither is possible, record why the group waits. `version` is that of the record's node.

        A record older than this broker's promise is most likely a stale read, and ignored for a progress timeout. While
        another broker's ephemeral exists, no history begins.
        """
        replica, state = self.groups[number].replica, self.states[number]
        if record.epoch < replica.promised and record.history == replica.history:
            if state.behind[0] != record.epoch:
                state.behind = (record.epoch, self.ctx.now)
            if self.ctx.now - state.behind[1] < self.ctx.config.progress_timeout:
                return  # most likely a stale read: a higher epoch is promised already
        source = record.as_source()
        if source is not None and not source.enough(filter(self.ctx.linked, source.members)):
            is_lost = cause == "take over" and self.histories.lost(number, source)
            if is_lost and self.histories.may_begin(number):
                self._begin_history(number, record.epoch, version)
            else:
                self._wait(number, "history lost" if is_lost else "too few of the last activated list can be reached")
            return
        self.histories.resolved(number)
        members = self.choose()
        if len(members) < self.ctx.config.min_copies:
            self._wait(number, f"only {len(members)} brokers can be listed")
            return
        following = record.next(self.ctx.me, members, self.ctx.config.min_copies, replica.promised)
        self._write(number, following, version, cause)

    def _no_record(self, number: int, refuted: Term | None = None) -> None:
        """Write the record of a group that has none: the first one if a survey found neither promises nor copies, else
        one restored from the copies. If too few are left, the history is lost: begin a new one once that is allowed.
        Otherwise record why the group waits. Nothing while a survey runs.

        RESTORE-AGAIN: `refuted` is this broker's term if there is a record, restored from an epoch that never was
        activated. The record that is written then replaces it.
        """
        decision = self.histories.bootstrap(number, None if refuted is None else refuted.record.source)
        if decision is None:
            return
        if decision.action == "first":
            self._begin_history(number, 0, None, decision.clock)
        elif decision.action == "lost" and self.histories.may_begin(number):
            self._begin_history(number, decision.known, None, decision.clock, refuted)
        elif decision.copy is not None:
            # the own record may be newer than the survey
            epoch = max(decision.clock, decision.known + 1, self.groups[number].replica.promised + 1)
            self._restore(number, decision.copy, decision.source, epoch, refuted)
        else:
            self._wait(number, decision.reason)

    def _restore(
        self, number: int, copy: HeldCopy, source: SourceEpoch | None, epoch: int, replaced: Term | None = None
    ) -> None:
        """RESTORE-SOURCE: write the record that ZooKeeper lost, as one that follows `source`, in the history of `copy`.
        Wait if too few brokers can be listed.

        `epoch` is a wall clock in milliseconds, as in a first record, or one above all known epochs if that is higher.
        `replaced`: this broker's term if its record is replaced, None if there is no record.
        """
        members = self.choose()
        if len(members) < self.ctx.config.min_copies:
            self._wait(number, f"only {len(members)} brokers can be listed")
            return
        record = GroupRecord(
            copy.history,
            copy.first,
            epoch,
            self.ctx.me,
            members,
            self.ctx.config.min_copies,
            activated=False,
            source=source,
        )
        self._write(number, record, None, "restore", replaced)

    def _begin_history(
        self, number: int, known: int, version: int | None, clock: int = 0, replaced: Term | None = None
    ) -> None:
        """FIRST-EPOCH: write the first record of a new history, or wait if too few brokers can be listed. Its epoch is
        the highest of these: the wall clock in milliseconds, `clock`, and one above `known` and above this broker's
        promise. `version` is of the record that it replaces, None without one or if that is the record of the own term
        `replaced`."""
        ctx = self.ctx
        members = self.choose()
        if len(members) < ctx.config.min_copies:
            self._wait(number, f"only {len(members)} brokers can be listed")
            return
        epoch = max(int(ctx.wall * 1000), clock, known + 1, self.groups[number].replica.promised + 1)
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
        self._write(number, record, version, "new history" if known else "first record", replaced)

    def choose(self) -> list[BrokerId]:
        """Return the members of the next list, sorted: this broker and every linked broker, whether it is a member or a
        learner now. Linked incarnations of which a newer one is known are left out."""
        newest = self.membership.newest
        linked = [broker for broker in self.ctx.links.items() if broker[1] >= newest.get(broker[0], 0)]
        return sorted([self.ctx.me, *linked])

    def renew(self, number: int, term: Term, members: list[BrokerId] | None = None) -> None:
        """Write the next record of a group that this broker owns, with the list `members` (None: the one that `choose`
        returns). The ephemeral stays, with the new epoch in it. Raise InvariantError if the term is over, or a request
        about the group is pending."""
        must(term.phase != "over", "OWNER: an epoch that is over has no owner to continue it")
        must(not self.states[number].busy, "ONE-REQUEST: what is decided about a group is decided on one read")
        chosen = members if members is not None else self.choose()
        following = term.record.next(self.ctx.me, chosen, self.ctx.config.min_copies, term.outbid)
        self._write(number, following, None, "relist" if members is not None else "renew", term)

    def _write(
        self, number: int, record: GroupRecord, version: int | None, cause: Cause, replaced: Term | None = None
    ) -> None:
        """CAS: request to write a record against the `version` that was read (None: create it), or against that of the
        own term `replaced`, with the ephemeral in the same transaction. The reply begins the record's term; if it is
        refused, this broker backs off for a random time; if the outcome is unknown, `_verify` reads the record
        later."""
        state = self.states[number]
        version = version if replaced is None else replaced.version
        path, ephemeral = f"{GROUPS}/{number}", f"{COORDINATORS}/{number}"
        data = encode(record)
        own_claim = claim(record)
        operations: list[ZkOperation] = [ZkCreate(path, data) if version is None else ZkWrite(path, data, version)]
        if replaced is not None:  # the ephemeral is this broker's
            operations.append(ZkWrite(ephemeral, own_claim, -1))
        elif cause in ("hand over", "suspect"):
            operations += [ZkDelete(ephemeral), ZkCreate(ephemeral, own_claim, ephemeral=True)]
        else:
            operations.append(ZkCreate(ephemeral, own_claim, ephemeral=True))
        state.busy = True
        previous, state.claimed = state.claimed, own_claim
        retried = cause == "renew"

        def receive(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome == "ok":
                self._won(number, record, reply.versions[0], cause, retried)
            elif reply.outcome == "refused":
                state.claimed = previous
                self.ctx.note(
                    "info", "record_refused", group=number, epoch=record.epoch, reason=cause, error=reply.error
                )
                state.not_before = self.ctx.now + self.ctx.random.between(0, self.ctx.config.progress_timeout / 2)
                term = self.groups[number].term
                if term is not None and term.phase != "over":
                    self.ephemerals.superseded(number, term)
                self.list_coordinators()
            else:
                state.unsure, state.missed = record, False

        self.zookeeper.commit(operations, receive)

    def _won(self, number: int, record: GroupRecord, version: int, cause: Cause, retried: bool) -> None:
        """Begin the term of a record that this broker has written, or resign if this broker promised a higher epoch
        meanwhile. Log the record, and log and count a history that it begins in place of a lost one."""
        state = self.states[number]
        state.unsure = None  # an earlier try of this record, which would begin its term a second time
        state.absent_since = None
        state.waiting = ""
        state.resigned = state.unrecorded = state.deleted = False
        state.not_before = 0.0
        group = self.groups[number]
        known = group.replica.history
        if record.source is None and record.epoch == record.first and (known or cause == "new history"):
            self.ctx.observe("migratory_history_resets_total")
            self.histories.resets += 1
            reason = "the brokers that held the history are gone"
            self.ctx.note("error", "history_reset", group=number, epoch=record.epoch, reason=reason)
        self.histories.resolved(number)
        self.ctx.note("info", "record_written", group=number, epoch=record.epoch, reason=cause)
        if record.epoch < group.replica.promised:
            self.resign(number)
            return
        group.begin_term(record, version, retried=retried)

    def _verify(self, number: int, record: GroupRecord) -> None:
        """UNKNOWN-READS-AGAIN: request a record whose write had an unknown outcome, and begin its term if it is there.
        Give it up if another record of its epoch or a higher one is there. If only an older one or none is, read once
        more a progress timeout later, because reads may lag, and then give it up."""
        state = self.states[number]
        state.busy = True

        def receive(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome != "ok":
                return
            current = self._record(number, reply.node.data) if reply.node else None
            if reply.node is not None and current is not None and current.epoch >= record.epoch:
                state.unsure = None
                if (current.owner, current.epoch) == (record.owner, record.epoch):
                    self._won(number, current, reply.node.version, "read again", retried=True)
            elif state.missed:
                state.unsure = None
            else:
                state.missed = True
                state.not_before = self.ctx.now + self.ctx.config.progress_timeout
            self.list_coordinators()

        self.zookeeper.get(f"{GROUPS}/{number}", receive)

    # ---- resigning and waiting --------------------------------------------------------------------------------

    def resign(self, number: int) -> None:
        """Request to delete the own ephemeral, end a term that is not activated, and back off for one to three progress
        timeouts, so that another candidate has its turn. An activated term goes on until a higher promise."""
        group, state = self.groups[number], self.states[number]
        term = group.term
        timeout = self.ctx.config.progress_timeout
        state.not_before = self.ctx.now + self.ctx.random.between(timeout, 3 * timeout)
        state.resigned = True
        if term is not None and not term.active:
            term.end("no progress")
            group.term = None
        self.ctx.note("warning", "resigned", group=number)
        self.ephemerals.delete(number)

    def resign_all(self) -> None:
        """Resign from all groups of which this broker has a term if it hears ZooKeeper and is linked to too few brokers
        for a member list, so that the others can take over. Groups with a pending request, and those from which it has
        resigned, are left out. Otherwise: nothing."""
        if not self.zookeeper.connected or self._quorum_linked():
            return
        for number, group in enumerate(self.groups):
            state = self.states[number]
            if group.term is not None and not state.busy and not state.resigned:
                self.resign(number)

    def _wait(self, number: int, reason: str, level: str = "warning") -> None:
        """WAITS-AND-SAYS-SO: record why the group waits, for the status page, and log a reason that differs from the
        last one."""
        state = self.states[number]
        if state.waiting != reason:
            state.waiting = reason
            self.ctx.note(level, "group_waits", group=number, reason=reason)
