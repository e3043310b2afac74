"""`Logic`, the entry point of the logic core: everything that brokers must agree upon, by `step(event, now) ->
effects`.

Events and effects are in `events.py`. The parts, by duty:

- `replication/`: the logs of each topic group; `group.py` (a member's side), `term.py` (the coordinator's).
- `election/`: which broker coordinates a group next; `history.py` (before the first record, or after a loss).
- `membership/`: the other brokers, ZooKeeper's records, fencing.
- `serving/`: publications and subscriptions of this broker's clients; `commits.py` (what a commit triggers).
- `balancing/`: groups and clients evenly over the brokers.

docs/concepts/replication.md names the rules; the same names stand in capitals beside the code that keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from migratory_protocol.peer import (
    Accept,
    Accepted,
    Activated,
    BrokerId,
    EpochRefused,
    Forward,
    ForwardReplies,
    HandOver,
    Heartbeat,
    Inventory,
    InventoryRequest,
    Prepare,
    Promise,
    Survey,
    SurveyReply,
    Sync,
    Synced,
)

from migratory_broker.core.logic.balancing.clients import ClientBalancer
from migratory_broker.core.logic.balancing.groups import GroupBalancer
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.context import Context, PeerError, expect
from migratory_broker.core.logic.election.election import Election
from migratory_broker.core.logic.election.history import Histories
from migratory_broker.core.logic.events import (
    Admission,
    Attach,
    BrokersConfigured,
    ClientCounts,
    DrainClients,
    DrainRequest,
    Effect,
    Event,
    Flush,
    NextPage,
    PeerDown,
    PeerReceived,
    PeerRefused,
    PeerUp,
    PublishRequest,
    RefusePeer,
    Start,
    Tick,
    WeightConfigured,
    ZkChanged,
    ZkReply,
    ZkSession,
)
from migratory_broker.core.logic.membership.epochs import EpochBounds, check_list
from migratory_broker.core.logic.membership.fencing import Fencing
from migratory_broker.core.logic.membership.gossip import GossipMap
from migratory_broker.core.logic.membership.identity import DataIdentity
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.suspicion import Suspicions
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.cache import Cache
from migratory_broker.core.logic.replication.group import GroupRegistry, TopicGroup
from migratory_broker.core.logic.serving.answers import PendingAnswers
from migratory_broker.core.logic.serving.commits import CommitListener
from migratory_broker.core.logic.serving.publishing import PublishContact
from migratory_broker.core.logic.serving.resume import Resume

FREEZE_LIMIT = 1.0
"""Seconds between two steps above which the process is taken to have been stopped. Ticks come every 0.1 s."""

SWEEP_TICKS = 200
"""Ticks in which every topic's log is trimmed by age once: 20 s, in small portions."""

EXPIRY_TICKS = 10
"""Ticks in which publishers are forgotten once in every group that this broker coordinates: 1 s, a tenth of the groups
each tick."""

READY_NEWS_DELAY = 2.0
"""Seconds that a draining broker waits for news that another broker became ready. Clients are better sent to a ready
broker, and the operator may know of it before this broker does."""


