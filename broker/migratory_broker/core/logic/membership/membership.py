"""The brokers that live, for the other parts of `Logic`: registration, ephemerals, links, heartbeats, and the server
list.

`/brokers/<name>` has the incarnation, which is kept over ZooKeeper sessions. `/members/<name>` is created again after a
lost session, by the same incarnation. A broker that learns of a newer incarnation of its own name stops at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Literal

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
    MEMBERS,
    BadRecord,
    ClusterRecord,
    MemberRecord,
    decode_cluster,
    decode_member,
    encode,
    incarnation_in,
)
from migratory_broker.core.logic.membership.zookeeper import ZkRequests


class Membership:
    """This broker's registration in ZooKeeper, and its knowledge of the other brokers from ZooKeeper and heartbeats.
    `on_replaced` is called with the name of a linked broker of which a newer incarnation is known."""

    def __init__(self, ctx: Context, zookeeper: ZkRequests, on_replaced: Callable[[str], None]) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.live: dict[str, MemberRecord] = {}  # from ephemerals that exist, this broker's included
        self.known: dict[str, MemberRecord] = {}  # the same, and while a link stands also without an ephemeral
        self.newest: dict[str, int] = {}  # highest incarnation heard of, never forgotten
        self.appeared: dict[str, tuple[int, float]] = {}  # newest one that ZooKeeper or a peer named, and when first
        self.heard: dict[str, float] = {}  # when anything last came from a peer
        self.peers: dict[str, PeerState] = {}
        self.registered_at: float | None = None
        self.ready = False
        self._on_replaced = on_replaced  # a linked incarnation is not the newest
        self._step: Literal["cluster", "incarnation"] = "cluster"  # of the registration
        self._busy = False
        self._announced: MemberRecord | None = None
        self._announcing = False
        self._unrestored: set[str] = set()  # brokers whose incarnations ZooKeeper may have lost
        self._listed_at = float("-inf")
        self._heartbeat_at = float("-inf")
        self._links_wanted: dict[str, tuple[int, str]] = {}
        self._servers: tuple[Server, ...] = ()

    # ---- registration ----------------------------------------------------------------------------------------

    @property
    def registered(self) -> bool:
        return self.registered_at is not None

    def _register(self) -> None:
        """Begin the next step of the registration in ZooKeeper: first compare the cluster's record, then obtain an
        incarnation. If a reply was lost, the next tick repeats the step: a skipped incarnation number does no harm."""
        self._busy = True
        if self._step == "cluster":
            self.zookeeper.get(CLUSTER, self._cluster)
        else:
            self.zookeeper.get(f"{BROKERS}/{self.ctx.config.name}", self._broker)

    def _cluster(self, reply: ZkReply) -> None:
        """Compare the cluster's record with this broker's configuration. If they are equal, go on to obtain an
        incarnation. A different or unreadable record stops the broker."""
        self._busy = False
        configured = ClusterRecord(self.ctx.config.groups)
        if reply.outcome == "ok" and reply.node is not None:
            try:
                recorded = decode_cluster(reply.node.data)
            except BadRecord as error:
                text = f"{CLUSTER} in ZooKeeper was not written by a broker: {error}; use another root for the cluster"
                self.ctx.emit(Stop(text, code=1))
                self._busy = True
                return
            if recorded != configured:
                self.ctx.emit(
                    Stop(
                        f"the cluster was created with {recorded.groups} topic groups hashed by {recorded.hash}, this "
                        f"broker is configured for {configured.groups} hashed by {configured.hash}; "
                        "the number cannot be changed",
                        code=1,
                    )
                )
                self._busy = True
            else:
                self._step = "incarnation"
                self._register()

    def _broker(self, reply: ZkReply) -> None:
        """INCARNATION: choose this broker's incarnation, and request to write it to the broker's node, which `reply`
        shows. It is the wall clock in milliseconds, or one above the last incarnation there if that is higher."""
        self._busy = False
        if reply.outcome == "ok":
            self._busy = True
            # INCARNATION: the time keeps one from being given twice when ZooKeeper has lost the last one
            known = incarnation_in(reply.node.data, reply.node.version) if reply.node else 0
            incarnation = max(known + 1, int(self.ctx.wall * 1000))
            self.zookeeper.commit(
                [self._broker_node(self.ctx.config.name, incarnation, reply)],
                lambda reply: self._incarnation(reply, incarnation),
            )

    @staticmethod
    def _broker_node(name: str, incarnation: int, reply: ZkReply) -> ZkOperation:
        """Return the operation that writes a broker's incarnation to its node. `reply` is that to a read of the node:
        it is created if it was missing, else written if it is unchanged since."""
        path, data = f"{BROKERS}/{name}", b"%d" % incarnation
        return ZkCreate(path, data) if reply.node is None else ZkWrite(path, data, reply.node.version)

    def _incarnation(self, reply: ZkReply, incarnation: int) -> None:
        """Complete the registration if the write of `incarnation` succeeded: this process has that incarnation from now
        on, announces itself and lists the members. Otherwise the next tick tries again."""
        self._busy = False
        if reply.outcome != "ok":
            return
        self.ctx.incarnation = incarnation
        self.newest[self.ctx.config.name] = self.ctx.incarnation
        self.registered_at = self.ctx.now
        self.zookeeper.heard_at = self.ctx.now
        self.ctx.note("info", "registered", broker=self.ctx.config.name, incarnation=self.ctx.incarnation)
        self.announce()
        self.list_members()

    # ---- this broker's ephemeral -------------------------------------------------------------------------------

    def _own_record(self) -> MemberRecord:
        """Return what this broker's ephemeral in `/members` should say now."""
        config, ctx = self.ctx.config, self.ctx
        ready = self.ready and not ctx.fenced
        return MemberRecord(ctx.incarnation, config.url, config.peer, config.weight, ready, ctx.draining)

    def announce(self) -> None:
        """Read this broker's ephemeral `/members/<name>`, and then create it or bring it up to date. Nothing while an
        earlier call is under way."""
        if not self._announcing:
            self._announcing = True
            self.zookeeper.get(f"{MEMBERS}/{self.ctx.config.name}", self._announce)

    def _announce(self, reply: ZkReply) -> None:
        """RESTORE-EPHEMERAL: create this broker's ephemeral or write its new content, as the read in `reply` shows it.
        One of an older session is deleted in the same transaction. If a newer incarnation's is there, stop this broker.
        Nothing if the read failed."""
        self._announcing = False
        if reply.outcome != "ok":
            return
        path, wanted = f"{MEMBERS}/{self.ctx.config.name}", self._own_record()
        operations: list[ZkOperation]
        if reply.node is None:
            operations = [ZkCreate(path, encode(wanted), ephemeral=True)]
        else:
            current = self._member(self.ctx.config.name, reply.node.data)
            if current is not None and current.incarnation > self.ctx.incarnation:
                self.stop_replaced(current.incarnation)
                return
            if reply.node.owner == self.zookeeper.session:
                if current == wanted:
                    self._announced = wanted
                    return
                operations = [ZkWrite(path, encode(wanted), reply.node.version)]
            else:
                operations = [ZkDelete(path, reply.node.version), ZkCreate(path, encode(wanted), ephemeral=True)]
        self._announcing = True

        def receive(reply: ZkReply) -> None:
            self._announcing = False
            if reply.outcome == "ok":
                self._announced = wanted

        self.zookeeper.commit(operations, receive)

    def stop_replaced(self, incarnation: int) -> None:
        """NEWER-LIFE: stop the process at once, with exit status 3, because the newer incarnation `incarnation` of this
        broker's name lives."""
        self.ctx.emit(
            Stop(
                f"incarnation {incarnation} of broker {self.ctx.config.name} lives; this one is {self.ctx.incarnation}",
                code=3,
            )
        )

    def records_lost(self) -> None:
        """Have the next tick write all known incarnations of brokers to ZooKeeper, which has lost them, and list the
        members again."""
        self._unrestored = set(self.newest)
        self._listed_at = float("-inf")

    def _restore_incarnations(self) -> None:
        """INCARNATION: write the newest incarnation that is known of each broker to ZooKeeper, which may have lost it.
        A process that began with a lower one stops when it reads that."""
        names, self._unrestored = sorted(self._unrestored), set()
        for name in names:
            self.zookeeper.get(f"{BROKERS}/{name}", partial(self._restore_incarnation, name))

    def _restore_incarnation(self, name: str, reply: ZkReply) -> None:
        """Write the newest known incarnation of a broker to its node if `reply`, to a read of the node, shows a lower
        one or none. If that fails, a later tick tries again."""

        def written(reply: ZkReply) -> None:
            if reply.outcome != "ok":
                self._unrestored.add(name)

        known = incarnation_in(reply.node.data, reply.node.version) if reply.node else 0
        if reply.outcome != "ok":
            self._unrestored.add(name)
        elif known < self.newest[name]:
            self.zookeeper.commit([self._broker_node(name, self.newest[name], reply)], written)

    def new_session(self) -> None:
        """Forget that this broker's ephemeral was announced, as that was in another session. The next tick announces it
        again."""
        self._announced = None
        self._announcing = False

    # ---- other brokers -----------------------------------------------------------------------------------------

    def list_members(self) -> None:
        """Request from ZooKeeper which brokers have an ephemeral and what each says, and watch for changes."""
        self._listed_at = self.ctx.now
        self.zookeeper.children(MEMBERS, self._listing, watch=True)

    def _listing(self, reply: ZkReply) -> None:
        """Handle the list of members: remove brokers from `live` that are not on it, request to read all that are, and
        update the links. If this broker is not on it, the next tick announces it again."""
        if reply.outcome != "ok" or reply.children is None:
            return
        if self.ctx.config.name not in reply.children:
            self._announced = None
        for name in sorted(set(self.live).difference(reply.children)):
            self._vanished(name)
        for name in sorted(reply.children):
            self._read_member(name)
        self._connect()

    def _vanished(self, name: str) -> None:
        """Remove a broker without an ephemeral from `live`. What is known of it stays while its link is open."""
        self.live.pop(name, None)
        if name not in self.ctx.links:
            self.known.pop(name, None)

    def changed(self, path: str) -> None:
        """Request to read the node at `path` again, which a watch reports as changed, if it is the list of members or
        one member. Other paths are ignored."""
        if path == MEMBERS:
            self.list_members()
        elif path.startswith(f"{MEMBERS}/"):
            self._read_member(path.removeprefix(f"{MEMBERS}/"))

    def _read_member(self, name: str) -> None:
        """Request a broker's ephemeral, watch it, and update what is known of the broker and the links by the reply. If
        this broker's own is not as it announced it, the next tick announces it again. An unreadable one of another
        broker changes nothing."""

        def receive(reply: ZkReply) -> None:
            if reply.outcome != "ok":
                return
            member = self._member(name, reply.node.data) if reply.node else None
            if name == self.ctx.config.name and member != self._announced:
                # RESTORE-EPHEMERAL: an older incarnation, for example, replaced it, and its session's end deletes it
                self._announced = None
            if reply.node is None:
                self._vanished(name)
                self._connect()
                return
            if member is None:
                return  # keep what is known of it
            self.live[name] = self.known[name] = member
            self.learn(name, member.incarnation)
            self._connect()

        self.zookeeper.get(f"{MEMBERS}/{name}", receive, watch=True)

    def _member(self, name: str, data: bytes) -> MemberRecord | None:
        """Return the decoded record of a broker. For data that is no such record return None and log an error."""
        try:
            return decode_member(data)
        except BadRecord as error:
            self.ctx.note("error", "node_unreadable", path=f"{MEMBERS}/{name}", reason=str(error))
            return None

    def learn(self, name: str, incarnation: int) -> None:
        """Record that this incarnation of a broker lives, if it is newer than the newest known one; otherwise nothing.
        If the name is this broker's own, stop this broker. If a link to an older incarnation is open, treat that link
        as broken."""
        if incarnation <= self.newest.get(name, 0):
            return
        self.newest[name] = incarnation
        self._appear(name, incarnation)
        if name == self.ctx.config.name:
            self.stop_replaced(incarnation)
        elif self.ctx.links.get(name, incarnation) < incarnation:
            self._on_replaced(name)

    def _appear(self, name: str, incarnation: int) -> None:
        """Record that this incarnation of a broker was first heard of now, if it is newer than all that were heard
        of."""
        if incarnation > self.appeared.get(name, (0, 0.0))[0]:
            self.appeared[name] = (incarnation, self.ctx.now)

    def appeared_at(self, name: str) -> float:
        """Return the time at which a broker's newest incarnation was first heard of, from ZooKeeper or from a peer;
        -inf if never.

        A peer may hear of it earlier than ZooKeeper shows it. That is a reason to wait for the broker, but does not
        prove that its earlier incarnation was replaced.
        """
        return self.appeared.get(name, (0, float("-inf")))[1]

    def _connect(self) -> None:
        """Emit `ConnectPeers` for all other live brokers, if these, their incarnations or their addresses changed since
        the last time. A broker without an ephemeral is included while its link is open."""
        wanted = {
            name: (member.incarnation, member.peer)
            for name, member in sorted(self.known.items())
            if name != self.ctx.config.name and (name in self.live or name in self.ctx.links)
        }
        if wanted != self._links_wanted:
            self._links_wanted = wanted
            self.ctx.emit(ConnectPeers(wanted))

    def gone(self, broker: BrokerId) -> bool:
        """Return whether `broker`, an incarnation, was replaced by a newer one, or has neither an ephemeral of its name
        nor a link. False for this broker."""
        name, incarnation = broker
        if broker == self.ctx.me:
            return False
        if self.newest.get(name, 0) > incarnation:
            return True
        return name not in self.live and not self.ctx.linked(broker)

    def lost(self, members: list[BrokerId]) -> int:
        """Return the number of `members` that are `gone`: replaced by a newer incarnation, or without an ephemeral and
        a link."""
        return sum(self.gone(broker) for broker in members)

    # ---- links and heartbeats --------------------------------------------------------------------------------

    def peer_down(self, peer: str) -> None:
        """Handle that the link to `peer` broke: make a heartbeat due, for the next tick, and update the links. If
        `peer` has no ephemeral, forget its record."""
        self._heartbeat_at = float("-inf")  # SUSPECT: the others are told with the next tick
        if peer not in self.live:
            self.known.pop(peer, None)
        self._connect()

    def peer_up(self, peer: str) -> None:
        """Record that `peer` was heard now, over its new link. Forget its last heartbeat unless that is at most the
        fencing time old and of the same incarnation: then only the link had broken.

        The next heartbeat may be half a second away. Without the last one, this broker might fence itself for that
        long.
        """
        state = self.peers.get(peer)
        if state is not None and (
            state.incarnation != self.ctx.links[peer] or self.ctx.now - state.heard_at > self.ctx.config.fencing
        ):
            del self.peers[peer]
        self.hear(peer)

    def hear(self, peer: str) -> None:
        """Record that a message of `peer` came now."""
        self.heard[peer] = self.ctx.now

    def heartbeat(self, peer: str, message: Heartbeat) -> None:
        """Record the heartbeat of a linked peer in place of its last one. The incarnations that it names of brokers
        which this one has heard itself count as heard of (`appeared_at`)."""
        zookeeper = self.ctx.now - message.zookeeper_age if message.zookeeper_age >= 0 else float("-inf")
        heard = dict.fromkeys(message.heard, 0)
        heard.update(zip(message.heard, message.incarnations, strict=False))  # empty from an older broker
        self.peers[peer] = PeerState(self.ctx.now, zookeeper, heard, message.member, message.load, self.ctx.links[peer])
        for name, incarnation in heard.items():
            if name in self.heard:  # of no other broker it counts, and names that peers invent take no memory
                self._appear(name, incarnation)

    def heard_within(self, seconds: float) -> list[str]:
        """Return the names of the peers from which any message came within the last `seconds`, also of those whose link
        has broken since."""
        limit = self.ctx.now - seconds
        return [peer for peer, at in self.heard.items() if at >= limit]

    def recent_heartbeats(self) -> Iterator[PeerState]:
        """Return the last heartbeat of each linked peer that is not older than three heartbeat intervals. An older one
        says nothing about now."""
        limit = self.ctx.now - 3 * self.ctx.config.heartbeat
        states = (self.peers.get(peer) for peer in self.ctx.links)
        return (state for state in states if state is not None and state.heard_at >= limit)

    def members_heard_within(self, seconds: float) -> list[str]:
        """Return the names of the peers heard within the last `seconds` whose last heartbeat says that they are synced
        members of every group."""
        return [
            peer for peer in self.heard_within(seconds) if (state := self.peers.get(peer)) is not None and state.member
        ]

    @property
    def heartbeat_due(self) -> bool:
        """True if the last heartbeat was sent a heartbeat interval ago or earlier, or a link broke since."""
        return self.ctx.now - self._heartbeat_at >= self.ctx.config.heartbeat

    def send_heartbeats(self, coordinated: list[tuple[int, int]], load: ClientLoad) -> None:
        """Send a heartbeat to every linked peer, and request this broker's own node if ZooKeeper is connected and the
        broker is registered. `coordinated` has (group, epoch) of each group that this broker coordinates."""
        config = self.ctx.config
        self._heartbeat_at = self.ctx.now
        age = self.zookeeper.age()
        heard = sorted(self.heard_within(config.fencing / 2))
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
            self._read_own_node()

    def _read_own_node(self) -> None:
        """Request this broker's node in `/brokers`. The reply shows that ZooKeeper was heard when the request was sent.
        If the node has a newer incarnation, stop this broker (NEWER-LIFE); if it has an older one, the next tick
        restores all incarnations."""
        sent = self.ctx.now

        def receive(reply: ZkReply) -> None:
            if reply.outcome != "ok":
                return
            self.zookeeper.heard_at = max(self.zookeeper.heard_at, sent)
            known = incarnation_in(reply.node.data, reply.node.version) if reply.node else 0
            self.learn(self.ctx.config.name, known)
            if known < self.ctx.incarnation:
                self._unrestored = set(self.newest)  # INCARNATION: rolled back to before it was written

        self.zookeeper.get(f"{BROKERS}/{self.ctx.config.name}", receive)

    # ---- time ------------------------------------------------------------------------------------------------

    def tick(self) -> None:
        """Take the next step of the registration. After it, restore lost incarnations, announce this broker again if
        what it announced has changed, and list the members each `refresh_interval`. Nothing without ZooKeeper."""
        if not self.zookeeper.connected:
            return
        if not self.registered:
            if not self._busy:
                self._register()
            return
        if self._unrestored:
            self._restore_incarnations()
        if self._announced != self._own_record():
            self.announce()
        if self.ctx.now - self._listed_at >= self.ctx.config.refresh_interval:
            self.list_members()

    def servers(self) -> tuple[Server, ...]:
        """Return the brokers that accept clients, with their weights, in the order of their names; this one included if
        it does. While ZooKeeper is away, the last known state of other brokers counts."""
        me = self.ctx.config.name
        entries = {**self.known, me: self._own_record()}
        return tuple(
            Server(member.url, member.weight)
            for _, member in sorted(entries.items())
            if member.ready and not member.draining and member.url
        )

    def announce_servers(self) -> None:
        """Emit the server list for the edges if it differs from the last one and is not empty."""
        servers = self.servers()
        if servers and servers != self._servers:
            self._servers = servers
            self.ctx.emit(ServerList(servers))
