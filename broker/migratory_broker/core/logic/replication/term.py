"""A term, for `TopicGroup` and `Election`: one epoch that this broker owns, from the write of its ZooKeeper record to
its end.

| phase | meaning |
| --- | --- |
| preparing | promises of the source list are collected (skipped for an empty source, and by an owner that re-lists) |
| syncing | the logs are adopted; `q` (the record's copies) listed members, the owner included, must hold them |
| activating | the owner's record is being replaced by an activated one, if it is unchanged |
| active | publications are numbered |
| over | a higher epoch was promised here, another record follows, or the term was given up |
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from migratory_protocol.peer import Activated, BrokerId, Inventory, Promise, Synced

from migratory_broker.core.logic.context import Context, must
from migratory_broker.core.logic.events import ZkReply, ZkWrite
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.records import GROUPS, BadRecord, GroupRecord, decode_group, encode
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.followers import Followers
from migratory_broker.core.logic.replication.replica import EpochView, Replica, ReplicationListener
from migratory_broker.core.logic.replication.sequencer import Sequencer
from migratory_broker.core.logic.replication.takeover import PromiseRound

Phase = Literal["preparing", "syncing", "activating", "active", "over"]


class Term:
    """This broker's ownership of one epoch of a topic group, from the write of the epoch's record: it takes the group
    over, then works as its coordinator, until its end. Raises InvariantError if the record's owner is not this broker
    or is not listed."""

    def __init__(
        self,
        ctx: Context,
        zookeeper: ZkRequests,
        membership: Membership,
        replica: Replica,
        record: GroupRecord,
        version: int,
        listener: ReplicationListener,
        on_active: Callable[[Term], None],
    ) -> None:
        must(record.owner == ctx.me, "OWNER: an epoch has one coordinator, the owner in its record")
        must(record.owner in record.members, "OWNER-LISTED: a coordinator is on its own list")
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.replica = replica
        self.record = record
        self.version = version  # of the record's node in ZooKeeper
        self.phase: Phase = "preparing"
        self.started = ctx.now
        self.retried = False  # this is the owner's second try to make progress
        self.outbid = 0  # the highest promise for which a member refused this epoch
        self._outbid_at = 0.0
        self.promise_round: PromiseRound | None = None
        self.followers = Followers(ctx, replica, record)
        self.sequencer = Sequencer(ctx, replica, record, self.followers, listener)
        self.synced: set[BrokerId] = set()
        self.adopted_entries = 0
        self._on_active = on_active

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def active(self) -> bool:
        return self.phase == "active"

    # ---- preparing -------------------------------------------------------------------------------------------

    def begin(self, before: Term | None) -> None:
        """Promise the epoch, and adopt the logs for it or begin to collect promises.

        `before` is the active term that this one continues without a round of promises, because only the list changes:
        its logs are the longest there are. None for any other takeover. If the record has no source, drop all logs and
        begin its history, empty; notify the subscribers of another history that it replaces.
        """
        replica, record = self.replica, self.record
        replica.promise(record.epoch)
        if record.source is None:
            if replica.history == record.history and replica.topics:
                # FIRST-EMPTY: without a source nothing was numbered in this history, whatever a peer has sent of it
                self.ctx.note("error", "entries_without_source", group=replica.group, epoch=record.epoch)
            topics = set(replica.topics)
            replaced = replica.history not in (0, record.history)
            replica.begin_history(record.history, record.first)
            if replaced:
                replica.announce_reset(topics)
            self._adopted(None)
        elif before is not None:
            must(
                replica.synced == before.epoch == record.source.epoch and before.record.owner == record.owner,
                "RELIST: only the owner of the activated epoch skips the promises",
            )
            self.sequencer.continue_from(before.sequencer)
            self._adopted(before)
        else:
            if replica.history == record.history:
                replica.remove_idle(record.source.epoch)
            self.promise_round = PromiseRound(self.ctx, replica, record, record.source)
            self.promise_round.begin()
            self._check_promises()

    def promise(self, peer: str, message: Promise) -> None:
        """Count a peer's promise while promises of this epoch are collected, and adopt the logs once there are enough.
        Otherwise ignore it."""
        if self.phase == "preparing" and self.promise_round and message.epoch == self.epoch:
            self.promise_round.promise(peer, message)
            self._check_promises()

    def _check_promises(self) -> None:
        """Adopt the logs and begin to sync the followers if there are enough promises."""
        promise_round = self.promise_round
        if promise_round is not None and promise_round.enough:
            self.adopted_entries = promise_round.adopt()
            self._adopted(None)

    @property
    def refuted(self) -> bool:
        """RESTORE-AGAIN: True while this term collects promises, and those that came show that its source epoch never
        was activated."""
        return self.phase == "preparing" and self.promise_round is not None and self.promise_round.refuted

    # ---- syncing ---------------------------------------------------------------------------------------------

    def _adopted(self, before: Term | None) -> None:
        """Enter the phase "syncing": the replica's logs are the epoch's from now on, and every linked broker is brought
        to them. `before` is the term that this one continues, or None.

        REMOVED-WITH-EPOCH: an epoch that continues another removes the idle topics, if the cluster is calm.
        """
        replica, record = self.replica, self.record
        replica.removed = replica.idle_topics() if before is not None and self.ctx.calm else []
        self.phase = "syncing"
        replica.synced = record.epoch
        replica.view = EpochView(record.epoch, record.owner, tuple(record.members), record.copies, activated=False)
        self.followers.adopted = replica.lasts()
        self.synced = {record.owner}
        for peer in list(self.ctx.links):
            self._follow(peer, before)
        self.promise_round = None  # frees the logs that the answers carried
        self.check_activation()

    def _follow(self, peer: str, before: Term | None) -> None:
        """Add the broker linked as `peer` as a follower, with the least that it may need: an empty Sync if it followed
        `before` over this same link, a Sync at once if it has promised, else the request of its inventory."""
        broker = (peer, self.ctx.links[peer])
        if before is not None:
            old = before.followers.by_name.get(peer)
            if old is not None and old.streams and old.broker == broker:
                self.followers.add_streaming(peer)
                return
        if self.promise_round is not None and broker in self.promise_round.answers:
            answer = self.promise_round.answers[broker]
            self.followers.add_known(peer, answer.digests, self.promise_round.is_useful(broker))
            return
        self.followers.add(peer)

    def inventory(self, peer: str, message: Inventory) -> None:
        """Bring a follower to the epoch's logs, as its inventory shows what it has. Ignore an inventory for another
        epoch, or one that comes before the logs are adopted. What was numbered is sent first, so that it is not sent
        twice."""
        if self.phase not in ("syncing", "activating", "active") or message.epoch != self.epoch:
            return
        self.sequencer.flush()
        self.followers.inventory(peer, message)

    def confirmed(self, peer: str, message: Synced) -> None:
        """LISTED-VOTES: note that a follower installed its last Sync. If it is listed, count it for the activation, and
        the entries in the Sync as accepted. Then write the activation if enough have confirmed (`check_activation`).
        Confirmations of an earlier Sync, of another epoch or of no follower are ignored."""
        follower = self.followers.by_name.get(peer)
        if follower is None or message.epoch != self.epoch or message.serial != follower.serial:
            return
        follower.confirmed = True
        if follower.broker in self.record.members:
            self.synced.add(follower.broker)
            topics = self.replica.topics  # some may have been removed since
            held = [(name, last) for name, last in follower.snapshot.items() if name in topics]
            self.sequencer.accepted(follower.broker, held)
        follower.snapshot = {}
        self.check_activation()

    def check_activation(self) -> None:
        """ACTIVATE-QUORUM: in the phase "syncing", write the activation to ZooKeeper when `q` listed members, the owner
        included, are synced. Wait while more than q - 1 of the list are known to be lost, or ZooKeeper is away.
        Otherwise nothing."""
        record = self.record
        if self.phase != "syncing" or len(self.synced.intersection(record.members)) < record.copies:
            return
        if self.membership.lost(record.members) > record.copies - 1 or not self.zookeeper.connected:
            return  # the progress timeout writes another list
        self.phase = "activating"
        self.zookeeper.commit(
            [ZkWrite(f"{GROUPS}/{self.replica.group}", encode(record.as_activated()), self.version)], self._activation
        )

    def _activation(self, reply: ZkReply) -> None:
        """ACTIVATE-CAS: handle the reply to the write of the activation: activate the term, or read the record if the
        write was refused or its outcome is unknown. Nothing if the term has left the phase "activating"."""
        if self.phase != "activating":
            return
        if reply.outcome == "ok":
            self._activated(reply.versions[0])
        else:  # an earlier try of this term, whose reply was lost, may have caused the refusal
            self.zookeeper.get(f"{GROUPS}/{self.replica.group}", self._read_again)

    def _read_again(self, reply: ZkReply) -> None:
        """UNKNOWN-READS-AGAIN: handle the reply to the read of the group's record after the write of the activation was
        refused or its outcome unknown. Activate the term if an earlier write succeeded. End it if another candidate
        wrote a record, or the record is missing or unreadable. If the record is unchanged, or the read failed too, the
        next tick writes the activation again."""
        if self.phase != "activating":
            return
        if reply.outcome != "ok":
            self.phase = "syncing"
            return
        node = reply.node
        try:
            record = decode_group(node.data) if node else None
        except BadRecord as error:
            self.end(f"its record cannot be read: {error}")
            return
        if node is None or record is None or (record.owner, record.epoch) != (self.record.owner, self.epoch):
            self.end("another candidate wrote a record")
        elif record.activated:
            self._activated(node.version)
        else:
            self.version = node.version
            self.phase = "syncing"  # the next tick tries again

    def record_read(self, record: GroupRecord, version: int) -> None:
        """UNKNOWN-READS-AGAIN: activate the term if `record`, which was read with this version after another write was
        refused, is its own and activated. Otherwise: nothing.

        The reply to the activation may have been lost, and the list may have lost too many members since to try again.
        """
        if self.phase in ("syncing", "activating") and record == self.record.as_activated():
            self._activated(version)

    # ---- active ----------------------------------------------------------------------------------------------

    def _activated(self, version: int) -> None:
        """Enter the phase "active": tell the followers, commit all adopted entries, remove the idle topics that the
        epoch names, and begin to number. `version` is that of the activated record."""
        self.version = version
        self.record = self.record.as_activated()
        self.phase = "active"
        self.retried = False  # the activation is progress: the next time may retry again
        self.followers.active = True
        self.followers.stream(Activated(self.replica.group, self.record.history, self.epoch))
        if removed := len(self.replica.removed):
            self.ctx.observe("migratory_topics_removed_total", removed)
            self.ctx.note("info", "topics_removed", group=self.replica.group, epoch=self.epoch, count=removed)
        self.replica.activate()
        self.sequencer.begin()
        self._on_active(self)

    def peer_up(self, peer: str) -> None:
        """Handle an open link to `peer`: ask it for its promise while promises are collected, later add it as a
        follower."""
        if self.phase == "preparing" and self.promise_round:
            self.promise_round.request(peer)
        elif self.phase != "over":
            self.sequencer.flush()
            self.followers.add(peer)

    def peer_down(self, peer: str) -> None:
        """Handle that the link to `peer` broke: remove the follower, and drop the parts of an unfinished promise. A
        finished promise, its confirmation and its votes stay valid."""
        self.followers.remove(peer)
        if self.promise_round:
            self.promise_round.peer_down(peer)

    def end(self, reason: str) -> None:
        """Enter the phase "over", and log the reason. Nothing is sent, and the replica does not change. Nothing if the
        term is over already."""
        if self.phase != "over":
            phase = self.phase
            self.phase = "over"
            self.ctx.note("info", "term_ended", group=self.replica.group, epoch=self.epoch, phase=phase, reason=reason)

    def refused(self, peer: str, promised: int) -> None:
        """Stop streaming to the follower `peer`, which refused a message of this epoch. If it promised a higher one,
        record that: after a progress timeout the term counts as stuck, so that its owner writes a record above that
        promise."""
        self.followers.refuse(peer)
        if promised > self.epoch:
            if not self.outbid:
                self._outbid_at = self.ctx.now
            self.outbid = max(self.outbid, promised)

    @property
    def stuck(self) -> bool:
        """PROGRESS: True if this term has not finished its takeover within the progress timeout. When it is active:
        True if an entry waits for so long without any commit, or if a member refused this epoch so long ago for a
        higher promise. False when it is over."""
        limit = self.ctx.now - self.ctx.config.progress_timeout
        if self.phase == "active":
            waiting = self.sequencer.waiting_since
            return (waiting is not None and waiting < limit) or (bool(self.outbid) and self._outbid_at < limit)
        return self.phase != "over" and self.started < limit
