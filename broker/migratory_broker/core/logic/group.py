"""One topic group at this broker: the member's side of every rule, and the reign if this broker owns the epoch.

Every message of a group is judged here first: below the promise it is refused, of another history it is not taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_protocol.peer import (
    Accept,
    Accepted,
    Activated,
    Ask,
    Prepare,
    Promise,
    Publication,
    Refused,
    Standing,
    Sync,
    Synced,
)

from migratory_broker.core.logic.cache import Bounds, TopicLog
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.records import GroupRecord
from migratory_broker.core.logic.reign import Reign
from migratory_broker.core.logic.replica import Replica
from migratory_broker.core.logic.snapshot import cut, for_candidate, join

if TYPE_CHECKING:
    from migratory_broker.core.logic.contact import Contact
    from migratory_broker.core.logic.gossip import Gossip
    from migratory_broker.core.logic.membership import Membership
    from migratory_broker.core.logic.resume import Resume
    from migratory_broker.core.logic.zookeeper import ZooKeeper


class Group:
    def __init__(
        self,
        ctx: Context,
        number: int,
        bounds: Bounds,
        zookeeper: ZooKeeper,
        membership: Membership,
        gossip: Gossip,
        contact: Contact,
        resume: Resume,
    ) -> None:
        self.ctx = ctx
        self.number = number
        self.zookeeper = zookeeper
        self.membership = membership
        self.gossip = gossip
        self.contact = contact
        self.resume = resume
        self.replica = Replica(ctx, bounds, number, self._committed)
        self.reign: Reign | None = None
        self.member = False  # listed and synced in the last activated list that this broker was told of
        self._touched: dict[str, TopicLog] = {}  # accepted in this turn
        self._staged: dict[str, list[Sync]] = {}  # peer -> parts of a Sync so far
        self._repairing: int = 0  # the epoch in which a missing entry was asked for

    # ---- the reign -------------------------------------------------------------------------------------------

    def reign_over(self, record: GroupRecord, version: int, *, retried: bool = False) -> None:
        """The record was written: this broker owns the epoch. `retried`: it is the owner's own second try."""
        before = self.reign
        if before is not None:
            before.sequencer.flush()
        goes_on = (
            before is not None
            and before.active
            and self.replica.promised == self.replica.synced == before.epoch
            and record.source is not None
            and record.source.epoch == before.epoch
        )
        if before is not None:
            before.end("its owner wrote another record")
        reign = self.reign = Reign(
            self.ctx,
            self.zookeeper,
            self.membership,
            self.replica,
            record,
            version,
            self.contact.answer_from,
            self._active,
        )
        reign.retried = retried
        reign.begin(before if goes_on else None)

    def _active(self, reign: Reign) -> None:
        self.member = True
        self.gossip.learn(self.number, reign.epoch, self.ctx.config.name, self.ctx.now)
        self.ctx.observe("migratory_takeovers_total")
        self.ctx.observe("migratory_takeover_seconds", self.ctx.now - reign.started)
        self.ctx.note(
            "info",
            "epoch_activated",
            group=self.number,
            epoch=reign.epoch,
            adopted=reign.adopted_entries,
            members=[name for name, _ in reign.record.members],
        )
        self.resume.moved(self)

    def _promise(self, epoch: int) -> None:
        """From here on lower epochs are refused, numbering included."""
        if epoch > self.replica.promised:
            if self.reign is not None and self.reign.epoch < epoch:
                self.reign.sequencer.flush()
                self.reign.end(f"epoch {epoch} is promised")
                self.reign = None
            self.replica.promise(epoch)

    def _committed(self, log: TopicLog, publications: list[Publication]) -> None:
        self.contact.committed(log.name, publications)
        self.resume.committed(self, log)

    # ---- from a candidate or coordinator ---------------------------------------------------------------------

    def prepare(self, peer: str, message: Prepare) -> None:
        """PROMISE: if nothing higher was promised; with what the candidate lacks of logs synced to the source."""
        replica = self.replica
        if message.epoch < replica.promised:
            self.ctx.send(peer, Refused(self.number, message.epoch, replica.promised))
            return
        self._promise(message.epoch)
        synced = replica.synced_in(message.history)
        if synced < message.source:
            self.ctx.send(peer, Promise(self.number, message.history, message.epoch, synced, True, [], []))
            return
        parts = for_candidate(replica.topics.values(), message.holds if message.useful else [])
        lists = cut(parts, self.ctx.config.part_bytes)
        for index, topics in enumerate(lists):
            last = index == len(lists) - 1
            holds = replica.digest() if last else []
            self.ctx.send(peer, Promise(self.number, message.history, message.epoch, synced, last, holds, topics))

    def ask(self, peer: str, message: Ask) -> None:
        """The answer is of a log that no lower epoch changes any more: it comes with the promise."""
        if message.epoch < self.replica.promised:
            self.ctx.send(peer, Refused(self.number, message.epoch, self.replica.promised))
            return
        self._promise(message.epoch)
        self._stand(peer, message.epoch)

    def _stand(self, peer: str, epoch: int) -> None:
        replica = self.replica
        self.ctx.send(
            peer,
            Standing(self.number, replica.history, epoch, replica.promised, replica.synced, replica.digest()),
        )

    def sync(self, peer: str, message: Sync) -> None:
        replica = self.replica
        if message.epoch < replica.promised:
            self._staged.pop(peer, None)
            self.ctx.send(peer, Refused(self.number, message.epoch, replica.promised))
            return
        staged = self._staged.get(peer)
        if staged is None or staged[0].serial != message.serial or staged[0].epoch != message.epoch:
            staged = self._staged[peer] = []
        staged.append(message)
        if not message.last:
            return
        del self._staged[peer]
        parts = join(part for piece in staged for part in piece.topics)
        self._promise(message.epoch)
        if not replica.fits(message, parts):
            self.ctx.note("warning", "sync_asked_again", group=self.number, epoch=message.epoch, peer=peer)
            self._stand(peer, message.epoch)
            return
        replica.install(message, parts)
        self._repairing = 0
        self._touched = {}
        self.ctx.send(peer, Synced(self.number, message.history, message.epoch, message.serial))
        if message.activated:
            self._told_active(peer, message.epoch)
        self.resume.moved(self)

    def activated(self, peer: str, message: Activated) -> None:
        replica = self.replica
        if message.history == replica.history and message.epoch == replica.synced:
            replica.activate()
            self._told_active(peer, message.epoch)
            self.resume.moved(self)

    def _told_active(self, peer: str, epoch: int) -> None:
        self.member = self.replica.listed
        self.gossip.learn(self.number, epoch, peer, self.ctx.now)

    def accept(self, peer: str, message: Accept) -> None:
        """ACCEPT: `promised = synced = e`, sent by its coordinator, and each entry the next of its topic."""
        replica = self.replica
        if message.history != replica.history or message.epoch < replica.promised:
            self.ctx.send(peer, Refused(self.number, message.epoch, replica.promised))
            return
        view = replica.view
        if message.epoch != replica.synced or view is None or view.owner[0] != peer:
            return  # its Sync has not come, and will
        if not view.activated:
            replica.activate()
            self._told_active(peer, message.epoch)
        for topic, publisher in message.forget:
            if (log := replica.topics.get(topic)) is not None:
                log.table.forget(publisher)
        listed, immediate = replica.listed, replica.immediate
        for item in message.entries:
            log = replica.log(item.topic)
            if not self._store(log, item.publications):
                self._repair(peer, message.epoch)
                continue
            if listed:
                self._touched[item.topic] = log
                self.ctx.dirty[self.number] = None
            if immediate:
                replica.commit(log, log.last)
        for topic, mark in message.marks:
            if (log := replica.topics.get(topic)) is not None:
                replica.commit(log, mark)

    def _store(self, log: TopicLog, publications: list[Publication]) -> bool:
        """Whether each was here already or the next."""
        replica = self.replica
        for publication in publications:
            if publication.sequence == log.last + 1:
                replica.append(log, publication)
            elif publication.sequence > log.last:
                return False
        return True

    def _repair(self, peer: str, epoch: int) -> None:
        if self._repairing != epoch:
            self._repairing = epoch
            self.ctx.note("warning", "entry_missing", group=self.number, epoch=epoch, peer=peer)
            self._stand(peer, epoch)

    # ---- from a member ---------------------------------------------------------------------------------------

    def promise(self, peer: str, message: Promise) -> None:
        if self.reign is not None:
            self.reign.promise(peer, message)

    def standing(self, peer: str, message: Standing) -> None:
        if self.reign is not None:
            self.reign.standing(peer, message)

    def confirmed(self, peer: str, message: Synced) -> None:
        if self.reign is not None:
            self.reign.confirmed(peer, message)

    def refused(self, peer: str, message: Refused) -> None:
        if self.reign is not None and message.epoch == self.reign.epoch:
            self.reign.followers.refuse(peer)

    def accepted(self, peer: str, message: Accepted) -> None:
        """BY-INCARNATION: a vote belongs to the life of a broker that the link leads to."""
        reign = self.reign
        if reign is not None and reign.active and message.epoch == reign.epoch:
            reign.sequencer.accepted((peer, self.ctx.links[peer]), message.lasts)

    # ---- links and turns -------------------------------------------------------------------------------------

    def peer_up(self, peer: str) -> None:
        if self.reign is not None:
            self.reign.peer_up(peer)

    def peer_down(self, peer: str) -> None:
        self._staged.pop(peer, None)
        if self.replica.view is not None and self.replica.view.owner[0] == peer:
            self._repairing = 0
            self._touched = {}
        if self.reign is not None:
            self.reign.peer_down(peer)

    def flush(self) -> None:
        if self.reign is not None:
            self.reign.sequencer.flush()
        view = self.replica.view
        if self._touched and view is not None:
            lasts = [(name, log.last) for name, log in self._touched.items()]
            self._touched = {}
            self.ctx.send(view.owner[0], Accepted(self.number, self.replica.history, view.epoch, lasts))
