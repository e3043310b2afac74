"""The clients that this broker asks to move to another broker, for `Logic`: for balance, and when this broker leaves.

No broker decides for all. A broker that has room requests clients, in one heartbeat, from those that have too many; a
broker that is asked gives what it can. Each broker knows its own number exactly and acts on that: a receiver never gets
above its share and a giver never below its own, however old the numbers of the others are. Clients are moved for
balance only after the cluster was *calm* for a while, with exactly the configured brokers there, ready and of one
revision: during a rolling restart or update the same clients would move again.

A round is one request and the moves that follow it; it takes `move_period`. A round in which no client arrived doubles
the pause before the next. `shares.py` has the arithmetic.
"""

from __future__ import annotations

from migratory_protocol.messages import Server
from migratory_protocol.peer import ClientLoad

from migratory_broker.core.logic.balancing.shares import (
    BrokerLoad,
    least_moved,
    requests,
    shares,
    surplus,
    targets,
)
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import ClientCounts, MoveClients
from migratory_broker.core.logic.membership.membership import Membership

MIN_RATE, MAX_RATE = 10.0, 500.0
"""Clients per second that a broker requests for a round, at least and at most. The rate is a hundredth of its share, so
that balancing takes as long at any size, within these bounds. The upper one is a tenth of the connects per second
admitted by default."""

SETTLE_TIME = 2.0
"""Seconds after a round in which its last clients arrive and every broker receives the new numbers."""

MAX_PAUSE_FACTOR = 16
"""Multiple of `move_period`: the longest pause after rounds in which no client arrived."""


