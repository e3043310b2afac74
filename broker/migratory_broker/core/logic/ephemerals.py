"""The ephemerals of the groups that this broker owns: made again, let go, given up with a record that was overtaken.

An ephemeral says "do not take over". So it must be there while its owner reigns, and must not outlive that.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import msgspec

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import Check, Create, Delete, ZkOperation, ZkReply
from migratory_broker.core.logic.records import COORDINATORS, GROUPS, BadRecord, GroupRecord, decode_group
from migratory_broker.core.logic.reign import Reign
from migratory_broker.core.logic.zookeeper import ZooKeeper


@dataclass(slots=True)
class Standing:
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
    def __init__(self, ctx: Context, zookeeper: ZooKeeper, relook: Callable[[], None]) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.relook = relook
        self.standings: list[Standing] = [Standing() for _ in range(ctx.config.groups)]

    def let_go(self, number: int) -> None:
        """LET-GO: an ephemeral without a reign behind it would keep every other candidate away. Asked again until it
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
            unchanged.extend([Check(f"{GROUPS}/{number}", reply.node.version)] if reply.node else [])
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
            self.zookeeper.commit([*unchanged, Delete(path, node.version)], deleted)

        def deleted(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome == "ok":
                standing.claimed = None
            self.relook()

        self.zookeeper.get(f"{GROUPS}/{number}", recorded)

    def restore(self, number: int, reign: Reign) -> None:
        """RESTORE-EPHEMERAL, unless a request about the group is under way: the next listing tells whether it is
        still wanted.

        HIDDEN-EPHEMERAL: servers that were killed may disagree about the ephemerals of sessions that ended meanwhile
        (issue 3144 of ZooKeeper was one way to that). The one that this broker reads from may lack what the leader has:
        then that goes unseen, while the record is this reign's, with which nobody else's comes."""
        standing = self.standings[number]
        if standing.busy:
            return
        path = f"{COORDINATORS}/{number}"
        mine = claim(reign.record)
        standing.busy = True

        def read(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok" or reign.phase != "active":
                return
            operations: list[ZkOperation] = [Check(f"{GROUPS}/{number}", reign.version)]
            hidden, standing.hidden = standing.hidden, False
            if reply.node is not None:
                if reply.node.owner == self.zookeeper.session:
                    standing.absent_since = None
                    return
                if reply.node.data != mine:
                    return  # another candidate's
                operations.append(Delete(path, reply.node.version))
            elif hidden:
                operations.append(Delete(path))
            standing.busy = True
            self.zookeeper.commit(
                [*operations, Create(path, mine, ephemeral=True)], partial(done, len(operations) == 1)
            )

        def done(unseen: bool, reply: ZkReply) -> None:
            standing.busy = False
            standing.claimed = mine
            if reply.outcome == "ok":
                standing.absent_since = None
            elif reply.outcome == "refused":
                standing.hidden = unseen
                self.ctx.note("info", "ephemeral_refused", group=number, epoch=reign.epoch, error=reply.error)
                self.superseded(number, reign)
            self.relook()

        self.zookeeper.get(path, read)

    def superseded(self, number: int, reign: Reign) -> None:
        """The record is not as this owner knows it: of another candidate, which is gone, perhaps. Then this broker is
        no coordinator to wait for, and tries in its turn. Or it is this reign's own, activated without its knowing."""
        standing = self.standings[number]
        standing.busy = True

        def then(reply: ZkReply) -> None:
            standing.busy = False
            if reply.outcome != "ok" or reply.node is None:
                return
            try:
                newest = decode_group(reply.node.data)
            except BadRecord as error:
                # no candidate can go on from it either: the reign is worth as much as before
                self.ctx.note("error", "node_unreadable", path=f"{GROUPS}/{number}", why=str(error))
                return
            if newest.epoch > reign.epoch:
                reign.end("another candidate wrote a record")
            else:
                reign.found(newest, reply.node.version)

        self.zookeeper.get(f"{GROUPS}/{number}", then)
