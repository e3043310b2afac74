"""The ephemerals of the groups that this broker owns: made again, let go, given up with a record that was overtaken.

An ephemeral says "do not take over". So it must be there while its owner terms, and must not outlive that.
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
    """What this broker does about one group."""

    absent_since: float | None = None  # the ephemeral is not there
    not_before: float = 0.0  # stood back, or paced
    busy: bool = False  # a request to ZooKeeper is under way
    unsure: GroupRecord | None = None  # written with an unknown result
    looked: bool = False  # and read once without it: that server may have lagged behind
    claimed: bytes | None = None  # what this broker wrote into the ephemeral, which may still be there
    waiting: str = ""  # why the group waits
    resigned: bool = False  # let go on purpose: not restored until it stood back
    hidden: bool = False  # it could not be made where a read showed none: others may see one that this broker does not

    def describe(self) -> list[str]:
        """What keeps this broker from anything else about the group, for `/v1/status`."""
        said = {
            "asks": self.busy,
            "unsure": self.unsure,
            "absent": self.absent_since is not None,
            "resigned": self.resigned,
            "hidden": self.hidden,
        }
        return [word for word, holds in said.items() if holds]


def claim(record: GroupRecord) -> bytes:
    """What an ephemeral holds: the epoch and its owner."""
    return msgspec.json.encode((record.epoch, *record.owner))


class Ephemerals:
    def __init__(self, ctx: Context, zookeeper: ZkRequests, relook: Callable[[], None]) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.relook = relook
        self.standings: list[ElectionState] = [ElectionState() for _ in range(ctx.config.groups)]

    def let_go(self, number: int) -> None:
        """LET-GO: an ephemeral without a term behind it would keep every other candidate away. Asked again until it
        is certain that it is not there, or another's. Its version tells too little (a successor's node has the same),
        and the read may lag: so it goes only while the record is as it was before it was seen. With another's ephemeral
        comes another's record."""
        standing = self.standings[number]
        path, claimed = f"{COORDINATORS}/{number}", standing.claimed
        unchanged: list[ZkOperation] = []
        standing.busy = True

        def recorded(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok":
                return
            unchanged.extend([ZkCheck(f"{GROUPS}/{number}", reply.node.version)] if reply.node else [])
            standing.busy = True
            self.zookeeper.get(path, read)

        def read(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok":
                return
            node = reply.node
            if node is None or node.owner != self.zookeeper.session or node.data != claimed:
                standing.claimed = None
                return
            standing.busy = True
            self.zookeeper.commit([*unchanged, ZkDelete(path, node.version)], deleted)

        def deleted(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome == "ok":
                standing.claimed = None
            self.relook()

        self.zookeeper.get(f"{GROUPS}/{number}", recorded)

    def restore(self, number: int, term: Term) -> None:
        """RESTORE-EPHEMERAL, unless a request about the group is under way: the next listing tells whether it is
        still wanted.

        HIDDEN-EPHEMERAL: servers that were killed may disagree about the ephemerals of sessions that ended meanwhile
        (issue 3144 of ZooKeeper was one way to that). The one that this broker reads from may lack what the leader has:
        then that goes unseen, while the record is this term's, with which nobody else's comes."""
        standing = self.standings[number]
        if standing.busy:
            return
        path = f"{COORDINATORS}/{number}"
        mine = claim(term.record)
        standing.busy = True

        def read(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok" or term.phase != "active":
                return
            operations: list[ZkOperation] = [ZkCheck(f"{GROUPS}/{number}", term.version)]
            hidden, standing.hidden = standing.hidden, False
            if reply.node is not None:
                if reply.node.owner == self.zookeeper.session:
                    standing.absent_since = None
                    return
                if reply.node.data != mine:
                    return  # another candidate's
                operations.append(ZkDelete(path, reply.node.version))
            elif hidden:
                operations.append(ZkDelete(path))
            standing.busy = True
            self.zookeeper.commit(
                [*operations, ZkCreate(path, mine, ephemeral=True)], partial(done, len(operations) == 1)
            )

        def done(unseen: bool, reply: ZkReply) -> None:
            standing.busy = False
            standing.claimed = mine
            if reply.outcome == "ok":
                standing.absent_since = None
            elif reply.outcome == "refused":
                standing.hidden = unseen
                self.ctx.note("info", "ephemeral_refused", group=number, epoch=term.epoch, error=reply.error)
                self.superseded(number, term)
            self.relook()

        self.zookeeper.get(path, read)

    def superseded(self, number: int, term: Term) -> None:
        """The record is not as this owner knows it: of another candidate, which is gone, perhaps. Then this broker is
        no coordinator to wait for, and tries in its turn. Or it is this term's own, activated without its knowing."""
        standing = self.standings[number]
        standing.busy = True

        def then(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok" or reply.node is None:
                return
            try:
                newest = decode_group(reply.node.data)
            except BadRecord as error:
                # no candidate can go on from it either: the term is worth as much as before
                self.ctx.note("error", "node_unreadable", path=f"{GROUPS}/{number}", why=str(error))
                return
            if newest.epoch > term.epoch:
                term.end("another candidate wrote a record")
            else:
                term.record_read(newest, reply.node.version)

        self.zookeeper.get(f"{GROUPS}/{number}", then)
