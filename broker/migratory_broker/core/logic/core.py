"""`Logic`: one broker's agreed-upon state behind one method, `step(event, now) -> effects`.

Where to go from here: `candidacy.py` and `ephemerals.py` (who writes records), `reign.py` (an epoch that this broker
owns), `group.py` (the member's side), `replica.py` (what is held), `contact.py` (publishers), `resume.py`
(subscribers), `membership.py`, `fencing.py`, `balance.py` (groups), `moves.py` (clients). docs/replication.md names the
rules; the same names stand in capitals beside the code that keeps them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from migratory_protocol.peer import (
    Accept,
    Accepted,
    Activated,
    Answers,
    Ask,
    Broker,
    Forward,
    HandOver,
    Heartbeat,
    Held,
    Prepare,
    Promise,
    Refused,
    Standing,
    Survey,
    Sync,
    Synced,
)

from migratory_broker.core.logic.authorizer import AllowAll, Authorizer
from migratory_broker.core.logic.balance import Balance
from migratory_broker.core.logic.cache import Bounds
from migratory_broker.core.logic.candidacy import Candidacy
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.contact import Contact
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import (
    Admission,
    Attach,
    Clients,
    Configured,
    DrainClients,
    DrainRequest,
    Effect,
    Event,
    Flush,
    NextPage,
    PeerDown,
    PeerReceived,
    PeerUp,
    PublishRequest,
    Start,
    Tick,
    ZkChanged,
    ZkReply,
    ZkSession,
)
from migratory_broker.core.logic.fencing import Fencing
from migratory_broker.core.logic.gossip import Gossip
from migratory_broker.core.logic.group import Group
from migratory_broker.core.logic.history import Histories
from migratory_broker.core.logic.membership import Membership
from migratory_broker.core.logic.moves import Moves
from migratory_broker.core.logic.resume import Resume
from migratory_broker.core.logic.status import describe
from migratory_broker.core.logic.zookeeper import ZooKeeper

FROZEN = 1.0  # seconds without a step: the process did not run
SWEEPS = 200  # ticks in which every topic is aged once
NEWS = 2.0  # seconds in which ZooKeeper has told of whoever became ready
EXPIRIES = 10  # ticks in which every group's publisher tables are looked at once


class Logic:
    def __init__(self, config: LogicConfig, authorizer: Authorizer | None = None) -> None:
        self.config = config
        self.ctx = Context(config)
        self.zookeeper = ZooKeeper(self.ctx)
        self.membership = Membership(self.ctx, self.zookeeper)
        self.gossip = Gossip(config.groups)
        self.bounds = Bounds(config)
        allow = authorizer or AllowAll()
        self.contact = Contact(self.ctx, self.gossip, allow)
        self.resume = Resume(self.ctx, self.zookeeper, allow)
        self.histories = Histories(self.ctx, self.zookeeper, self.membership)
        self.candidacy = Candidacy(self.ctx, self.zookeeper, self.membership, self.histories)
        self.balance = Balance(self.ctx, self.membership, self.candidacy, self.gossip)
        self.moves = Moves(self.ctx, self.membership)
        self.fencing = Fencing(self.ctx, self.zookeeper, self.membership, self.gossip)
        self.groups = [
            Group(
                self.ctx, number, self.bounds, self.zookeeper, self.membership, self.gossip, self.contact, self.resume
            )
            for number in range(config.groups)
        ]
        self.contact.groups = self.resume.groups = self.histories.groups = self.groups
        self.candidacy.groups = self.balance.groups = self.groups
        self.membership.on_replaced = self._peer_down
        self._admission: Admission | None = None
        self._stepped_at: float | None = None
        self._ticks = 0
        self._drain_begun = self._drain_until = 0.0
        self._drain_told = True
        self._events: dict[type, Callable[[Any], None]] = {
            Start: self._start,
            Tick: self._tick,
            Flush: self._flush,
            ZkReply: self.zookeeper.reply,
            ZkSession: self._session,
            ZkChanged: self._changed,
            PeerUp: self._peer_up,
            PeerDown: lambda event: self._peer_down(event.peer),
            PeerReceived: self._received,
            PublishRequest: self.contact.publish,
            Attach: self.resume.attach,
            NextPage: self.resume.next_page,
            Clients: self.moves.count,
            Configured: self._configured,
            DrainRequest: self._drain,
        }
        self._messages: dict[type, Callable[[str, Any], None]] = {
            Heartbeat: self._heartbeat,
            Forward: self.contact.forwarded,
            Answers: lambda peer, message: self.contact.answers(message),
            Survey: self._survey,
            Held: self.histories.held,
        }
        self._group_messages: dict[type, Callable[[Group, str, Any], None]] = {
            Prepare: Group.prepare,
            Promise: Group.promise,
            Refused: Group.refused,
            Ask: Group.ask,
            Standing: Group.standing,
            Sync: Group.sync,
            Synced: Group.confirmed,
            Activated: Group.activated,
            Accept: Group.accept,
            Accepted: Group.accepted,
            HandOver: lambda group, peer, message: self.candidacy.hand_over(group.number, peer, message.epoch),
        }

    def step(self, event: Event, now: float) -> list[Effect]:
        """Take one event at the monotonic time `now`; the effects are to be carried out in their order.

        Raises InvariantError when something happened that the rules exclude: end the process.
        """
        ctx = self.ctx
        ctx.now = now
        ctx.effects = []
        before, self._stepped_at = self._stepped_at, now
        if before is not None and now - before > FROZEN:
            # Before anything that waited in a socket meanwhile is acted upon.
            ctx.note("warning", "was_frozen", seconds=round(now - before, 3))
            self._fence()
        self._events[type(event)](event)
        return ctx.effects

    @property
    def incarnation(self) -> int:
        """This process's life, as ZooKeeper counts them; 0 until it is registered."""
        return self.ctx.incarnation

    @property
    def drained(self) -> bool:
        """Asked to drain, clients told, no group is coordinated here any more, and none needs this broker: each that it
        is listed in has another coordinator who has begun (a successor may still want its log: with one copy it is the
        only one; that somebody wrote a record is no beginning), and has lost no other member already, as far as links
        tell (then this one would be one too many; ZooKeeper tells of a death a session late). It is awaited for a
        while."""
        if not (self.ctx.draining and self._drain_told) or self._coordinates():
            return False
        replicas = [group.replica for group in self.groups if group.replica.listed]
        return all(
            replica.settled and (view := replica.view) and view.owner != self.ctx.me and self._all_there(view.members)
            for replica in replicas
        )

    def _all_there(self, members: Iterable[Broker]) -> bool:
        return all(self.ctx.linked(broker) and not self.membership.gone(broker) for broker in members)

    def status(self) -> dict[str, object]:
        """What `/v1/status` shows and the gauges count."""
        return describe(self)

    # ---- events ----------------------------------------------------------------------------------------------

    def _start(self, event: Start) -> None:
        self.ctx.start(event.wall_ms, event.seed)
        self._admit()

    def _session(self, event: ZkSession) -> None:
        fresh = self.zookeeper.state(event)
        if not self.zookeeper.connected:
            return
        if not self.membership.registered:
            self.membership.tick()
            return
        if fresh:
            self.membership.new_session()
            self.candidacy.new_session()
        self.membership.announce()
        self.membership.relook()
        self.candidacy.relook()

    def _changed(self, event: ZkChanged) -> None:
        self.membership.changed(event.path)
        self.candidacy.changed(event.path)

    def _peer_up(self, event: PeerUp) -> None:
        peer = event.peer
        if peer in self.ctx.links:
            self._peer_down(peer)
        if event.incarnation < self.membership.newest.get(peer, 0):
            self.ctx.note("warning", "old_incarnation_refused", peer=peer, incarnation=event.incarnation)
            return
        self.membership.learn(peer, event.incarnation)
        self.ctx.links[peer] = event.incarnation
        self.membership.peer_up(peer)
        for group in self.groups:
            group.peer_up(peer)

    def _peer_down(self, peer: str) -> None:
        if self.ctx.links.pop(peer, None) is None:
            return
        for group in self.groups:
            group.peer_down(peer)
        self.contact.peer_down(peer)
        self.histories.peer_down(peer)
        self.membership.peer_down(peer)

    def _received(self, event: PeerReceived) -> None:
        peer, links = event.peer, self.ctx.links
        if peer in links:
            self.membership.hear(peer)
        for message in event.messages:
            if peer not in links:
                return  # of an incarnation that was replaced, perhaps by the message before
            if group_handler := self._group_messages.get(type(message)):
                number = message.group  # type: ignore[union-attr]
                if 0 <= number < len(self.groups):
                    group_handler(self.groups[number], peer, message)
            elif handler := self._messages.get(type(message)):
                handler(peer, message)

    def _heartbeat(self, peer: str, message: Heartbeat) -> None:
        self.membership.heartbeat(peer, message)
        for group, epoch in message.coordinates:
            self.gossip.learn(group, epoch, peer, self.ctx.now)
        self.moves.heard(peer, message.load)

    def _survey(self, peer: str, message: Survey) -> None:
        self.ctx.send(peer, Held(message.serial, self.histories.holdings(message.groups)))

    def _configured(self, event: Configured) -> None:
        self.config = self.ctx.config = replace(self.ctx.config, brokers=event.brokers)
        self.ctx.note("info", "brokers_configured", brokers=list(event.brokers))

    def _drain(self, event: DrainRequest) -> None:
        if not self.ctx.draining:
            self.ctx.draining = True
            self._drain_begun, self._drain_until = self.ctx.now, self.ctx.now + event.period
            self._drain_told = False
            self.ctx.note("info", "drains", period=event.period)
            self._admit()

    def _flush(self, event: Flush) -> None:
        if self.ctx.dirty:
            dirty, self.ctx.dirty = self.ctx.dirty, {}
            for number in dirty:
                self.groups[number].flush()
        self.contact.flush()

    # ---- time ------------------------------------------------------------------------------------------------

    def _tick(self, event: Tick) -> None:
        self._ticks += 1
        self.moves.tick()
        if self.membership.beat_due:
            self.membership.beat(self._coordinates(), self.moves.load())
        self.membership.tick()
        self._fence()
        self.candidacy.tick()
        self.balance.tick()
        self.contact.tick()
        self.resume.tick()
        self.bounds.sweep(self.ctx.wall, 1 + self.bounds.topics // SWEEPS)
        for group in self.groups[self._ticks % EXPIRIES :: EXPIRIES]:
            if group.reign is not None and group.reign.active:
                group.reign.sequencer.expire()
        self._readiness()
        self._leave()

    def _coordinates(self) -> list[tuple[int, int]]:
        return [
            (group.number, group.reign.epoch) for group in self.groups if group.reign is not None and group.reign.active
        ]

    def _listed(self) -> set[str]:
        views = [group.replica.view for group in self.groups]
        return {name for view in views if view is not None for name, _ in view.members}

    def _fence(self) -> None:
        reason = self.fencing.reason(self._listed)
        if bool(reason) != self.ctx.fenced:
            self.ctx.fenced = bool(reason)
            self.ctx.note("warning" if reason else "info", "fenced" if reason else "no_longer_fenced", why=reason)
            if reason:
                self.contact.give_back_all("this broker is cut off from the others")
            self._admit()
        if self.ctx.fenced:
            self.candidacy.resign_all()

    def _readiness(self) -> None:
        """READY: synced in an activated list in every group. A takeover does not end it, being unlisted does."""
        ready = all(group.member for group in self.groups)
        if ready != self.membership.ready:
            self.membership.ready = ready
            self.ctx.note("info", "ready" if ready else "learning")
            self._admit()
        self.membership.tell_servers()

    def _admit(self) -> None:
        if self.ctx.fenced:  # also one that drains: its clients can't wait for the end of its period
            admission = Admission(False, "fenced")
        elif self.ctx.draining:
            admission = Admission(False, "draining")
        elif not self.membership.ready:
            admission = Admission(False, "learning")
        else:
            admission = Admission(True)
        if admission != self._admission:
            self._admission = admission
            self.ctx.emit(admission)

    def _leave(self) -> None:
        """DRAIN-ORDER: groups first, then the clients; not later than a quarter of the period. Who drains this broker
        may know sooner than ZooKeeper tells that another one is ready: clients had better be sent there."""
        if self._drain_told:
            return
        left = self._drain_until - self.ctx.now
        latest = (self._drain_until - self._drain_begun) / 4
        waited = self.ctx.now - self._drain_begun
        coordinates = any(group.reign is not None and group.reign.phase != "over" for group in self.groups)
        complete = self.moves.all_take_clients() or waited >= min(NEWS, latest)
        if (complete and not coordinates) or waited >= latest:
            self._drain_told = True
            self.ctx.emit(DrainClients(max(left, 0.0), self.moves.destinations()))
