"""Who is there: this broker's registration and ephemeral, the others' ephemerals, links, heartbeats, the server list.

`/brokers/<name>` gives the incarnation, kept over ZooKeeper sessions. `/members/<name>` is made again after a lost
session, by the same incarnation. A broker that learns of a newer incarnation of its own name stops at once.
"""

from __future__ import annotations

from collections.abc import Callable

from migratory_protocol.messages import Server
from migratory_protocol.peer import BrokerId, ClientLoad, Heartbeat

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import (
    ConnectPeers,
    ServerList,
    Stop,
    ZkCreate,
    ZkDelete,
    ZkOperation,
    ZkReply,
    ZkWrite,
)
from migratory_broker.core.logic.membership.gossip import PeerState
from migratory_broker.core.logic.membership.records import (
    BROKERS,
    CLUSTER,
    COORDINATORS,
    GROUPS,
    MEMBERS,
    BadRecord,
    ClusterRecord,
    MemberRecord,
    decode_cluster,
    decode_member,
    encode,
)
from migratory_broker.core.logic.membership.zookeeper import ZkRequests


class Membership:
    def __init__(self, ctx: Context, zookeeper: ZkRequests, on_replaced: Callable[[str], None]) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.live: dict[str, MemberRecord] = {}  # ephemerals that are there, this broker's included
        self.known: dict[str, MemberRecord] = {}  # the same, kept while a link stands
        self.newest: dict[str, int] = {}  # highest incarnation heard of, for ever
        self.appeared: dict[str, tuple[int, float]] = {}  # newest life that anybody spoke of, and since when
        self.heard: dict[str, float] = {}  # when anything last came from a peer
        self.peers: dict[str, PeerState] = {}
        self.registered_at: float | None = None
        self.ready = False
        self._on_replaced = on_replaced  # a linked incarnation is not the newest
        self._step = "cluster"
        self._busy = False
        self._announced: MemberRecord | None = None
        self._announcing = False
        self._listed_at = float("-inf")
        self._beat_at = float("-inf")
        self._peers: dict[str, tuple[int, str]] = {}
        self._servers: tuple[Server, ...] = ()

    # ---- registration ----------------------------------------------------------------------------------------

    @property
    def registered(self) -> bool:
        return self.registered_at is not None

    def _register(self) -> None:
        """One step of the start after the other; a lost reply repeats the step (an incarnation more does no harm)."""
        self._busy = True
        if self._step == "cluster":
            self.zookeeper.get(CLUSTER, self._cluster)
        else:
            self.zookeeper.get(f"{BROKERS}/{self.ctx.config.name}", self._broker)

    def _cluster(self, reply: ZkReply) -> None:
        self._busy = False
        mine = ClusterRecord(self.ctx.config.groups)
        if reply.outcome == "ok" and reply.node is None:
            self._busy = True
            operations: list[ZkOperation] = [ZkCreate(path, b"") for path in (BROKERS, MEMBERS, GROUPS, COORDINATORS)]
            self.zookeeper.commit([*operations, ZkCreate(CLUSTER, encode(mine))], self._done)
        elif reply.outcome == "ok" and reply.node is not None:
            try:
                theirs = decode_cluster(reply.node.data)
            except BadRecord as error:
                self.ctx.emit(Stop(f"{CLUSTER} in ZooKeeper was not written by a broker: {error}", code=1))
                self._busy = True
                return
            if theirs != mine:
                self.ctx.emit(
                    Stop(
                        f"the cluster was made with {theirs.groups} topic groups hashed by {theirs.hash}, this broker "
                        f"is configured for {mine.groups} hashed by {mine.hash}; that is for life",
                        code=1,
                    )
                )
                self._busy = True
            else:
                self._step = "incarnation"
                self._register()

    def _done(self, reply: ZkReply) -> None:
        self._busy = False  # made, by us or by another: read it again

    def _broker(self, reply: ZkReply) -> None:
        self._busy = False
        if reply.outcome == "ok":
            self._busy = True
            path = f"{BROKERS}/{self.ctx.config.name}"
            operations: list[ZkOperation] = [] if reply.node else [ZkCreate(path, b"")]
            self.zookeeper.commit([*operations, ZkWrite(path, b"", -1)], self._incarnation)

    def _incarnation(self, reply: ZkReply) -> None:
        self._busy = False
        if reply.outcome != "ok":
            return
        self.ctx.incarnation = reply.versions[-1]
        self.newest[self.ctx.config.name] = self.ctx.incarnation
        self.registered_at = self.ctx.now
        self.zookeeper.heard_at = self.ctx.now
        self.ctx.note("info", "registered", broker=self.ctx.config.name, incarnation=self.ctx.incarnation)
        self.announce()
        self.list_members()

    # ---- the own ephemeral -----------------------------------------------------------------------------------

    def _mine(self) -> MemberRecord:
        config, ctx = self.ctx.config, self.ctx
        ready = self.ready and not ctx.fenced
        return MemberRecord(ctx.incarnation, config.url, config.peer, config.weight, ready, ctx.draining)

    def announce(self) -> None:
        if not self._announcing:
            self._announcing = True
            self.zookeeper.get(f"{MEMBERS}/{self.ctx.config.name}", self._announce)

    def _announce(self, reply: ZkReply) -> None:
        """RESTORE-EPHEMERAL: make it; an own one of an older session or life goes in the same transaction."""
        self._announcing = False
        if reply.outcome != "ok":
            return
        path, mine = f"{MEMBERS}/{self.ctx.config.name}", self._mine()
        operations: list[ZkOperation]
        if reply.node is None:
            operations = [ZkCreate(path, encode(mine), ephemeral=True)]
        else:
            there = self._member(self.ctx.config.name, reply.node.data)
            if there is not None and there.incarnation > self.ctx.incarnation:
                self.replaced(there.incarnation)
                return
            if reply.node.owner == self.zookeeper.session:
                if there == mine:
                    self._announced = mine
                    return
                operations = [ZkWrite(path, encode(mine), reply.node.version)]
            else:
                operations = [ZkDelete(path, reply.node.version), ZkCreate(path, encode(mine), ephemeral=True)]
        self._announcing = True

        def then(reply: ZkReply) -> None:
            self._announcing = False
            if reply.outcome == "ok":
                self._announced = mine

        self.zookeeper.commit(operations, then)

    def replaced(self, incarnation: int) -> None:
        """NEWER-LIFE: stop at once."""
        self.ctx.emit(
            Stop(
                f"incarnation {incarnation} of broker {self.ctx.config.name} lives; this one is {self.ctx.incarnation}",
                code=3,
            )
        )

    def new_session(self) -> None:
        self._announced = None
        self._announcing = False

    # ---- the others' -----------------------------------------------------------------------------------------

    def list_members(self) -> None:
        self._listed_at = self.ctx.now
        self.zookeeper.children(MEMBERS, self._listing, watch=True)

    def _listing(self, reply: ZkReply) -> None:
        if reply.outcome != "ok" or reply.children is None:
            return
        if self.ctx.config.name not in reply.children:
            self._announced = None
        for name in sorted(set(self.live).difference(reply.children)):
            self._vanished(name)
        for name in sorted(reply.children):
            self._look(name)
        self._connect()

    def _vanished(self, name: str) -> None:
        self.live.pop(name, None)
        if name not in self.ctx.links:
            self.known.pop(name, None)

    def changed(self, path: str) -> None:
        """A watch fired."""
        if path == MEMBERS:
            self.list_members()
        elif path.startswith(f"{MEMBERS}/"):
            self._look(path.removeprefix(f"{MEMBERS}/"))

    def _look(self, name: str) -> None:
        def then(reply: ZkReply) -> None:
            if reply.outcome != "ok":
                return
            member = self._member(name, reply.node.data) if reply.node else None
            if name == self.ctx.config.name and member != self._announced:
                # RESTORE-EPHEMERAL: an older life that had read before replaced it, say, and takes it along at its end
                self._announced = None
            if reply.node is None:
                self._vanished(name)
                self._connect()
                return
            if member is None:
                return  # what was known of it still holds
            self.live[name] = self.known[name] = member
            self.learn(name, member.incarnation)
            self._connect()

        self.zookeeper.get(f"{MEMBERS}/{name}", then, watch=True)

    def _member(self, name: str, data: bytes) -> MemberRecord | None:
        """None for what another program wrote."""
        try:
            return decode_member(data)
        except BadRecord as error:
            self.ctx.note("error", "node_unreadable", path=f"{MEMBERS}/{name}", why=str(error))
            return None

    def learn(self, name: str, incarnation: int) -> None:
        """Somebody says that this incarnation lives."""
        if incarnation <= self.newest.get(name, 0):
            return
        self.newest[name] = incarnation
        self._appear(name, incarnation)
        if name == self.ctx.config.name:
            self.replaced(incarnation)
        elif self.ctx.links.get(name, incarnation) < incarnation:
            self._on_replaced(name)

    def _appear(self, name: str, incarnation: int) -> None:
        if incarnation > self.appeared.get(name, (0, 0.0))[0]:
            self.appeared[name] = (incarnation, self.ctx.now)

    def appeared_at(self, name: str) -> float:
        """When its newest life was first heard of, be it only from a peer: that is sooner than ZooKeeper, perhaps, and
        enough to wait for it, but not to take the life before for replaced."""
        return self.appeared.get(name, (0, float("-inf")))[1]

    def _connect(self) -> None:
        """Links are wanted to live brokers; one that stands is kept while ZooKeeper does not name its end."""
        peers = {
            name: (member.incarnation, member.peer)
            for name, member in sorted(self.known.items())
            if name != self.ctx.config.name and (name in self.live or name in self.ctx.links)
        }
        if peers != self._peers:
            self._peers = peers
            self.ctx.emit(ConnectPeers(peers))

    def gone(self, broker: BrokerId) -> bool:
        """Replaced by a newer incarnation, or neither an ephemeral nor a link is left of it."""
        name, incarnation = broker
        if broker == self.ctx.me:
            return False
        if self.newest.get(name, 0) > incarnation:
            return True
        return name not in self.live and not self.ctx.linked(broker)

    def lost(self, members: list[BrokerId]) -> int:
        return sum(self.gone(broker) for broker in members)

    # ---- links and heartbeats --------------------------------------------------------------------------------

    def peer_down(self, peer: str) -> None:
        if peer not in self.live:
            self.known.pop(peer, None)
        self._connect()

    def peer_up(self, peer: str) -> None:
        """What the same life said lately still holds when only the link had broken: its next heartbeat is half a second
        away, and who heard nobody for so long is not alone."""
        news = self.peers.get(peer)
        if news is not None and (
            news.incarnation != self.ctx.links[peer] or self.ctx.now - news.heard_at > self.ctx.config.fencing
        ):
            del self.peers[peer]
        self.hear(peer)

    def hear(self, peer: str) -> None:
        self.heard[peer] = self.ctx.now

    def heartbeat(self, peer: str, message: Heartbeat) -> None:
        zookeeper = self.ctx.now - message.zookeeper_age if message.zookeeper_age >= 0 else float("-inf")
        self.peers[peer] = PeerState(
            self.ctx.now, zookeeper, frozenset(message.heard), message.member, message.load, self.ctx.links[peer]
        )
        for name, incarnation in zip(
            message.heard, message.incarnations, strict=False
        ):  # an older broker says no lives
            self._appear(name, incarnation)

    def hears(self, within: float) -> list[str]:
        """Peers from which something came within so many seconds."""
        limit = self.ctx.now - within
        return [peer for peer, at in self.heard.items() if at >= limit]

    @property
    def heartbeat_due(self) -> bool:
        return self.ctx.now - self._beat_at >= self.ctx.config.heartbeat

    def send_heartbeats(self, coordinated: list[tuple[int, int]], load: ClientLoad) -> None:
        """Heartbeats and the own small read."""
        config = self.ctx.config
        self._beat_at = self.ctx.now
        age = self.zookeeper.age()
        heard = sorted(self.hears(config.fencing / 2))
        message = Heartbeat(
            -1.0 if age == float("inf") else age,
            heard,
            coordinated,
            self.ready,
            self.ready and not self.ctx.fenced,
            load,
            [self.ctx.links.get(peer, 0) for peer in heard],
        )
        for peer in self.ctx.links:
            self.ctx.send(peer, message)
        if self.zookeeper.connected and self.registered:
            self._own_read()

    def _own_read(self) -> None:
        sent = self.ctx.now

        def then(reply: ZkReply) -> None:
            if reply.outcome != "ok":
                return
            self.zookeeper.heard_at = max(self.zookeeper.heard_at, sent)
            if reply.node is not None:
                self.learn(self.ctx.config.name, reply.node.version)

        self.zookeeper.get(f"{BROKERS}/{self.ctx.config.name}", then)

    # ---- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        if not self.zookeeper.connected:
            return
        if not self.registered:
            if not self._busy:
                self._register()
            return
        if self._announced != self._mine():
            self.announce()
        if self.ctx.now - self._listed_at >= self.ctx.config.relook:
            self.list_members()

    def servers(self) -> tuple[Server, ...]:
        """Brokers that take clients. While ZooKeeper is away, as last known."""
        me = self.ctx.config.name
        entries = {**self.known, me: self._mine()}
        return tuple(
            Server(member.url, member.weight)
            for _, member in sorted(entries.items())
            if member.ready and not member.draining and member.url
        )

    def announce_servers(self) -> None:
        servers = self.servers()
        if servers and servers != self._servers:
            self._servers = servers
            self.ctx.emit(ServerList(servers))
