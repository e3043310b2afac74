"""Clients that are asked to go elsewhere: for balance, and when this broker leaves.

Nobody decides for all. A broker that has room calls: with a heartbeat, once, it asks those that have too many for some.
A broker that is called gives what it can. Each knows exactly what it has itself, and goes by that: who calls never gets
above its share, who gives never below its own, however old the news of the others are. Nothing is done until all
brokers that are configured, and no others, have been there, ready and of one revision for a while: a rolling restart or
update would move the same clients again.

A round takes `move_period`; one that brought nobody doubles the rest before the next. The arithmetic is in `shares.py`.
"""

from __future__ import annotations

from migratory_protocol.messages import Server
from migratory_protocol.peer import ClientLoad

from migratory_broker.core.logic.balancing.shares import BrokerLoad, calls, least_moved, shares, surplus, targets
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ClientCounts, MoveClients
from migratory_broker.core.logic.membership.membership import Membership

SLOWEST, FASTEST = 10.0, 500.0
"""Clients that a broker takes per second in a round: a hundredth of its share, so that evening out takes as long at any
size, within these bounds. The upper one is a tenth of the connects per second that a broker admits by default."""

SETTLE = 2.0
"""Seconds behind a round until its last clients are there, and everybody was told."""

LONGEST = 16
"""Times `move_period`: the longest rest behind rounds that brought nobody."""


class ClientBalancer:
    def __init__(self, ctx: Context, membership: Membership) -> None:
        self.ctx = ctx
        self.membership = membership
        self.edges: dict[int, tuple[int, ...]] = {}  # clients by how often they moved lately
        self.waits_for = "start"  # why no clients are moved for balance now, "" when nothing is in the way
        self.asked = 0  # clients, so far
        self._calm_since = 0.0
        self._before: int | None = None  # clients at the last call, until it is judged
        self._next_call = 0.0
        self._rest = ctx.config.move_period
        self._given: list[tuple[float, int]] = []  # (until when they may go, how many)

    @property
    def clients(self) -> int:
        return sum(map(sum, self.edges.values()))

    def count(self, event: ClientCounts) -> None:
        if event.by_moves:
            self.edges[event.edge] = event.by_moves
        else:
            self.edges.pop(event.edge, None)

    def tick(self) -> None:
        self.waits_for = self._disturbance()
        if self.waits_for:
            self._calm_since = self.ctx.now
            self._before = None
            self._rest = self.ctx.config.move_period

    def share(self) -> float:
        """How many clients this broker should have, by what is known of the others."""
        return shares(self._crews())[self.ctx.config.name]

    # ---- what is known ---------------------------------------------------------------------------------------

    def _disturbance(self) -> str:
        """CALM-FIRST"""
        ctx, membership = self.ctx, self.membership
        config = ctx.config
        if ctx.draining or ctx.fenced or not membership.ready or not membership.zookeeper.connected:
            return f"{config.name} itself"
        if odd := set(config.brokers).symmetric_difference(membership.live):
            return f"{min(odd)}, which is missing or not configured"
        for name in config.brokers:
            member, news = membership.live[name], membership.peers.get(name)
            if not member.ready or member.draining:
                return f"{name}, which is not ready or leaves"
            if name == config.name:
                continue
            if news is None or news.load is None or ctx.now - news.heard_at > config.fencing / 2:
                return f"{name}, which says nothing of its clients"
            if news.load.draining:
                return f"{name}, which leaves"
            if news.load.revision != config.revision:
                return f"{name}, which is of another revision"
        return ""

    def _crews(self) -> dict[str, BrokerLoad]:
        """Of all that are known; those that say nothing have no clients."""
        crews = {self.ctx.config.name: BrokerLoad(self.ctx.config.weight, self.clients)}
        for name, news in self.membership.peers.items():
            member = self.membership.live.get(name)
            if member is not None and news.load is not None:
                crews[name] = BrokerLoad(member.weight, news.load.clients)
        return crews

    # ---- balance ---------------------------------------------------------------------------------------------

    def load(self) -> ClientLoad:
        """For the next heartbeat."""
        config = self.ctx.config
        return ClientLoad(self.clients, self.ctx.draining, config.revision, self._call())

    def _call(self) -> list[tuple[str, int]]:
        """RECEIVERS-CALL"""
        config, now = self.ctx.config, self.ctx.now
        if self.waits_for or now - self._calm_since < config.calm or now < self._next_call:
            return []
        if self._before is not None:
            fruitless, self._before = self.clients <= self._before, None
            if fruitless:
                self._next_call = now + self._rest
                self._rest = min(2 * self._rest, LONGEST * config.move_period)
                return []
            self._rest = config.move_period
        pace = min(FASTEST, max(SLOWEST, self.share() / 100))
        wanted = calls(config.name, self._crews(), int(pace * config.move_period))
        if wanted:
            self._before = self.clients
            self._next_call = now + config.move_period + SETTLE
            self.ctx.note("info", "calls_clients", clients=self.clients, share=round(self.share(), 1), of=dict(wanted))
        return wanted

    def receive(self, peer: str, load: ClientLoad | None) -> None:
        """GIVERS-CAP"""
        for name, count in load.requests if load is not None else ():
            if name == self.ctx.config.name and not self._disturbance():
                self._give(peer, count)

    def _give(self, peer: str, count: int) -> None:
        config, now = self.ctx.config, self.ctx.now
        self._given = [(until, some) for until, some in self._given if until > now]
        going = sum(some for _, some in self._given)  # some may be gone already: better too few than too many
        count = min(count, surplus(self.clients - going, self.share()))
        receiver = self.membership.live.get(peer)
        if count <= 0 or receiver is None or not receiver.url:
            return
        self._given.append((now + config.move_period, count))
        self.asked += count
        self.ctx.note("info", "gives_clients", clients=self.clients, share=round(self.share(), 1), count=count, to=peer)
        self.ctx.observe("migratory_moves_asked_total", count)
        for edge, some in least_moved(self.edges, count).items():
            self.ctx.emit(MoveClients(edge, some, config.move_period, Server(receiver.url)))

    # ---- leaving ---------------------------------------------------------------------------------------------

    def all_take_clients(self) -> bool:
        """Every other broker that is configured, as far as this one was told."""
        known = self.membership.known
        others = [known.get(name) for name in self.ctx.config.brokers if name != self.ctx.config.name]
        return all(member is not None and member.ready and not member.draining for member in others)

    def destinations(self) -> tuple[Server, ...]:
        """UPDATED-FIRST: where this broker's clients are to go when it leaves. To brokers that stay; of these, while
        there are any, to those of another revision: the others are about to be updated as well, and would send the same
        clients on. The weights make the receivers come out even."""
        config, membership = self.ctx.config, self.membership
        stay = [
            name
            for name, member in sorted(membership.known.items())
            if name != config.name and member.ready and not member.draining and member.url and member.weight
            and not ((news := membership.peers.get(name)) and news.load and news.load.draining)
        ]  # fmt: skip
        stay = [name for name in stay if name in config.brokers] or stay
        stay = [name for name in stay if self._revision(name) != config.revision] or stay
        crews = self._crews()
        if all(name in crews for name in stay):
            weights = targets(self.clients, {name: crews[name] for name in stay})
            if weights:
                return tuple(Server(membership.known[name].url, weight) for name, weight in weights.items())
        return tuple(Server(membership.known[name].url, membership.known[name].weight) for name in stay)

    def _revision(self, name: str) -> str:
        """ "" of one that is older than revisions are: another one."""
        news = self.membership.peers.get(name)
        return news.load.revision if news is not None and news.load is not None else ""