class Logic:
    """The logic of one broker: gives each event and each message of a peer to the part that handles it, and decides
    whether the broker is ready, fenced or draining, and so whether it accepts clients."""

    def __init__(self, config: LogicConfig) -> None:
        self.config = config
        ctx = self.ctx = Context(config)
        self.groups = GroupRegistry()
        self.cache = Cache(config)
        self.zookeeper = ZkRequests(ctx)
        self.epochs = EpochBounds(ctx, self.zookeeper)
        self.gossip = GossipMap(config.groups)
        self.membership = Membership(ctx, self.zookeeper, on_replaced=self._peer_down)
        self.fencing = Fencing(ctx, self.zookeeper, self.membership, self.gossip)
        self.histories = Histories(ctx, self.groups, self.zookeeper, self.membership)
        self.suspicions = Suspicions(ctx, self.membership)
        self.election = Election(ctx, self.groups, self.zookeeper, self.membership, self.histories, self.suspicions)
        self.group_balancer = GroupBalancer(ctx, self.groups, self.membership, self.election, self.gossip)
        self.identity = DataIdentity(
            ctx, self.zookeeper, self.groups, on_verified=self._verified, on_lost=self._data_lost
        )
        self.client_balancer = ClientBalancer(ctx, self.membership)
        self.answers = PendingAnswers(ctx)
        self.publishing = PublishContact(ctx, self.groups, self.gossip, self.answers)
        self.resume = Resume(ctx, self.groups, self.zookeeper, self.membership, self.gossip)
        listener = CommitListener(ctx, self.gossip, self.answers, self.resume)
        self.groups.fill(
            [
                TopicGroup(ctx, number, self.cache, self.zookeeper, self.membership, listener)
                for number in range(config.groups)
            ]
        )
        self._admission: Admission | None = None
        self._stepped_at: float | None = None
        self._ticks = 0
        self._drain_begun = self._drain_deadline = 0.0
        self._clients_drained = True  # asked to leave, or no drain was requested
        self._events: dict[type, Callable[[Any], None]] = {
            Start: self._start,
            Tick: self._tick,
            Flush: self._flush,
            ZkReply: self.zookeeper.reply,
            ZkSession: self._session,
            ZkChanged: self._changed,
            PeerUp: self._peer_up,
            PeerDown: lambda event: self._peer_down(event.peer),
            PeerRefused: lambda event: self.suspicions.refused(event.peer, event.incarnation),
            PeerReceived: self._received,
            PublishRequest: self.publishing.publish,
            Attach: self.resume.attach,
            NextPage: self.resume.next_page,
            ClientCounts: self.client_balancer.count,
            BrokersConfigured: self._configured,
            WeightConfigured: self._weighted,
            DrainRequest: self._drain,
        }
        self._messages: dict[type, Callable[[str, Any], None]] = {
            Heartbeat: self._heartbeat,
            Forward: self.publishing.forwarded,
            ForwardReplies: self.publishing.replies,
            Survey: self._survey,
            SurveyReply: self._survey_reply,
        }
        self._group_messages: dict[type, Callable[[TopicGroup, str, Any], None]] = {
            Prepare: TopicGroup.prepare,
            Promise: TopicGroup.promise,
            EpochRefused: self._refused,
            InventoryRequest: TopicGroup.inventory_request,
            Inventory: TopicGroup.inventory,
            Sync: TopicGroup.sync,
            Synced: TopicGroup.confirmed,
            Activated: TopicGroup.activated,
            Accept: TopicGroup.accept,
            Accepted: TopicGroup.accepted,
            HandOver: lambda group, peer, message: self.election.hand_over(group.number, peer, message.epoch),
        }

    def step(self, event: Event, now: float) -> list[Effect]:
        """Handle one event, and return the effects, to be carried out in their order. `now` is seconds of a monotonic
        clock.

        If the step before was more than `FREEZE_LIMIT` ago, the process did not run, and fencing is checked before the
        event. After the event, waiting subscriptions that it may have decided are tried. Raises InvariantError when
        something happened that the rules exclude: the process must end.
        """
        ctx = self.ctx
        ctx.now = now
        ctx.effects = []
        before, self._stepped_at = self._stepped_at, now
        if before is not None and now - before > FREEZE_LIMIT:
            # Before acting on anything that waited in a socket meanwhile.
            ctx.note("warning", "was_frozen", seconds=round(now - before, 3))
            self._fence()
        self._events[type(event)](event)
        if self.resume.released:
            self.resume.release()
        return ctx.effects

    @property
    def incarnation(self) -> int:
        """The number of this process's incarnation, which the broker chose above the last one in ZooKeeper; 0 until the
        broker is registered."""
        return self.ctx.incarnation

    @property
    def drained(self) -> bool:
        """True if this broker was asked to drain and the process may end, as soon as its clients have left.

        The clients were asked to leave, no group is coordinated here, and no group needs this broker. Each group that
        lists it has another coordinator, which has activated its epoch: until then a successor may need the logs of
        this broker, which are the only ones where `min_copies` is 1. And every other member of these groups is linked:
        ZooKeeper shows a death only a session later, and this broker's end could be the second loss. The caller limits
        how long it waits for this.
        """
        if not (self.ctx.draining and self._clients_drained) or self.groups.active_terms():
            return False
        replicas = [group.replica for group in self.groups if group.replica.listed]
        return all(
            replica.settled and (view := replica.view) and view.owner != self.ctx.me and self._all_present(view.members)
            for replica in replicas
        )

    def _all_present(self, members: Iterable[BrokerId]) -> bool:
        """Return whether each of these brokers is this one or is linked, in this incarnation, and none was replaced by
        a newer incarnation."""
        return all(self.ctx.linked(broker) and not self.membership.gone(broker) for broker in members)

    # ---- events ----------------------------------------------------------------------------------------------

    def _start(self, event: Start) -> None:
        self.ctx.start(event.wall_ms, event.seed)
        self._admit()

    def _session(self, event: ZkSession) -> None:
        self.zookeeper.update_session(event)
        self.identity.tick()

    def _verified(self, fresh: bool) -> None:
        """Begin to work with ZooKeeper, now that its data is verified. A broker that is not registered begins its
        registration. Any other forgets its surveys, brings its ephemeral in `/members` up to date, and lists members
        and coordinators. `fresh`: its ephemerals are gone or may be, so those of the groups that it coordinates are
        created again."""
        if not self.membership.registered:
            self.membership.tick()
            return
        self.histories.forget_surveys()  # meanwhile a record may have been written, and rolled back
        if fresh:
            self.membership.new_session()
            self.election.new_session()
        self.membership.announce()
        self.membership.list_members()
        self.election.list_coordinators()

    def _data_lost(self) -> None:
        """Handle that ZooKeeper's data was lost or replaced: end this broker's terms that are not activated, because
        their records are gone, and begin to restore records and incarnations in the present data. Activated terms go
        on."""
        for group in self.groups:
            if group.term is not None and not group.term.active:
                group.term.end("ZooKeeper lost its record")
                group.term = None
        self.election.records_lost()
        self.membership.records_lost()

    def _changed(self, event: ZkChanged) -> None:
        self.membership.changed(event.path)
        self.election.changed(event.path)

    def _peer_up(self, event: PeerUp) -> None:
        """Record a new link, in place of an older one to the same broker, which counts as broken. Pass the news to
        membership, suspicions and all groups. A link to an incarnation older than one that is known is logged and
        ignored."""
        peer = event.peer
        if peer in self.ctx.links:
            self._peer_down(peer)
        if event.incarnation < self.membership.newest.get(peer, 0):
            self.ctx.note("warning", "old_incarnation_refused", peer=peer, incarnation=event.incarnation)
            return
        self.membership.learn(peer, event.incarnation)
        self.ctx.links[peer] = event.incarnation
        self.membership.peer_up(peer)
        self.suspicions.peer_up(peer, event.incarnation)
        for group in self.groups:
            group.peer_up(peer)

    def _peer_down(self, peer: str) -> None:
        """Remove the link to `peer`, which broke or is given up, and notify the suspicions, all groups, the
        publications and surveys that wait for its answer, and membership. Without a link: nothing."""
        incarnation = self.ctx.links.pop(peer, None)
        if incarnation is None:
            return
        self.suspicions.peer_down(peer, incarnation)
        for group in self.groups:
            group.peer_down(peer)
        self.publishing.peer_down(peer)
        self.histories.peer_down(peer)
        self.membership.peer_down(peer)

    def _received(self, event: PeerReceived) -> None:
        """Handle the messages of one read in their order, those about a group only if EPOCH-BOUND allows their epoch.
        At the first message that breaks a rule, emit `RefusePeer`, treat the link as broken, and drop the later
        messages. Messages are dropped as well while no link to the peer is recorded."""
        peer, links = event.peer, self.ctx.links
        if peer in links:
            self.membership.hear(peer)
        for message in event.messages:
            if peer not in links:
                return  # from an incarnation that was replaced, perhaps by the message before
            try:
                if group_handler := self._group_messages.get(type(message)):
                    group = self._group(message.group)  # type: ignore[union-attr]
                    self.epochs.check(group.number, message.epoch, group.replica.promised)  # type: ignore[union-attr]
                    group_handler(group, peer, message)
                elif handler := self._messages.get(type(message)):
                    handler(peer, message)
            except PeerError as error:
                # what came before it is as good as ever, and nothing of this link counts from here on
                self.ctx.emit(RefusePeer(peer, error.reason, f"{type(message).__name__}: {error.text}"))
                self._peer_down(peer)
                return

    def _group(self, number: int) -> TopicGroup:
        """Return the group with the number that a peer names. Raise PeerError if the cluster has no group of this
        number."""
        expect(number < len(self.groups), "group", "the group is one of the cluster's")
        return self.groups[number]

    def _refused(self, group: TopicGroup, peer: str, message: EpochRefused) -> None:
        """Pass a refusal of this broker's epoch to the group. Raise PeerError if the promise that it names breaks
        EPOCH-BOUND."""
        self.epochs.check(group.number, message.promised, group.replica.promised)
        group.refused(peer, message)

    def _heartbeat(self, peer: str, message: Heartbeat) -> None:
        """Record a peer's heartbeat: what the peer hears, which groups it coordinates, and its clients, of which it may
        request some. A claim to coordinate a group in an epoch above this broker's promise is ignored. Raise PeerError,
        before anything is recorded, if a group of this number does not exist."""
        coordinated = [(self._group(number), epoch) for number, epoch in message.coordinated]
        self.membership.heartbeat(peer, message)
        for group, epoch in coordinated:
            # a coordinator's own messages raise the promise first, and a promise is bounded
            if epoch <= group.replica.promised:
                self.gossip.learn(group.number, epoch, peer, self.ctx.now)
        self.client_balancer.receive(peer, message.load)

    def _survey(self, peer: str, message: Survey) -> None:
        """Answer a survey with what this broker holds of the groups. Raise PeerError if it names more groups than there
        are."""
        expect(len(message.groups) <= len(self.groups), "group", "a survey names each group once")
        self.ctx.send(peer, self.histories.holdings(message.serial, message.groups))

    def _survey_reply(self, peer: str, message: SurveyReply) -> None:
        """Record the answer to a survey. Raise PeerError if it names a group that does not exist, more groups or copies
        than there are groups, an epoch that breaks EPOCH-BOUND, or a copy that no broker can hold. Every broker would
        read the record that is restored from such a copy."""
        once = len(message.groups) <= len(self.groups) and len(message.copies) <= len(self.groups)
        expect(once, "group", "a survey names each group once")
        for number, epoch in message.groups:
            self.epochs.check(number, epoch, self._group(number).replica.promised)
        for copy in message.copies:
            self.epochs.check(copy.group, copy.synced, self._group(copy.group).replica.promised)
            check_list(copy.owner, copy.members, copy.copies)
            expect(copy.first <= copy.synced, "snapshot", "a history begins before its last epoch")
            owner = not copy.leads or copy.owner == (peer, self.ctx.links[peer])
            expect(owner, "sender", "OWNER: an epoch is led by its owner")
        self.histories.survey_reply(peer, message)

    def _configured(self, event: BrokersConfigured) -> None:
        self.config = self.ctx.config = replace(self.ctx.config, brokers=event.brokers)
        self.ctx.note("info", "brokers_configured", brokers=list(event.brokers))

    def _weighted(self, event: WeightConfigured) -> None:
        """Use another weight for this broker in the server list. The next tick writes it to ZooKeeper, where the other
        brokers watch it."""
        self.config = self.ctx.config = replace(self.ctx.config, weight=event.weight)
        self.ctx.note("info", "weight_configured", weight=event.weight)

    def _drain(self, event: DrainRequest) -> None:
        """Begin the drain, which may take `event.period` seconds: refuse new clients from now on. Later ticks hand the
        groups over and ask the clients to move. Nothing if a drain has begun already."""
        if not self.ctx.draining:
            self.ctx.draining = True
            self._drain_begun, self._drain_deadline = self.ctx.now, self.ctx.now + event.period
            self._clients_drained = False
            self.ctx.note("info", "drain_started", period=event.period)
            self._admit()

    def _flush(self, event: Flush) -> None:
        """Send what the parts collected in this turn: entries and votes of the groups, forwarded publications, and
        answers."""
        if self.ctx.dirty:
            dirty, self.ctx.dirty = self.ctx.dirty, {}
            for number in dirty:
                self.groups[number].flush()
        self.publishing.flush()
        self.answers.flush()

    @property
    def has_output(self) -> bool:
        """True while something was collected in this turn that the event `Flush` is to send. While False, `Flush`
        changes and sends nothing."""
        return bool(self.ctx.dirty) or self.publishing.has_output or self.answers.has_output

    # ---- time ------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> None:
        """Handle the passing of time: check all time limits, send heartbeats that are due, take the next steps of
        registration, elections and balance, evict old entries, forget silent publishers, and update fencing, readiness
        and the drain."""
        self._ticks += 1
        self.client_balancer.tick()
        if self.membership.heartbeat_due:
            coordinated = [(number, term.epoch) for number, term in self.groups.active_terms()]
            self.membership.send_heartbeats(coordinated, self.client_balancer.load())
            if self.zookeeper.connected:  # before the registration, too: it would be refused for ever
                self.identity.poll()
        self.identity.tick()
        self.membership.tick()
        self._fence()
        self.suspicions.tick()
        self.election.tick()
        self.group_balancer.tick()
        self.publishing.tick()
        self.resume.tick()
        self.cache.sweep(self.ctx.wall, 1 + self.cache.topics // SWEEP_TICKS)
        for number in range(self._ticks % EXPIRY_TICKS, len(self.groups), EXPIRY_TICKS):
            term = self.groups[number].term
            if term is not None and term.active:
                term.sequencer.expire()
        self._update_readiness()
        self._drain_clients()

    def _listed(self) -> set[str]:
        """Return the names of all brokers on the member lists of the epochs that this broker's groups are synced to."""
        views = [group.replica.view for group in self.groups]
        return {name for view in views if view is not None for name, _ in view.members}

    def _fence(self) -> None:
        """Check the reasons for fencing. If fencing begins or ends, log that, and send the edges the changed admission;
        if it begins, answer pending publications with `retry`. While fenced, resign from all groups if ZooKeeper is
        heard and fewer than `min_copies` brokers are linked, this one included."""
        reason = self.fencing.reason(self._listed)
        if bool(reason) != self.ctx.fenced:
            self.ctx.fenced = bool(reason)
            self.ctx.note("warning" if reason else "info", "fenced" if reason else "no_longer_fenced", reason=reason)
            if reason:
                self.answers.retry_all("this broker is cut off from the others")
            self._admit()
        if self.ctx.fenced:
            self.election.resign_all()

    def _update_readiness(self) -> None:
        """READY: set whether this broker is ready. It is ready while, in every group, the last activated epoch that it
        heard of lists it and it is synced to that. A takeover does not end readiness; being unlisted does. If readiness
        changed, send the edges the changed admission. Announce the server list if that changed."""
        ready = all(group.member for group in self.groups)
        if ready != self.membership.ready:
            self.membership.ready = ready
            self.ctx.note("info", "ready" if ready else "learning")
            self._admit()
        self.membership.announce_servers()

    def _admit(self) -> None:
        """Emit an `Admission` for the edges if it differs from the last one. Clients are accepted while this broker is
        ready, not fenced and not draining."""
        if self.ctx.fenced:  # before "draining": clients of a fenced broker cannot wait for the end of the period
            admission = Admission(False, "drained" if self.ctx.draining else "fenced")
        elif self.ctx.draining:
            admission = Admission(False, "draining")
        elif not self.membership.ready:
            admission = Admission(False, "learning")
        else:
            admission = Admission(True)
        if admission != self._admission:
            self._admission = admission
            self.ctx.emit(admission)

    def _drain_clients(self) -> None:
        """DRAIN-ORDER: ask all clients to move, once no group has a term of this broker and all other configured
        brokers accept clients, but not later than a quarter of the drain period after its beginning.

        Wait at most `READY_NEWS_DELAY` for the other brokers to accept clients. Nothing without a drain, and after the
        clients were asked once.
        """
        if self._clients_drained:
            return
        remaining = self._drain_deadline - self.ctx.now
        latest = (self._drain_deadline - self._drain_begun) / 4
        waited = self.ctx.now - self._drain_begun
        coordinates = any(group.term is not None and group.term.phase != "over" for group in self.groups)
        complete = self.client_balancer.all_accept_clients() or waited >= min(READY_NEWS_DELAY, latest)
        if (complete and not coordinates) or waited >= latest:
            self._clients_drained = True
            self.ctx.emit(DrainClients(max(remaining, 0.0), self.client_balancer.destinations()))
