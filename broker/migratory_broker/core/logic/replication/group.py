"""One topic group at this broker, for `Logic`: the broker's part as a member, and its `Term` if it owns the epoch.

What a candidate or coordinator sends is checked and handled here; answers of members go to the `Term`, which checks
them. A message that breaks the rules raises PeerError before it changes a log. A `Prepare`, `InventoryRequest`, `Sync`
or `Accept` of an epoch below the promise is refused, and so is an `Accept` of another history: of a coordinator's
messages, only a `Sync` begins another history here.
"""

from __future__ import annotations

from collections.abc import Iterator

from migratory_protocol.peer import (
    Accept,
    Accepted,
    Activated,
    EpochRefused,
    Inventory,
    InventoryRequest,
    Prepare,
    Promise,
    Publication,
    Sync,
    Synced,
)
from migratory_protocol.topics import topic_group

from migratory_broker.core.logic.context import Context, expect, must
from migratory_broker.core.logic.membership.epochs import check_list
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.records import GroupRecord
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.cache import Cache
from migratory_broker.core.logic.replication.replica import Replica, ReplicationListener
from migratory_broker.core.logic.replication.snapshot import check_parts, for_candidate, join, split
from migratory_broker.core.logic.replication.term import Term
from migratory_broker.core.logic.replication.topic_log import TopicLog


