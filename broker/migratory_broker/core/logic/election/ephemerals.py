"""The ephemerals of the groups that this broker coordinates, for `Election`: restored, deleted, or given up when
another record follows.

An ephemeral keeps other candidates from taking over. So it must exist during its owner's term, and must not outlive it.
`ElectionState` also has what `Election` knows of each group.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ZkCheck, ZkCreate, ZkDelete, ZkOperation, ZkReply
from migratory_broker.core.logic.membership.records import COORDINATORS, GROUPS, BadRecord, GroupRecord, decode_group
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.term import Term


@dataclass(slots=True)
class ElectionState:
    """This broker's state as a candidate for one group, or as its owner. Times are of the logic's monotonic clock, in
    seconds."""

    absent_since: float | None = None  # the group's ephemeral does not exist
    not_before: float = 0.0  # end of a back-off
    busy: bool = False  # a request to ZooKeeper is under way
    unsure: GroupRecord | None = None  # a record that was written with an unknown outcome
    missed: bool = False  # one read has not shown `unsure`: that server may have lagged
    claimed: bytes | None = None  # the data of this broker's ephemeral, which may still exist
    deleted: bool = False  # this broker's ephemeral was deleted, and no other one has been seen since
    waiting: str = ""  # why the group waits
    unrecorded: bool = False  # ZooKeeper has no record of the group, which this broker coordinates
    resigned: bool = False  # the ephemeral was deleted on purpose: not restored before the end of the back-off
    behind: tuple[int, float] = (0, 0.0)  # epoch of a record that was read below the promise, and since when
    hidden: bool = False  # a creation was refused where a read showed none: an ephemeral may exist unseen

    def describe(self) -> list[str]:
        """Return the names of the conditions that hold, for `election_state` on the status page. [] if none does."""
        conditions = {
            "request_pending": self.busy,
            "outcome_unknown": self.unsure is not None,
            "ephemeral_absent": self.absent_since is not None,
            "record_missing": self.unrecorded,
            "resigned": self.resigned,
            "ephemeral_hidden": self.hidden,
        }
        return [word for word, holds in conditions.items() if holds]


def claim(record: GroupRecord) -> bytes:
    """Return the data of the ephemeral that belongs to a record: its epoch and its owner, as JSON."""
    return msgspec.json.encode((record.epoch, *record.owner))


class Ephemerals:
    """The election state of each group, and the requests to ZooKeeper that create and delete the ephemerals with the
    terms. `on_change` is called when the list of coordinators is to be read again."""

    def __init__(self, ctx: Context, zookeeper: ZkRequests, on_change: Callable[[], None]) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self._on_change = on_change  # the list of coordinators is to be read again
        self.states: list[ElectionState] = [ElectionState() for _ in range(ctx.config.groups)]

    def delete(self, number: int) -> None:
        """LET-GO: request to delete this broker's ephemeral of a group in which it has no term any more or has
        resigned, because it would keep every other candidate away.

        The caller repeats this until `claimed` is None: the ephemeral does not exist or is another broker's. A node's
        version does not distinguish it from a successor's, and the read may lag. So the ephemeral is deleted only while
        the record is as it was before the ephemeral was read: another broker's ephemeral comes with another record.
        """
        state = self.states[number]
        path, claimed = f"{COORDINATORS}/{number}", state.claimed
        unchanged: list[ZkOperation] = []
        state.busy = True

        def recorded(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome != "ok":
                return
            unchanged.extend([ZkCheck(f"{GROUPS}/{number}", reply.node.version)] if reply.node else [])
            state.busy = True
            self.zookeeper.get(path, read)

        def read(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome != "ok":
                return
            node = reply.node
            if node is None or node.owner != self.zookeeper.session or node.data != claimed:
                state.claimed, state.deleted = None, node is None
                return
            state.busy = True
            self.zookeeper.commit([*unchanged, ZkDelete(path, node.version)], deleted)

        def deleted(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome == "ok":
                state.claimed = None
                state.deleted = True
            self._on_change()

        self.zookeeper.get(f"{GROUPS}/{number}", recorded)

    def look_again(self, number: int) -> None:
        """LET-GO: read a group's ephemeral, which exists though this broker deleted its own. If it is this broker's,
        because ZooKeeper was rolled back to before the deletion, record its data in `claimed`, so that it is deleted
        again. Nothing while a request about the group is pending.
        """
        state = self.states[number]
        if state.busy:
            return
        state.busy = True

        def read(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome != "ok" or reply.node is None:
                return
            state.deleted = False
            if reply.node.owner == self.zookeeper.session:
                state.claimed = reply.node.data

        self.zookeeper.get(f"{COORDINATORS}/{number}", read)

    def restore(self, number: int, term: Term) -> None:
        """RESTORE-EPHEMERAL: request to create the ephemeral of an activated term again, if it is missing or is this
        broker's own from an earlier session. If the creation is refused, the group's record is read (`superseded`).
        Nothing while a request about the group is pending.

        HIDDEN-EPHEMERAL: servers that were killed may disagree about the ephemerals of sessions that ended meanwhile
        (issue 3144 of ZooKeeper was one way to that). The server that this broker reads from may lack what the leader
        has. Then the creation is refused though the read showed nothing, and the next call deletes that ephemeral
        unseen. It is not another broker's: the transaction requires that the record is still this term's.
        """
        state = self.states[number]
        if state.busy:
            return
        path = f"{COORDINATORS}/{number}"
        own_claim = claim(term.record)
        state.busy = True

        def read(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome != "ok" or term.phase != "active":
                return
            operations: list[ZkOperation] = [ZkCheck(f"{GROUPS}/{number}", term.version)]
            hidden, state.hidden = state.hidden, False
            if reply.node is not None:
                if reply.node.owner == self.zookeeper.session:
                    state.absent_since = None
                    return
                if reply.node.data != own_claim:
                    return  # another candidate's ephemeral
                operations.append(ZkDelete(path, reply.node.version))
            elif hidden:
                operations.append(ZkDelete(path))
            state.busy = True
            self.zookeeper.commit(
                [*operations, ZkCreate(path, own_claim, ephemeral=True)], partial(done, len(operations) == 1)
            )

        def done(unseen: bool, reply: ZkReply) -> None:
            state.busy = False
            state.claimed = own_claim
            if reply.outcome == "ok":
                state.absent_since = None
            elif reply.outcome == "refused":
                state.hidden = unseen
                self.ctx.note("info", "ephemeral_refused", group=number, epoch=term.epoch, error=reply.error)
                self.superseded(number, term)
            self._on_change()

        self.zookeeper.get(path, read)

    def superseded(self, number: int, term: Term) -> None:
        """Request the group's record after a write was refused. If its epoch is higher than the term's, another
        candidate wrote it: end the term. If it is the term's own record, activated by a request whose reply was lost:
        activate the term. Otherwise, or if it cannot be read, the term stays as it is. Note whether there is a record
        (`unrecorded`).

        The other candidate may be gone already. Then no coordinator is to be expected, and this broker tries again at
        its turn.
        """
        state = self.states[number]
        state.busy = True

        def receive(reply: ZkReply) -> None:
            state.busy = False
            if reply.outcome != "ok":
                return
            state.unrecorded = reply.node is None
            if reply.node is None:
                return
            try:
                newest = decode_group(reply.node.data)
            except BadRecord as error:
                # no candidate can continue from it either: the term is worth as much as before
                self.ctx.note("error", "node_unreadable", path=f"{GROUPS}/{number}", reason=str(error))
                return
            if newest.epoch > term.epoch:
                term.end("another candidate wrote a record")
            else:
                term.record_read(newest, reply.node.version)

        self.zookeeper.get(f"{GROUPS}/{number}", receive)
