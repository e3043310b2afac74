"""The identity of ZooKeeper's data, which tells lost and rolled-back data from the data that a broker takes part in.

The only child of `/identity` has a random name, and is created in one transaction with the parents of all other nodes.
A broker compares it in each session, and looks twice a second whether it is still there. Each of its transactions is
refused in data of another identity (IDENTITY-GUARD). Until the data is verified, ZooKeeper counts as away. ROLLED-BACK:
if a record is older than one that this broker has read or written in the data of this identity, or if the data is of an
identity that this broker has left, the broker replaces the identity and all records are removed, so that every broker
treats them as lost.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from functools import partial

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ZkCreate, ZkDelete, ZkOperation, ZkReply, ZkWrite
from migratory_broker.core.logic.membership.records import (
    BROKERS,
    CLUSTER,
    COORDINATORS,
    GROUPS,
    IDENTITY,
    MEMBERS,
    BadRecord,
    ClusterRecord,
    GroupRecord,
    decode_group,
    encode,
)
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry, TopicGroup

PARENTS = (BROKERS, MEMBERS, GROUPS, COORDINATORS)
"""The nodes below which others are created. They are created again when they are missing, as are the cluster's record
and the identity."""


ROLLED_BACK = b"rolled back"
"""The content of an identity's node while records of an earlier identity may still be there. Empty afterwards."""

CONFIRMED_AT_ONCE = 50
"""Records that are read in one poll because only peers have named their epochs: 100 a second."""

IDENTITIES_LEFT = 100
"""Identities that a broker remembers to have left, the last ones. It has left one for each loss of ZooKeeper's data."""


def is_older(reply: ZkReply, known: GroupRecord) -> bool:
    """Return whether the record in `reply` to a read is missing, older than `known`, or of the same epoch but of
    another owner or no longer activated. False for a record that cannot be read."""
    try:
        record = decode_group(reply.node.data) if reply.node else None
    except BadRecord:
        return False  # the election reports it
    if record is None or record.epoch < known.epoch:
        return True
    return record.epoch == known.epoch and (record.owner != known.owner or record.activated < known.activated)