class TopicGroup:
    """A topic group at this broker: its replica, this broker's term in it, if any, and the votes to send at the end of
    the turn."""

    def __init__(
        self,
        ctx: Context,
        number: int,
        cache: Cache,
        zookeeper: ZkRequests,
        membership: Membership,
        listener: ReplicationListener,
    ) -> None:
        self.ctx = ctx
        self.number = number
        self.zookeeper = zookeeper
        self.membership = membership
        self.listener = listener
        self.replica = Replica(ctx, cache, number, listener)
        self.term: Term | None = None
        self.member = False  # listed and synced in the last activated list that this broker heard of
        self._accepted: dict[str, TopicLog] = {}  # logs with entries accepted in this turn
        self._staged: dict[str, list[Sync]] = {}  # peer -> parts of a Sync so far
        self._repairing: int = 0  # the epoch in which a missing entry was requested, and no Sync has come since

    # ---- this broker's term ----------------------------------------------------------------------------------

    def begin_term(self, record: GroupRecord, version: int, *, retried: bool = False) -> None:
        """Begin the term of a ZooKeeper record that this broker has written, and end this broker's earlier term in the
        group, if there is one. If that is active and the source of the record, the new term skips the promises.
        `version` is that of the record's node. `retried`: the record is the owner's second try, so that it resigns if
        this one makes no progress either."""
        before = self.term
        if before is not None:
            before.sequencer.flush()
        continues = (
            before is not None
            and before.active
            and self.replica.promised == self.replica.synced == before.epoch
            and record.source is not None
            and record.source.epoch == before.epoch
        )
        if before is not None:
            before.end("its owner wrote another record")
        term = self.term = Term(
            self.ctx,
            self.zookeeper,
            self.membership,
            self.replica,
            record,
            version,
            self.listener,
            self._term_activated,
        )
        term.retried = retried
        term.begin(before if continues else None)

    def _term_activated(self, term: Term) -> None:
        """Report that this broker's term is activated: to the listener, the metrics and the log. This broker is a
        synced member of the group from now on."""
        self.member = True
        self.listener.activated(self.number, term.epoch, self.ctx.config.name)
        self.ctx.observe("migratory_takeovers_total")
        self.ctx.observe("migratory_takeover_seconds", self.ctx.now - term.started)
        self.ctx.note(
            "info",
            "epoch_activated",
            group=self.number,
            epoch=term.epoch,
            adopted=term.adopted_entries,
            members=[name for name, _ in term.record.members],
        )
        self.listener.synced(self.number)

    def _promise(self, epoch: int) -> None:
        """Promise `epoch`: refuse lower epochs from now on, and end this broker's own term in a lower one, after what
        it has for followers is sent. Nothing if that epoch or a higher one is promised already."""
        if epoch > self.replica.promised:
            if self.term is not None and self.term.epoch < epoch:
                self.term.sequencer.flush()
                self.term.end(f"epoch {epoch} is promised")
                self.term = None
            self.replica.promise(epoch)

    # ---- from a candidate or coordinator ---------------------------------------------------------------------

    def prepare(self, peer: str, message: Prepare) -> None:
        """PROMISE: promise the epoch, and send the candidate `peer` a `Promise`: with what it lacks if these logs are
        synced to the source epoch or a later one, else without logs. Idle topics that the source epoch names are
        removed first. Refuse an epoch below the promised one with `EpochRefused`. Raise PeerError if this broker owns
        the epoch."""
        replica = self.replica
        self._check_sender(message.epoch)
        if message.epoch < replica.promised:
            self.ctx.send(peer, EpochRefused(self.number, message.epoch, replica.promised))
            return
        self._promise(message.epoch)
        synced = replica.synced_in(message.history)
        if synced:
            replica.remove_idle(message.source)
        if synced < message.source:
            self.ctx.send(peer, Promise(self.number, message.history, message.epoch, synced, True, [], []))
            return
        parts = for_candidate(replica.topics.values(), message.digests if message.useful else [])
        lists = split(parts, self.ctx.config.part_bytes)
        for index, topics in enumerate(lists):
            last = index == len(lists) - 1
            digests = replica.digests() if last else []
            self.ctx.send(
                peer, Promise(self.number, message.history, message.epoch, synced, last, digests, topics, replica.floor)
            )

    def _check_sender(self, epoch: int) -> None:
        """OWNER: raise PeerError if this broker owns `epoch`, for which a peer speaks as candidate or coordinator."""
        owned = self.term is not None and self.term.epoch == epoch
        expect(not owned, "sender", "OWNER: an epoch has one coordinator, the owner in its record")

    def inventory_request(self, peer: str, message: InventoryRequest) -> None:
        """Promise the epoch and send `peer` the inventory. The promise prevents that a lower epoch changes the logs
        meanwhile. Refuse an epoch below the promised one with `EpochRefused`. Raise PeerError if this broker owns the
        epoch."""
        self._check_sender(message.epoch)
        if message.epoch < self.replica.promised:
            self.ctx.send(peer, EpochRefused(self.number, message.epoch, self.replica.promised))
            return
        self._promise(message.epoch)
        self._send_inventory(peer, message.epoch)

    def _send_inventory(self, peer: str, epoch: int) -> None:
        """Send `peer` the digests of all logs of this group, as an answer in `epoch`."""
        replica = self.replica
        self.ctx.send(
            peer,
            Inventory(self.number, replica.history, epoch, replica.promised, replica.synced, replica.digests()),
        )

    def sync(self, peer: str, message: Sync) -> None:
        """Collect the parts of a Sync. With the last one promise its epoch, and install the snapshot as a whole and
        confirm it, or send the inventory if the snapshot does not fit these logs. Refuse an epoch below the promised
        one with `EpochRefused`. Raise PeerError, before anything is promised or installed, for a Sync that is not from
        its epoch's owner or breaks another rule."""
        replica = self.replica
        self._check_sync(peer, message)
        if message.epoch < replica.promised:
            self._staged.pop(peer, None)
            self.ctx.send(peer, EpochRefused(self.number, message.epoch, replica.promised))
            return
        staged = self._staged.get(peer)
        if staged is None or staged[0].serial != message.serial or staged[0].epoch != message.epoch:
            staged = self._staged[peer] = []
        staged.append(message)
        if not message.last:
            return
        del self._staged[peer]
        parts = join(part for piece in staged for part in piece.topics)
        check_parts(parts, self.number, self.ctx.config.groups, message.epoch)
        fits = replica.fits(message, parts)
        if fits:
            replica.check(message, parts)
        self._promise(message.epoch)
        if not fits:
            self.ctx.note("warning", "sync_requested_again", group=self.number, epoch=message.epoch, peer=peer)
            self._send_inventory(peer, message.epoch)
            return
        replica.install(message, parts)
        self._repairing = 0
        self._accepted = {}
        self.ctx.send(peer, Synced(self.number, message.history, message.epoch, message.serial))
        if message.activated:
            self._epoch_activated(peer, message.epoch)
        else:
            self.listener.synced(self.number)

    def _check_sync(self, peer: str, message: Sync) -> None:
        """OWNER: raise PeerError unless the Sync comes from the owner of its epoch, which this broker is not.
        OWNER-LISTED: and unless its list has the owner, each member once, and at least as many members as copies."""
        self._check_sender(message.epoch)
        owner = message.owner == (peer, self.ctx.links[peer])
        expect(owner, "sender", "OWNER: an epoch is synced by its owner")
        check_list(message.owner, message.members, message.copies)

    def activated(self, peer: str, message: Activated) -> None:
        """Commit all entries of these logs, and remove the idle topics that the epoch names: the owner `peer` has
        activated the epoch that they are synced to. Ignore an epoch or a history that they are not synced to. Raise
        PeerError if `peer` is not the owner."""
        replica, view = self.replica, self.replica.view
        if message.history == replica.history and message.epoch == replica.synced:
            owner = view is not None and view.owner == (peer, self.ctx.links[peer])
            expect(owner, "sender", "OWNER: an epoch is activated by its owner")
            replica.activate()
            self._epoch_activated(peer, message.epoch)

    def _epoch_activated(self, coordinator: str, epoch: int) -> None:
        """Record whether this broker is listed in the epoch, which is activated and which its replica is synced to.
        Report the coordinator to the listener, and that waiting subscriptions may be answered."""
        self.member = self.replica.listed
        self.listener.activated(self.number, epoch, coordinator)
        self.listener.synced(self.number)

    def accept(self, peer: str, message: Accept) -> None:
        """ACCEPT: store each entry that is the next of its topic, if the message's epoch is both the promised and the
        synced one and `peer` owns it. A listed broker votes for what it stored at the end of the turn.

        The first message of an epoch shows that it is activated. Stored entries are committed at once by a member of a
        list with two copies, and otherwise up to the message's marks. A missing entry is requested. Publishers that the
        message forgets are removed from the tables first. Refuse another history, and an epoch below the promised one,
        with `EpochRefused`. Ignore an epoch whose Sync has not come yet, and a peer that does not own it. Raise
        PeerError for entries of another epoch or group.
        """
        replica = self.replica
        if message.history != replica.history or message.epoch < replica.promised:
            self.ctx.send(peer, EpochRefused(self.number, message.epoch, replica.promised))
            return
        view = replica.view
        if message.epoch != replica.synced or view is None or view.owner[0] != peer:
            return  # its Sync has not come yet, and will
        self._check_entries(message)
        if not view.activated:
            replica.activate()
            self._epoch_activated(peer, message.epoch)
        for topic, publisher in message.forget:
            if (log := replica.topics.get(topic)) is not None:
                log.table.forget(publisher)
        listed, immediate = replica.listed, replica.immediate
        for item in message.entries:
            log = replica.open(item.topic)
            if not self._store(log, item.publications):
                self._repair(peer, message.epoch)
                continue
            if listed:
                self._accepted[item.topic] = log
                self.ctx.dirty[self.number] = None
            if immediate:
                replica.commit(log, log.last)
        for topic, mark in message.marks:
            if (log := replica.topics.get(topic)) is not None:
                replica.commit(log, mark)

    def _check_entries(self, message: Accept) -> None:
        """Raise PeerError unless all entries are of the message's epoch and of topics of this group."""
        topics, groups = self.replica.topics, self.ctx.config.groups
        for item in message.entries:
            own = item.topic in topics or topic_group(item.topic, groups) == self.number
            expect(own, "group", "entries are of topics of their group")
            for publication in item.publications:
                expect(publication.epoch == message.epoch, "epoch", "ACCEPT: entries are of the sender's epoch")

    def _store(self, log: TopicLog, publications: list[Publication]) -> bool:
        """Append the entries that the log lacks and return True; entries that it has are skipped. At a hole before an
        entry stop and return False."""
        replica = self.replica
        for publication in publications:
            if publication.sequence == log.last + 1:
                replica.append(log, publication)
            elif publication.sequence > log.last:
                return False
        return True

    def _repair(self, peer: str, epoch: int) -> None:
        """Request missing entries from the coordinator `peer`, by sending it this group's inventory. Once per epoch:
        further calls do nothing until a Sync was installed or the link to the coordinator broke."""
        if self._repairing != epoch:
            self._repairing = epoch
            self.ctx.note("warning", "entry_missing", group=self.number, epoch=epoch, peer=peer)
            self._send_inventory(peer, epoch)

    # ---- from a member ---------------------------------------------------------------------------------------

    def promise(self, peer: str, message: Promise) -> None:
        if self.term is not None:
            self.term.promise(peer, message)

    def inventory(self, peer: str, message: Inventory) -> None:
        if self.term is not None:
            self.term.inventory(peer, message)

    def confirmed(self, peer: str, message: Synced) -> None:
        if self.term is not None:
            self.term.confirmed(peer, message)

    def refused(self, peer: str, message: EpochRefused) -> None:
        if self.term is not None and message.epoch == self.term.epoch:
            self.term.refused(peer, message.promised)

    def accepted(self, peer: str, message: Accepted) -> None:
        """BY-INCARNATION: count the votes of the incarnation at the other end of the link to `peer`, if this broker has
        an active term and the message is of its epoch. Otherwise ignore them. Raise PeerError if a listed broker votes
        for an entry that does not exist."""
        term = self.term
        if term is not None and term.active and message.epoch == term.epoch:
            term.sequencer.accepted((peer, self.ctx.links[peer]), message.lasts)

    # ---- links and turns -------------------------------------------------------------------------------------

    def peer_up(self, peer: str) -> None:
        if self.term is not None:
            self.term.peer_up(peer)

    def peer_down(self, peer: str) -> None:
        """Drop the parts of an unfinished Sync of `peer`, and pass the news to this broker's term. If `peer` owns the
        synced epoch, drop the unsent votes for it, and allow that missing entries are requested again."""
        self._staged.pop(peer, None)
        if self.replica.view is not None and self.replica.view.owner[0] == peer:
            self._repairing = 0
            self._accepted = {}
        if self.term is not None:
            self.term.peer_down(peer)

    def flush(self) -> None:
        """Send what this broker's term has for the followers, if there is one, and send the epoch's owner the votes for
        the entries that this broker accepted in this turn as a member."""
        if self.term is not None:
            self.term.sequencer.flush()
        view = self.replica.view
        if self._accepted and view is not None:
            lasts = [(name, log.last) for name, log in self._accepted.items()]
            self._accepted = {}
            self.ctx.send(view.owner[0], Accepted(self.number, self.replica.history, view.epoch, lasts))


class GroupRegistry:
    """The topic groups of this broker, in the order of their numbers.

    It is created empty, passed to everything that reads groups, and filled once, before the first event. So each group
    can be given a listener that itself reads the registry, and no reference has to be set later.
    """

    def __init__(self) -> None:
        self._groups: list[TopicGroup] = []

    def fill(self, groups: list[TopicGroup]) -> None:
        must(not self._groups, "the registry of groups is filled once")
        self._groups = groups

    def __getitem__(self, number: int) -> TopicGroup:
        return self._groups[number]

    def __len__(self) -> int:
        return len(self._groups)

    def __iter__(self) -> Iterator[TopicGroup]:
        return iter(self._groups)

    def active_terms(self) -> list[tuple[int, Term]]:
        """Return (group number, term) of each group that this broker coordinates: its term there is active."""
        return [(group.number, group.term) for group in self if group.term is not None and group.term.active]
