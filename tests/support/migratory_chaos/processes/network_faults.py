"""Faults of networks: partitions in one or both directions, loss, delay; between brokers, to ZooKeeper, to clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, get_args

from migratory_chaos.engine import Fault, Observation
from migratory_chaos.processes.cluster import CLIENTS
from migratory_chaos.processes.delay_proxy import DelayProxy
from migratory_chaos.processes.network import Rule
from migratory_chaos.processes.scene import FENCING_SECONDS, ProcessScene

Side = Literal["brokers", "zookeeper", "clients", "all"]
Direction = Literal["both", "in", "out"]
SIDES: tuple[Side, ...] = get_args(Side)
DIRECTIONS: tuple[Direction, ...] = get_args(Direction)
Link = tuple[str, str, int]
"""A dialling node, the node it dials, and the port."""


@dataclass(frozen=True)
class Partition(Fault[ProcessScene]):
    """All packets between one broker and a side are dropped for `seconds`, or those of one direction as the broker
    sees it."""

    side: Side
    direction: Direction
    coordinator: bool
    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        name = await _pick_victim(scene, self.side, self.coordinator)
        with _drop(scene, name, self.side, self.direction, 1.0) as rules:
            await scene.start_injection(name)
            await asyncio.sleep(self.seconds)
            if self.side in ("brokers", "all") and self.direction != "out" and self.seconds >= FENCING_SECONDS:
                # A broker that hears no other for the fencing time disconnects its clients.
                await scene.wait_fenced(name, 10.0)
            _prove_packets(scene, rules)  # before the packets of the next proof are counted, too
            await _prove_silence(scene, name, self.side)


@dataclass(frozen=True)
class Loss(Fault[ProcessScene]):
    """A random part of the packets between one broker and a side is dropped for `seconds`, in both directions."""

    side: Side
    probability: float
    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        name = await _pick_victim(scene, self.side, coordinator=True)
        with _drop(scene, name, self.side, "both", self.probability) as rules:
            await scene.start_injection(name)
            await asyncio.sleep(self.seconds)
            _prove_packets(scene, rules)


@dataclass(frozen=True)
class Delay(Fault[ProcessScene]):
    """Data between one broker and a side (clients: of all brokers) takes `delay` seconds and up to `jitter` more, each
    way. Connections are broken at the beginning and at the end."""

    side: Literal["brokers", "zookeeper", "clients"]
    delay: float
    jitter: float
    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        network = scene.network
        name = await _pick_victim(scene, self.side, coordinator=True)
        links = _links(scene, name, self.side)
        before: list[frozenset[str]] = []

        # Before the rules: a kernel that has not tracked a connection so far takes its next packet for the first of a
        # new one, and redirects it, which ends the connection.
        async def look() -> Observation:
            before[:] = [network.connections(*link) for link in links]
            return any(before), sum(map(len, before))

        async with contextlib.AsyncExitStack() as stack:
            proxies = []
            await scene.wait_until("connections to break", "> 0", look, 20.0)
            for source, target, port in links:
                to = (network.nodes[target].address, port)
                proxy = DelayProxy(network.nodes[source].router, to, self.delay, self.jitter, scene.random)
                proxies.append(await stack.enter_async_context(proxy))
                stack.callback(network.redirect(source, target, port, proxy.port).remove)
            await scene.start_injection(name)
            for link in links:
                network.break_connections(*link)
            left = sum(len(old & network.connections(*link)) for old, link in zip(before, links, strict=True))
            scene.prove("connections from before that are left", 0, left)
            await asyncio.sleep(self.seconds)
            if self.side == "brokers":  # they dial the same broker again; clients and ZooKeeper's may choose another
                through = sum(proxy.passed.connections > 0 for proxy in proxies)
                broken = sum(map(bool, before))
                scene.prove("links that lead through a proxy", f">= {broken}", through, through >= broken)
            carried = sum(proxy.passed.bytes for proxy in proxies)
            shortest = min(proxy.passed.shortest_delay for proxy in proxies)
            scene.prove("bytes that were delayed", "> 0", carried, carried > 0)
            scene.prove("shortest delay in seconds", f">= {self.delay:.3f}", f"{shortest:.3f}", shortest >= self.delay)


@dataclass(frozen=True)
class CutMember(Fault[ProcessScene]):
    """ZooKeeper's leader, or a follower, is cut off from the other members for `seconds` after it lost its quorum.
    Its clients still reach it."""

    leader: bool
    seconds: float

    async def inject(self, scene: ProcessScene) -> None:
        cluster, network = scene.cluster, scene.network
        leader = await cluster.leader()
        victim = scene.random.choice([m for m in cluster.ensemble.members if (m is leader) == self.leader])

        async def look() -> Observation:
            mode = await asyncio.to_thread(victim.mode)
            return mode is None, mode

        with contextlib.ExitStack() as stack:
            rules = []
            for other in (member for member in cluster.ensemble.members if member is not victim):
                for source, target in ((victim.name, other.name), (other.name, victim.name)):
                    rules.append(network.drop(source, target))
                    stack.callback(rules[-1].remove)
            await scene.start_injection(victim.name)
            await scene.wait_until(f"mode of {victim.name}", "none: it has no quorum", look, 30.0)
            await asyncio.sleep(self.seconds)
            _prove_packets(scene, {"between members": rules})


@contextlib.contextmanager
def _drop(
    scene: ProcessScene, name: str, side: Side, direction: Direction, probability: float
) -> Iterator[dict[str, list[Rule]]]:
    """Drop packets between the broker `name` and a side for the time of the context. Yield the rules by direction."""
    rules: dict[str, list[Rule]] = {}
    with contextlib.ExitStack() as stack:
        for other in _other_nodes(scene, name, side):
            for way, source, target in (("out", name, other), ("in", other, name)):
                if direction in ("both", way):
                    rule = scene.network.drop(source, target, probability)
                    rules.setdefault(f"{'from' if way == 'out' else 'to'} {name}", []).append(rule)
                    stack.callback(rule.remove)
        yield rules


async def _pick_victim(scene: ProcessScene, side: Side, coordinator: bool) -> str:
    """Return a random broker, with `coordinator` the one with most groups. For faults towards clients return the
    broker with most clients."""
    if side != "clients":
        return (await scene.pick_brokers(1, coordinator))[0]
    clients = await scene.cluster.read_all("migratory_clients")
    return max(clients, key=lambda name: clients[name])


def _other_nodes(scene: ProcessScene, name: str, side: Side) -> list[str]:
    cluster = scene.cluster
    nodes = {
        "brokers": [other for other in cluster.broker_names() if other != name],
        "zookeeper": [member.name for member in cluster.ensemble.members],
        "clients": [CLIENTS],
    }
    return nodes[side] if side != "all" else [node for part in nodes.values() for node in part]


def _links(scene: ProcessScene, name: str, side: Side) -> list[Link]:
    """Return the links between the broker `name` and a side. For the side "clients" return those of all brokers,
    because a client avoids a broker for a while after an error."""
    cluster = scene.cluster
    if side == "clients":
        return [(CLIENTS, broker.name, broker.ports.clients) for broker in cluster.brokers]
    if side == "zookeeper":
        return [(name, member.name, member.port) for member in cluster.ensemble.members]
    # Of two brokers the one with the smaller name dials.
    pairs = [sorted((name, other)) for other in _other_nodes(scene, name, "brokers")]
    return [(source, target, cluster.broker(target).ports.peers) for source, target in pairs]


async def _prove_silence(scene: ProcessScene, name: str, side: Side) -> None:
    """Prove that new connections between the broker `name` and a side get no answer. That packets matched a rule
    does not show that the rule stopped them."""
    ports = {broker.name: broker.ports.clients for broker in scene.cluster.brokers}
    ports |= {member.name: member.port for member in scene.cluster.ensemble.members}
    others = _other_nodes(scene, name, side)
    links = [(name, other) if other != CLIENTS else (other, name) for other in others]
    outcomes = await asyncio.gather(
        *(asyncio.to_thread(scene.network.try_connection, *link, ports[link[1]]) for link in links)
    )
    for (source, target), seen in zip(links, outcomes, strict=True):
        scene.prove(f"a connection from {source} to {target}", "silence", seen)


def _prove_packets(scene: ProcessScene, rules: dict[str, list[Rule]]) -> None:
    """Prove that packets were dropped, counted in all directions together: a side that receives nothing may send
    nothing."""
    packets = {which: sum(rule.packets() for rule in some) for which, some in rules.items()}
    seen = ", ".join(f"{number} {which}" for which, number in packets.items())
    scene.prove("packets lost", "> 0", seen, sum(packets.values()) > 0)
