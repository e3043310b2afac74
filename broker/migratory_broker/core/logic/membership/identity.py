"""The identity of ZooKeeper's data, which tells lost and rolled-back data from the data that a broker takes part in.

The only child of `/identity` has a random name, made once with the other parents. A broker compares it in each session
and twice a second, and each of its transactions is refused in data of another identity (IDENTITY-GUARD). Until the
data is verified, ZooKeeper counts as away. ROLLED-BACK: if a record is older than what this broker promised, the broker
removes all records together with the identity, so that every broker treats them as lost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from migratory_protocol.peer import BrokerId

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ZkCreate, ZkDelete, ZkOperation, ZkReply
from migratory_broker.core.logic.membership.records import (
    BROKERS,
    CLUSTER,
    COORDINATORS,
    GROUPS,
    IDENTITY,
    MEMBERS,
    BadRecord,
    ClusterRecord,
    decode_group,
    encode,
)
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry, TopicGroup

PARENTS = (BROKERS, MEMBERS, GROUPS, COORDINATORS)
"""The nodes that are made again when they are missing, besides the cluster's record and the identity."""


@dataclass(frozen=True, slots=True)
class Known:
    """A broker's knowledge of a group's record: the epoch that it promised, and of the epoch that it is synced to the
    owner, and whether it is activated."""

    promised: int
    synced: int
    owner: BrokerId | None
    activated: bool

    def is_newer(self, reply: ZkReply) -> bool:
        """Return whether the record that ZooKeeper has is older, or is another one of the same epoch."""
        try:
            record = decode_group(reply.node.data) if reply.node else None
        except BadRecord:
            return False  # the election reports it
        if record is None or record.epoch < self.promised:
            return True
        return record.epoch == self.synced and (record.owner != self.owner or record.activated < self.activated)


def _known(group: TopicGroup) -> Known:
    replica, view = group.replica, group.replica.view
    if view is None:
        return Known(replica.promised, 0, None, activated=False)
    return Known(replica.promised, view.epoch, view.owner, view.activated)


class DataIdentity:
    """The verification, in each session, that ZooKeeper's data is what this broker takes part in."""

    def __init__(
        self,
        ctx: Context,
        zookeeper: ZkRequests,
        groups: GroupRegistry,
        on_verified: Callable[[bool], None],
        on_lost: Callable[[], None],
    ) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.groups = groups
        self.losses = 0  # times that this broker met data of another identity than its own
        self._on_verified = on_verified  # called with whether this broker's ephemerals must be created again
        self._on_lost = on_lost
        self._busy = False  # a verification is under way
        self._joined = False  # in this verification, data of another identity

    def tick(self) -> None:
        """Verify the data of an open session, unless that is done or under way."""
        if self.zookeeper.session_open and not self.zookeeper.connected and not self._busy:
            self._busy = True
            if self.zookeeper.identity:
                self._compare()
            else:
                self._list_parents()

    def poll(self) -> None:
        """Read the identity's node, and verify the data again if it is gone."""

        def receive(reply: ZkReply) -> None:
            if reply.outcome == "ok" and reply.node is None:
                self.zookeeper.connected = False
                self.tick()

        self.zookeeper.get(f"{IDENTITY}/{self.zookeeper.identity}", receive)

    def _retry(self) -> None:
        self._busy = False  # the next tick begins again

    # ---- the same identity -------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare the identity and, if it is the same, each group's record with what this broker knows of it.

        The empty transaction makes the reads after it recent: they show the records that this broker knows of now, or
        later ones, even at a server that lagged.
        """
        known = {group.number: _known(group) for group in self.groups if group.replica.promised}

        def receive(reply: ZkReply) -> None:
            if reply.outcome == "ok" and known:
                checked: dict[int, bool | None] = {}
                for number in known:
                    self.zookeeper.get(f"{GROUPS}/{number}", partial(self._check, number, known, checked))
            elif reply.outcome == "ok":
                self._verified()
            elif reply.outcome == "refused":
                self._list_parents()
            else:
                self._retry()

        self.zookeeper.commit([], receive)

    def _check(self, number: int, known: dict[int, Known], checked: dict[int, bool | None], reply: ZkReply) -> None:
        """Note in `checked` whether a record is too old, None without an answer. Act on all of them after the last."""
        checked[number] = known[number].is_newer(reply) if reply.outcome == "ok" else None
        if len(checked) < len(known):
            return
        if True in checked.values():
            self._remove()
        elif None in checked.values():
            self._retry()
        else:
            self._verified()

    def _remove(self) -> None:
        """ROLLED-BACK: replace the identity and remove all records and coordinators' ephemerals, in one transaction."""
        self.ctx.note("error", "zookeeper_rolled_back", identity=self.zookeeper.identity)
        operations: list[ZkOperation] = [
            ZkDelete(f"{IDENTITY}/{self.zookeeper.identity}"),
            ZkCreate(f"{IDENTITY}/{self._new_identity()}", b""),
        ]
        parents = [GROUPS, COORDINATORS]

        def listed(parent: str, reply: ZkReply) -> None:
            if reply.outcome != "ok":
                self._retry()
                return
            operations.extend(ZkDelete(f"{parent}/{name}") for name in reply.children or ())
            list_next()

        def list_next() -> None:
            if parents:
                parent = parents.pop()
                self.zookeeper.children(parent, partial(listed, parent))
            else:
                self.zookeeper.commit_unguarded(operations, lambda reply: self._retry())

        list_next()

    # ---- another identity, or none -----------------------------------------------------------------------------

    def _list_parents(self) -> None:
        self.zookeeper.children("/", self._parents)

    def _parents(self, reply: ZkReply) -> None:
        if reply.outcome != "ok":
            self._retry()
            return
        present = {f"/{name}" for name in reply.children or ()}
        self.zookeeper.children(IDENTITY, partial(self._identity, present))

    def _identity(self, present: set[str], reply: ZkReply) -> None:
        """Create what is missing, or take part in the data that there is."""
        if reply.outcome != "ok":
            self._retry()
            return
        missing: list[ZkOperation] = [ZkCreate(path, b"") for path in PARENTS if path not in present]
        if CLUSTER not in present:
            missing.append(ZkCreate(CLUSTER, encode(ClusterRecord(self.ctx.config.groups))))
        if not reply.children:
            # in one transaction with the parent, so that one of two brokers is refused
            missing += [ZkDelete(IDENTITY)] if IDENTITY in present else []
            missing += [ZkCreate(IDENTITY, b""), ZkCreate(f"{IDENTITY}/{self._new_identity()}", b"")]
        if missing:
            self.zookeeper.commit_unguarded(missing, self._created)
        else:
            self._adopt(min(reply.children or ()))

    def _created(self, reply: ZkReply) -> None:
        if reply.outcome == "unknown":
            self._retry()
        else:
            self._list_parents()  # created, by this broker or another

    def _adopt(self, identity: str) -> None:
        """Take part in the data of `identity`. Data of another one than before has lost what this broker knows."""
        before, self.zookeeper.identity = self.zookeeper.identity, identity
        if before not in ("", identity):
            self.losses += 1
            self._joined = True
            self.ctx.observe("migratory_zookeeper_data_losses_total")
            self.ctx.note("error", "zookeeper_data_lost", identity=identity, before=before)
            self._on_lost()
        self._verified()

    def _verified(self) -> None:
        self._busy = False
        if self.zookeeper.session_open:
            joined, self._joined = self._joined, False
            fresh = self.zookeeper.verified()
            self._on_verified(fresh or joined)

    def _new_identity(self) -> str:
        return f"{self.ctx.random.integer():016x}"
