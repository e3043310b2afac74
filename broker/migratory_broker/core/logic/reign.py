"""An epoch that this broker owns, from its record's write to a higher promise: the phases of a takeover and after.

preparing   promises of the source list are collected (skipped for an empty source, and by an owner who re-lists)
syncing     the log is adopted; `q` listed members must confirm its Sync
activating  the compare-and-set against the own record is under way
active      numbering
over        a higher epoch was promised here, or the record was lost to another candidate
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from migratory_protocol.peer import Activated, Broker, Promise, Standing, Synced

from migratory_broker.core.logic.context import Context, must
from migratory_broker.core.logic.events import Write, ZkReply
from migratory_broker.core.logic.followers import Followers
from migratory_broker.core.logic.records import GROUPS, BadRecord, GroupRecord, decode_group, encode
from migratory_broker.core.logic.replica import Replica, View
from migratory_broker.core.logic.sequencer import Answering, Sequencer
from migratory_broker.core.logic.takeover import Preparation
from migratory_broker.core.logic.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from migratory_broker.core.logic.membership import Membership

Phase = Literal["preparing", "syncing", "activating", "active", "over"]


class Reign:
    def __init__(
        self,
        ctx: Context,
        zookeeper: ZooKeeper,
        membership: Membership,
        replica: Replica,
        record: GroupRecord,
        version: int,
        answer: Answering,
        on_active: Callable[[Reign], None],
    ) -> None:
        must(record.owner == ctx.me, "OWNER: an epoch has one coordinator, the owner in its record")
        must(record.owner in record.members, "OWNER-LISTED: a coordinator is on its own list")
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.membership = membership
        self.replica = replica
        self.record = record
        self.version = version
        self.phase: Phase = "preparing"
        self.since = ctx.now  # of the phases before "active", for the progress timeout
        self.started = ctx.now
        self.retried = False  # this is the owner's own second try
        self.preparation: Preparation | None = None
        self.followers = Followers(ctx, replica, record)
        self.sequencer = Sequencer(ctx, replica, record, self.followers, answer)
        self.synced: set[Broker] = set()
        self.adopted_entries = 0
        self._on_active = on_active

    @property
    def epoch(self) -> int:
        return self.record.epoch

    @property
    def active(self) -> bool:
        return self.phase == "active"

    # ---- preparing -------------------------------------------------------------------------------------------

    def begin(self, before: Reign | None) -> None:
        """Start with the written record. `before` is the activated reign that this broker goes on from without a
        promise round, because it only changes the list; its log is the longest there is."""
        replica, record = self.replica, self.record
        replica.promise(record.epoch)
        if record.source is None:
            must(
                replica.history != record.history or not replica.topics,
                "FIRST-EMPTY: without a source nothing was numbered in this history",
            )
            topics = set(replica.topics)
            told = replica.history not in (0, record.history)
            replica.begin_history(record.history, record.first)
            if told:
                replica.tell_reset(topics)
            self._adopted(None)
        elif before is not None:
            must(
                replica.synced == before.epoch == record.source.epoch and before.record.owner == record.owner,
                "RELIST: only the owner of the activated epoch skips the promises",
            )
            self._adopted(before)
        else:
            self.preparation = Preparation(self.ctx, replica, record, record.source)
            self.preparation.begin()
            self._check_promises()

    def promise(self, peer: str, message: Promise) -> None:
        if self.phase == "preparing" and self.preparation and message.epoch == self.epoch:
            self.preparation.promise(peer, message)
            self._check_promises()

    def _check_promises(self) -> None:
        preparation = self.preparation
        if preparation is not None and preparation.enough:
            self.adopted_entries = preparation.adopt()
            self._adopted(None)

    # ---- syncing ---------------------------------------------------------------------------------------------

    def _adopted(self, before: Reign | None) -> None:
        replica, record = self.replica, self.record
        self.phase = "syncing"
        replica.synced = record.epoch
        replica.view = View(record.epoch, record.owner, tuple(record.members), record.copies, activated=False)
        self.followers.adopted = replica.lasts()
        self.synced = {record.owner}
        for peer in list(self.ctx.links):
            self._follow(peer, before)
        self.preparation = None  # with all that was answered
        self.check_activation()

    def _follow(self, peer: str, before: Reign | None) -> None:
        broker = (peer, self.ctx.links[peer])
        if before is not None:
            old = before.followers.by_name.get(peer)
            if old is not None and old.streams and old.broker == broker:
                self.followers.add_streaming(peer)
                return
        if self.preparation is not None and broker in self.preparation.answers:
            answer = self.preparation.answers[broker]
            self.followers.add_known(peer, answer.holds, self.preparation.is_useful(broker))
            return
        self.followers.add(peer)

    def standing(self, peer: str, message: Standing) -> None:
        if self.phase not in ("syncing", "activating", "active") or message.epoch != self.epoch:
            return
        self.sequencer.flush()
        self.followers.standing(peer, message)

    def confirmed(self, peer: str, message: Synced) -> None:
        """LISTED-VOTES: a listed incarnation confirmed the whole snapshot; what was in it counts as accepted."""
        follower = self.followers.by_name.get(peer)
        if follower is None or message.epoch != self.epoch or message.serial != follower.serial:
            return
        follower.confirmed = True
        if follower.broker in self.record.members:
            self.synced.add(follower.broker)
            self.sequencer.accepted(follower.broker, list(follower.snapshot.items()))
        follower.snapshot = {}
        self.check_activation()

    def check_activation(self) -> None:
        """ACTIVATE-QUORUM: `q` listed members are synced, and not more than q - 1 of the list are known to be lost."""
        record = self.record
        if self.phase != "syncing" or len(self.synced.intersection(record.members)) < record.copies:
            return
        if self.membership.lost(record.members) > record.copies - 1 or not self.zookeeper.connected:
            return  # the progress timeout writes another list
        self.phase = "activating"
        self.zookeeper.commit(
            [Write(f"{GROUPS}/{self.replica.group}", encode(record.as_activated()), self.version)], self._activation
        )

    def _activation(self, reply: ZkReply) -> None:
        """ACTIVATE-CAS: the answer to the compare-and-set against the own record."""
        if self.phase != "activating":
            return
        if reply.outcome == "ok":
            self._activated(reply.versions[0])
        else:  # refused may be by an own earlier try, whose reply was lost
            self.zookeeper.get(f"{GROUPS}/{self.replica.group}", self._read_again)

    def _read_again(self, reply: ZkReply) -> None:
        """UNKNOWN-READS-AGAIN: a lost reply is no defeat."""
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

    def found(self, record: GroupRecord, version: int) -> None:
        """UNKNOWN-READS-AGAIN: what the record is when a write behind it was refused. An activation whose reply was
        lost may have been carried out, and the list have lost too many since to try again: the epoch is active then."""
        if self.phase in ("syncing", "activating") and record == self.record.as_activated():
            self._activated(version)

    # ---- active ----------------------------------------------------------------------------------------------

    def _activated(self, version: int) -> None:
        self.version = version
        self.record = self.record.as_activated()
        self.phase = "active"
        self.retried = False  # that was progress
        self.followers.active = True
        self.followers.stream(Activated(self.replica.group, self.record.history, self.epoch))
        self.replica.activate()
        self.sequencer.begin()
        self._on_active(self)

    def peer_up(self, peer: str) -> None:
        if self.phase == "preparing" and self.preparation:
            self.preparation.ask(peer)
        elif self.phase != "over":
            self.sequencer.flush()
            self.followers.add(peer)

    def peer_down(self, peer: str) -> None:
        self.followers.remove(peer)
        if self.preparation:
            self.preparation.forget(peer)

    def end(self, why: str) -> None:
        if self.phase != "over":
            was = self.phase
            self.phase = "over"
            self.ctx.note("info", "reign_over", group=self.replica.group, epoch=self.epoch, phase=was, why=why)

    @property
    def stuck(self) -> bool:
        """PROGRESS: it cannot finish or commit within the progress timeout."""
        limit = self.ctx.now - self.ctx.config.progress_timeout
        if self.phase == "active":
            waiting = self.sequencer.waiting_since
            return waiting is not None and waiting < limit
        return self.phase != "over" and self.since < limit
