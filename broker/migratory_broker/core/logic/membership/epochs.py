"""Limits of what peers say of an epoch: its member list (`check_list`), and EPOCH-BOUND, the highest epoch that a
message may name.

A record is written in ZooKeeper before anybody is asked to promise its epoch. A first epoch is a wall clock in
milliseconds, and each later one is the next above the record before it and the promises that its owner knows. So no
epoch is far above both the own wall clock and the known epochs. Without the bound, one forged message would raise a
promise so high that no record ever reaches it.
"""

from __future__ import annotations

from migratory_protocol.peer import BrokerId

from migratory_broker.core.logic.context import Context, PeerError, expect
from migratory_broker.core.logic.events import ZkReply
from migratory_broker.core.logic.membership.records import GROUPS, BadRecord, decode_group
from migratory_broker.core.logic.membership.zookeeper import ZkRequests

EPOCH_SLACK = 86_400_000
"""Epochs above the wall clock, and above the known epochs: a day in milliseconds, by which clocks may differ. If
they differ by more, a link ends and a record is read, whose epoch then counts as known."""


def check_list(owner: BrokerId, members: list[BrokerId], copies: int) -> None:
    """Raise PeerError unless the owner is on the member list, each member is there once, and there are at least as many
    members as copies, which are at least 1."""
    expect(owner in members, "sender", "OWNER-LISTED: an epoch's owner is on its list")
    possible = 1 <= copies <= len(members) == len(set(members))
    expect(possible, "snapshot", "an epoch has as many members as copies, each once")


class EpochBounds:
    """EPOCH-BOUND: the bound of the epochs that peers may name, from the wall clock, promises and the records that were
    read for it."""

    def __init__(self, ctx: Context, zookeeper: ZkRequests) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self._recorded = 0  # the highest epoch in a record read here; other groups' epochs are of the same clocks
        self._reading = False

    def check(self, group: int, epoch: int, promised: int) -> None:
        """Raise PeerError if the epoch is more than `EPOCH_SLACK` above each of these: the wall clock in milliseconds,
        `promised` (the own promise in the group), and the highest epoch in a record that an earlier call led to read.
        Before raising, begin to read the group's record, so that its epoch counts for later calls; not without
        ZooKeeper."""
        if epoch <= max(int(self.ctx.wall * 1000), promised, self._recorded) + EPOCH_SLACK:
            return
        if self.zookeeper.connected and not self._reading:
            self._read(group)
        raise PeerError("epoch", "EPOCH-BOUND: an epoch is near the group's record")

    def _read(self, group: int) -> None:
        """Begin to read the group's record. Its epoch then counts for the bound of all groups. An unreadable record is
        logged."""
        self._reading = True

        def receive(reply: ZkReply) -> None:
            self._reading = False
            if reply.node is not None:
                try:
                    self._recorded = max(self._recorded, decode_group(reply.node.data).epoch)
                except BadRecord as error:
                    self.ctx.note("error", "node_unreadable", path=f"{GROUPS}/{group}", reason=str(error))

        self.zookeeper.get(f"{GROUPS}/{group}", receive)
