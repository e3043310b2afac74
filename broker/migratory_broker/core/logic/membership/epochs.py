"""EPOCH-BOUND: the highest epoch that a peer may name.

A record is written in ZooKeeper before anybody is asked to promise its epoch. A first epoch is a wall clock in
milliseconds, and each later one is the next above all promises. So no epoch is far above both the own wall clock and
the epochs known of its group. Without the bound, one forged message would raise a promise so high that no record ever
reaches it.
"""

from __future__ import annotations

from migratory_broker.core.logic.context import Context, PeerError
from migratory_broker.core.logic.events import ZkReply
from migratory_broker.core.logic.membership.records import GROUPS, BadRecord, decode_group
from migratory_broker.core.logic.membership.zookeeper import ZkRequests

EPOCH_SLACK = 86_400_000
"""Epochs above the wall clock, and above the known epochs: a day in milliseconds, by which clocks may differ. One that
differs by more costs a link and a read of the record, after which the epoch is known."""


class EpochBounds:
    """The check of the epochs that peers name, with the epochs of those records that this broker had to read for it."""

    def __init__(self, ctx: Context, zookeeper: ZkRequests) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self._recorded: dict[int, int] = {}  # group -> epoch of its record
        self._reading: set[int] = set()

    def check(self, group: int, epoch: int, promised: int) -> None:
        """Raise PeerError if the epoch is above the bound, and read the group's record for the next time. `promised`:
        the own promise in the group."""
        bound = max(int(self.ctx.wall * 1000), promised) + EPOCH_SLACK
        if epoch <= bound or epoch <= self._recorded.get(group, 0) + EPOCH_SLACK:
            return
        if self.zookeeper.connected and group not in self._reading:
            self._read(group)
        raise PeerError("epoch", "EPOCH-BOUND: an epoch is near the group's record")

    def _read(self, group: int) -> None:
        self._reading.add(group)

        def receive(reply: ZkReply) -> None:
            self._reading.discard(group)
            if reply.node is not None:
                try:
                    self._recorded[group] = decode_group(reply.node.data).epoch
                except BadRecord as error:
                    self.ctx.note("error", "node_unreadable", path=f"{GROUPS}/{group}", reason=str(error))

        self.zookeeper.get(f"{GROUPS}/{group}", receive)