class DataIdentity:
    """The verification, in each session, that ZooKeeper's data is what this broker takes part in. `on_verified` is
    called when it is; True: this broker's ephemerals must be created again. `on_lost` is called before that if the data
    is another one than before."""

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
        self._left: deque[str] = deque(maxlen=IDENTITIES_LEFT)
        self._on_verified = on_verified  # called with whether this broker's ephemerals must be created again
        self._on_lost = on_lost
        self._confirmed = -1  # the group of the last record that was read to confirm what peers say
        self._busy = False  # a verification is under way
        self._joined = False  # in this verification, data of another identity

    def tick(self) -> None:
        """Begin to verify the data of an open session, unless that is done or under way."""
        if self.zookeeper.session_open and not self.zookeeper.connected and not self._busy:
            self._busy = True
            if self.zookeeper.identity:
                self._compare()
            else:
                self._list_parents()

    def poll(self) -> None:
        """Read the identity's node. If it is gone, ZooKeeper counts as away, and the data is verified again. Read also
        records of which only peers have told the epoch or the activation, at most `CONFIRMED_AT_ONCE` a call: what is
        read is known from then on."""

        def receive(reply: ZkReply) -> None:
            if reply.outcome == "ok" and reply.node is None:
                self.zookeeper.connected = False
                self.tick()

        self.zookeeper.get(f"{IDENTITY}/{self.zookeeper.identity}", receive)
        unconfirmed = [group.number for group in self.groups if self._is_unconfirmed(group)]
        later = [number for number in unconfirmed if number > self._confirmed]
        for number in (later or unconfirmed)[:CONFIRMED_AT_ONCE]:
            self._confirmed = number
            self.zookeeper.get(f"{GROUPS}/{number}", lambda reply: None)

    def _is_unconfirmed(self, group: TopicGroup) -> bool:
        """ROLLED-BACK: return whether only peers have told this broker of the group's newest epoch (the promised one),
        or of the activation of the newest record. `poll` then reads the group's record. The word of a peer alone is no
        proof that ZooKeeper's data was rolled back, because the peer may belong to data of another identity, or lie."""
        record, view = self.zookeeper.recorded.get(group.number), group.replica.view
        if record is None or record.epoch < group.replica.promised:
            return group.replica.promised > 0
        return view is not None and view.epoch == record.epoch and view.activated > record.activated

    def _retry(self) -> None:
        """Give this verification up. The next tick begins another one."""
        self._busy = False  # the next tick begins again

    # ---- the same identity -------------------------------------------------------------------------------------

    def _compare(self) -> None:
        """Compare the identity and, if it is the same, each group's record with the newest one that is known of it. If
        the identity is another one, find out what data there is.

        The empty transaction makes the reads after it recent: they show the records that this broker knows of now, or
        later ones, even at a server that lagged.
        """
        known = {number: self._known(number, record) for number, record in self.zookeeper.recorded.items()}

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

    def _known(self, number: int, record: GroupRecord) -> GroupRecord:
        """Return the newest record that this broker has read or written of a group, as activated if its owner has said
        so meanwhile."""
        replica = self.groups[number].replica
        view = replica.view
        if view is None or not view.activated or replica.history != record.history:
            return record
        return record.as_activated() if (view.epoch, view.owner) == (record.epoch, record.owner) else record

    def _check(
        self, number: int, known: dict[int, GroupRecord], checked: dict[int, bool | None], reply: ZkReply
    ) -> None:
        """Note in `checked` whether a group's record is older than the `known` one, None if the read failed. After the
        last one, end the verification: if any is older, the data was rolled back and its identity is replaced; if any
        read failed, the next tick begins again; otherwise the data is verified."""
        checked[number] = is_older(reply, known[number]) if reply.outcome == "ok" else None
        if len(checked) < len(known):
            return
        if True in checked.values():
            self._remove(self.zookeeper.identity)
        elif None in checked.values():
            self._retry()
        else:
            self._verified()

    def _remove(self, identity: str) -> None:
        """ROLLED-BACK: replace the identity `identity` by a new one that is marked as rolled back, and log that, so
        that no transaction for the old one succeeds any more. The next verification, at this or another broker, removes
        the records before anybody takes part in the new one."""
        self.ctx.note("error", "zookeeper_rolled_back", identity=identity)
        operations: list[ZkOperation] = [
            ZkDelete(f"{IDENTITY}/{identity}"),
            ZkCreate(f"{IDENTITY}/{self._new_identity()}", ROLLED_BACK),
        ]
        self.zookeeper.commit_unguarded(operations, lambda reply: self._retry())

    # ---- another identity, or none -----------------------------------------------------------------------------

    def _list_parents(self) -> None:
        """Begin to find out what data ZooKeeper has, and whether something is missing there."""
        self.zookeeper.children("/", self._parents)

    def _parents(self, reply: ZkReply) -> None:
        """Handle the list of the nodes below the root: list the children of `/identity` next."""
        if reply.outcome != "ok":
            self._retry()
            return
        present = {f"/{name}" for name in reply.children or ()}
        self.zookeeper.children(IDENTITY, partial(self._identity, present))

    def _identity(self, present: set[str], reply: ZkReply) -> None:
        """Create in one transaction the parents, the cluster's record and the identity as far as they are missing, and
        begin again. If all are there, read the node of the identity. `present` are the paths of the nodes below the
        root."""
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
            identity = min(reply.children or ())
            self.zookeeper.get(f"{IDENTITY}/{identity}", partial(self._found, identity))

    def _found(self, identity: str, reply: ZkReply) -> None:
        """Handle the node of the identity: take part in its data. ROLLED-BACK: if the node is marked, first remove all
        records and coordinators' ephemerals, and the mark, in one transaction. If this broker has left the identity,
        replace it: its data can only be older than what this broker knows."""
        if reply.outcome != "ok" or reply.node is None:
            self._retry()
            return
        if reply.node.data != ROLLED_BACK:
            if identity in self._left:
                self._remove(identity)
            else:
                self._adopt(identity)
            return
        operations: list[ZkOperation] = [ZkWrite(f"{IDENTITY}/{identity}", b"", reply.node.version)]
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

    def _created(self, reply: ZkReply) -> None:
        """Handle the reply to the creation: find out again what data there is, as this broker or another one has
        created it. If the outcome is unknown, the next tick begins again."""
        if reply.outcome == "unknown":
            self._retry()
        else:
            self._list_parents()  # created, by this broker or another

    def _adopt(self, identity: str) -> None:
        """Take part in the data of `identity`, which is verified by that. If this broker took part in data of another
        identity before, that data is lost: forget its records, log and count the loss, and call `on_lost`."""
        before, self.zookeeper.identity = self.zookeeper.identity, identity
        if before != identity:
            self.zookeeper.recorded.clear()
        if before not in ("", identity):
            self.losses += 1
            self._left.append(before)
            self._joined = True
            self.ctx.observe("migratory_zookeeper_data_losses_total")
            self.ctx.note("error", "zookeeper_data_lost", identity=identity, before=before)
            self._on_lost()
        self._verified()

    def _verified(self) -> None:
        """End the verification, which succeeded. If the session is still open, ZooKeeper counts as connected from now
        on, and `on_verified` is called, with True if this broker's ephemerals must be created again. If the session
        has ended, the next one begins another verification."""
        self._busy = False
        if self.zookeeper.session_open:
            joined, self._joined = self._joined, False
            fresh = self.zookeeper.verified()
            self._on_verified(fresh or joined)

    def _new_identity(self) -> str:
        return f"{self.ctx.random.integer():016x}"