class ClientBalancer:
    """The balance of clients between this broker and the others: it requests clients from brokers that have too many,
    gives clients to brokers that request them, and names destinations when this broker leaves."""

    def __init__(self, ctx: Context, membership: Membership) -> None:
        self.ctx = ctx
        self.membership = membership
        self.edges: dict[int, tuple[int, ...]] = {}  # edge -> clients, as in `ClientCounts`
        self.waits_for = "start"  # why no clients are moved for balance now, "" when nothing prevents it
        self.moves_asked = 0  # clients asked to move, since the start
        self._calm_since = 0.0
        self._clients_before: int | None = None  # at the last request, until its outcome is judged
        self._next_request = 0.0
        self._pause = ctx.config.move_period
        self._moving: list[tuple[float, int]] = []  # (deadline of the move, clients)

    @property
    def clients(self) -> int:
        return sum(map(sum, self.edges.values()))

    def count(self, event: ClientCounts) -> None:
        """Record how many clients an edge has, or forget an edge that has ended."""
        if event.by_moves:
            self.edges[event.edge] = event.by_moves
        else:
            self.edges.pop(event.edge, None)

    def tick(self) -> None:
        """Find out whether the cluster is calm, and record it in `waits_for` and `Context.calm`. While it is not, the
        time for which it is calm and the pauses between rounds begin anew."""
        self.waits_for = self._disturbance()
        self.ctx.calm = not self.waits_for
        if self.waits_for:
            self._calm_since = self.ctx.now
            self._clients_before = None
            self._pause = self.ctx.config.move_period

    def share(self) -> float:
        """Return the number of clients that this broker should have, a fraction, by its own number and the last number
        that each other live broker reported."""
        return shares(self._loads())[self.ctx.config.name]

    # ---- the other brokers -----------------------------------------------------------------------------------

    def _disturbance(self) -> str:
        """CALM-FIRST: return why the cluster is not calm, so that no client may be moved for balance now, "" if it is
        calm. The reason names this broker while it drains, is fenced, not ready, or not connected to ZooKeeper.
        Otherwise it names the first broker found that is missing, not configured, not ready, leaving, of another
        revision, not heard for half the fencing time, or does not report its clients."""
        ctx, membership = self.ctx, self.membership
        config = ctx.config
        if ctx.draining or ctx.fenced or not membership.ready or not membership.zookeeper.connected:
            return f"{config.name} itself"
        if difference := set(config.brokers).symmetric_difference(membership.live):
            return f"{min(difference)}, which is missing or not configured"
        for name in config.brokers:
            member, state = membership.live[name], membership.peers.get(name)
            if not member.ready or member.draining:
                return f"{name}, which is not ready or leaves"
            if name == config.name:
                continue
            if state is None or state.load is None or ctx.now - state.heard_at > config.fencing / 2:
                return f"{name}, which does not say how many clients it has"
            if state.load.draining:
                return f"{name}, which leaves"
            if state.load.revision != config.revision:
                return f"{name}, which is of another revision"
        return ""

    def _loads(self) -> dict[str, BrokerLoad]:
        """Return the weight and the number of clients of this broker and of each other live broker. A broker that has
        not reported its clients is left out."""
        loads = {self.ctx.config.name: BrokerLoad(self.ctx.config.weight, self.clients)}
        for name, state in self.membership.peers.items():
            member = self.membership.live.get(name)
            if member is not None and state.load is not None:
                loads[name] = BrokerLoad(member.weight, state.load.clients)
        return loads

    # ---- balance ---------------------------------------------------------------------------------------------

    def load(self) -> ClientLoad:
        """Return the client load for this broker's next heartbeat, with its requests for clients of other brokers. If
        there are any, a round begins: call this once for each heartbeat."""
        config = self.ctx.config
        return ClientLoad(self.clients, self.ctx.draining, config.revision, self._request())

    def _request(self) -> list[tuple[str, int]]:
        """RECEIVERS-CALL: return how many clients to request from which brokers now, as (name, number) pairs, and begin
        a round if there are any. [] while the cluster has not been calm for long enough, or the pause lasts. After a
        round in which no client arrived, begin a pause, double the one after that, and return []."""
        config, now = self.ctx.config, self.ctx.now
        if self.waits_for or now - self._calm_since < config.calm or now < self._next_request:
            return []
        if self._clients_before is not None:
            fruitless, self._clients_before = self.clients <= self._clients_before, None
            if fruitless:
                self._next_request = now + self._pause
                self._pause = min(2 * self._pause, MAX_PAUSE_FACTOR * config.move_period)
                return []
            self._pause = config.move_period
        rate = min(MAX_RATE, max(MIN_RATE, self.share() / 100))
        wanted = requests(config.name, self._loads(), int(rate * config.move_period))
        if wanted:
            self._clients_before = self.clients
            self._next_request = now + config.move_period + SETTLE_TIME
            share = round(self.share(), 1)
            self.ctx.note("info", "clients_requested", clients=self.clients, share=share, of=dict(wanted))
        return wanted

    def receive(self, peer: str, load: ClientLoad | None) -> None:
        """GIVERS-CAP: if the heartbeat of `peer` requests clients of this broker, ask as many to move to `peer`, but at
        most this broker's `surplus`. Nothing while the cluster is not calm, or if `peer` is not live or has no URL for
        clients."""
        for name, count in load.requests if load is not None else ():
            if name == self.ctx.config.name and not self._disturbance():
                self._give(peer, count)

    def _give(self, peer: str, count: int) -> None:
        """Ask up to `count` clients to move to `peer` within `move_period`: at most this broker's `surplus`, from which
        clients are subtracted that were asked to move and still have time. Nothing if `peer` is not live or has no
        URL."""
        config, now = self.ctx.config, self.ctx.now
        self._moving = [(until, clients) for until, clients in self._moving if until > now]
        moving = sum(clients for _, clients in self._moving)  # some may have left: better too few than too many
        count = min(count, surplus(self.clients - moving, self.share()))
        receiver = self.membership.live.get(peer)
        if count <= 0 or receiver is None or not receiver.url:
            return
        self._moving.append((now + config.move_period, count))
        self.moves_asked += count
        share = round(self.share(), 1)
        self.ctx.note("info", "clients_given", clients=self.clients, share=share, count=count, to=peer)
        self.ctx.observe("migratory_moves_asked_total", count)
        for edge, chosen in least_moved(self.edges, count).items():
            self.ctx.emit(MoveClients(edge, chosen, config.move_period, Server(receiver.url)))

    # ---- leaving ---------------------------------------------------------------------------------------------

    def all_accept_clients(self) -> bool:
        """Return whether every other configured broker accepts clients (ready, not draining), by its last known record
        in ZooKeeper. False if one has none."""
        known = self.membership.known
        others = [known.get(name) for name in self.ctx.config.brokers if name != self.ctx.config.name]
        return all(member is not None and member.ready and not member.draining for member in others)

    def destinations(self) -> tuple[Server, ...]:
        """UPDATED-FIRST: return the brokers to which this broker's clients go when it leaves, with weights in
        proportion to what each is to receive. If some of them do not report their clients, or all have their shares,
        the weights are the configured ones. Empty if no other broker is ready, not leaving, and has a URL and a weight
        above 0.

        Of these brokers only configured ones are named if there are any, and of those, if there are any, only brokers
        of another revision. Brokers of this one's revision are about to be updated as well, and would send the same
        clients on.
        """
        config, membership = self.ctx.config, self.membership
        staying = [
            name
            for name, member in sorted(membership.known.items())
            if name != config.name and member.ready and not member.draining and member.url and member.weight
            and not ((state := membership.peers.get(name)) and state.load and state.load.draining)
        ]  # fmt: skip
        staying = [name for name in staying if name in config.brokers] or staying
        staying = [name for name in staying if self._revision(name) != config.revision] or staying
        loads = self._loads()
        if all(name in loads for name in staying):
            weights = targets(self.clients, {name: loads[name] for name in staying})
            if weights:
                return tuple(Server(membership.known[name].url, weight) for name, weight in weights.items())
        return tuple(Server(membership.known[name].url, membership.known[name].weight) for name in staying)

    def _revision(self, name: str) -> str:
        """Return the revision that a broker reports, "" if it reports none. That counts as another revision than this
        broker's, unless this broker has none either."""
        state = self.membership.peers.get(name)
        return state.load.revision if state is not None and state.load is not None else ""
