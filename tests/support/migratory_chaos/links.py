"""Faults of networks: partitions in one or both directions, loss, delay; between brokers, to ZooKeeper, to clients."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from migratory_chaos.cluster import CLIENTS
from migratory_chaos.crashes import FENCED_AFTER
from migratory_chaos.faults import Fault, Scene
from migratory_chaos.network import Rule
from migratory_chaos.proxy import DelayProxy

Side = Literal["brokers", "zookeeper", "clients", "all"]
Direction = Literal["both", "in", "out"]
SIDES: tuple[Side, ...] = ("brokers", "zookeeper", "clients", "all")
DIRECTIONS: tuple[Direction, ...] = ("both", "in", "out")


@dataclass(frozen=True)
class Partition(Fault):
    """All packets between one broker and a side are lost, or those of one direction as the broker sees it."""

    side: Side
    direction: Direction
    coordinator: bool
    seconds: float
    kind: ClassVar[str] = "partition"
    needs_network: ClassVar[bool] = True

    async def inflict(self, scene: Scene) -> None:
        name = await _victim(scene, self.side, self.coordinator)
        with _dropped(scene, name, self.side, self.direction, 1.0) as rules:
            await scene.blow(name)
            await asyncio.sleep(self.seconds)
            if self.side in ("brokers", "all") and self.direction != "out" and self.seconds >= FENCED_AFTER:
                # Who hears no other broker for the fencing time sends its clients away.
                await scene.happens(f"migratory_fenced of {name}", "1", lambda: _fenced(scene, name), 10.0)
            _prove_packets(scene, rules)  # before the packets of the next proof count as well
            await _prove_silence(scene, name, self.side)


@dataclass(frozen=True)
class Loss(Fault):
    """A part of the packets between one broker and a side is lost at random, in both directions."""

    side: Side
    probability: float
    seconds: float
    kind: ClassVar[str] = "loss"
    needs_network: ClassVar[bool] = True

    async def inflict(self, scene: Scene) -> None:
        name = await _victim(scene, self.side, coordinator=True)
        with _dropped(scene, name, self.side, "both", self.probability) as rules:
            await scene.blow(name)
            await asyncio.sleep(self.seconds)
            _prove_packets(scene, rules)


@dataclass(frozen=True)
class Delay(Fault):
    """What goes between one broker and a side (clients: of all brokers) takes `delay` seconds and up to `jitter` more,
    each way. Connections are broken at the beginning and at the end."""

    side: Literal["brokers", "zookeeper", "clients"]
    delay: float
    jitter: float
    seconds: float
    kind: ClassVar[str] = "delay"
    needs_network: ClassVar[bool] = True

    async def inflict(self, scene: Scene) -> None:
        network = scene.network
        name = await _victim(scene, self.side, coordinator=True)
        async with contextlib.AsyncExitStack() as stack:
            proxies = []
            dialled = _dialled(scene, name, self.side)
            before = list[frozenset[str]]()

            # Looked at before the rules: a kernel that has not followed connections so far takes the next packet of an
            # old one for the first of a new one, and redirects it, which ends the old one.
            async def look() -> tuple[bool, object]:
                nonlocal before
                before = [network.connections(*dial) for dial in dialled]
                return any(before), sum(map(len, before))

            await scene.happens("connections to break", "> 0", look, 20.0)
            for source, target, port in dialled:
                host = network.nodes[source].router
                to = (network.nodes[target].address, port)
                proxy = DelayProxy(host, to, self.delay, self.jitter, scene.random)
                proxies.append(await stack.enter_async_context(proxy))
                rule = network.redirect(source, target, port, proxy.port)
                stack.callback(rule.remove)
            await scene.blow(name)
            for dial in dialled:
                network.break_connections(*dial)
            left = sum(len(old & network.connections(*dial)) for old, dial in zip(before, dialled, strict=True))
            scene.prove("connections from before that are left", 0, left)
            await asyncio.sleep(self.seconds)
            if self.side == "brokers":  # which dial the same one again; others may choose another
                through = sum(proxy.passed.connections > 0 for proxy in proxies)
                links = sum(map(bool, before))
                scene.prove("links that lead through a proxy", f">= {links}", through, through >= links)
            carried = sum(proxy.passed.bytes for proxy in proxies)
            least = min(proxy.passed.least for proxy in proxies)
            scene.prove("bytes that were delayed", "> 0", carried, carried > 0)
            scene.prove("shortest delay in seconds", f">= {self.delay:.3f}", f"{least:.3f}", least >= self.delay)


@dataclass(frozen=True)
class CutMember(Fault):
    """ZooKeeper's leader, or a follower, hears nothing from the other members; its clients reach it."""

    leader: bool
    seconds: float
    kind: ClassVar[str] = "cut ZooKeeper member"
    needs_network: ClassVar[bool] = True

    async def inflict(self, scene: Scene) -> None:
        cluster, network = scene.cluster, scene.network
        leader = await cluster.leader()
        members = [member for member in cluster.ensemble.members if (member is leader) == self.leader]
        victim = scene.random.choice(members)
        others = [member for member in cluster.ensemble.members if member is not victim]
        with contextlib.ExitStack() as stack:
            rules = []
            for other in others:
                for source, target in ((victim.name, other.name), (other.name, victim.name)):
                    rules.append(network.drop(source, target))
                    stack.callback(rules[-1].remove)
            await scene.blow(victim.name)

            async def look() -> tuple[bool, object]:
                mode = await asyncio.to_thread(victim.mode)
                return mode is None, mode

            await scene.happens(f"mode of {victim.name}", "none: it has no quorum", look, 30.0)
            await asyncio.sleep(self.seconds)
            _prove_packets(scene, {"between members": rules})


@contextlib.contextmanager
def _dropped(
    scene: Scene, name: str, side: Side, direction: Direction, probability: float
) -> Iterator[dict[str, list[Rule]]]:
    network, found = scene.network, dict[str, list[Rule]]()
    with contextlib.ExitStack() as stack:
        for other in _others(scene, name, side):
            if direction in ("both", "out"):
                found.setdefault(f"from {name}", []).append(network.drop(name, other, probability))
                stack.callback(found[f"from {name}"][-1].remove)
            if direction in ("both", "in"):
                found.setdefault(f"to {name}", []).append(network.drop(other, name, probability))
                stack.callback(found[f"to {name}"][-1].remove)
        yield found


async def _victim(scene: Scene, side: Side, coordinator: bool) -> str:
    """For what happens to clients: a broker that has some."""
    if side != "clients":
        return (await scene.pick(1, coordinator))[0]
    cluster = scene.cluster
    answers = {name: await cluster.metrics(name) for name in cluster.names}
    return max(cluster.names, key=lambda name: (answers[name] or {}).get(("migratory_clients", ""), 0.0))


def _others(scene: Scene, name: str, side: Side) -> list[str]:
    cluster = scene.cluster
    nodes = {
        "brokers": [other for other in cluster.names if other != name],
        "zookeeper": [member.name for member in cluster.ensemble.members],
        "clients": [CLIENTS],
    }
    return nodes[side] if side != "all" else [node for part in nodes.values() for node in part]


def _dialled(scene: Scene, name: str, side: Side) -> list[tuple[str, str, int]]:
    """Who dials whom at which port, on the links between a broker and a side."""
    cluster = scene.cluster
    if side == "clients":
        # All brokers: whom one disappointed avoid it for a while.
        return [(CLIENTS, broker.name, broker.ports.clients) for broker in cluster.brokers]
    if side == "zookeeper":
        return [(name, member.name, member.port) for member in cluster.ensemble.members]
    # Of two brokers the one with the smaller name dials.
    pairs = [sorted((name, other)) for other in cluster.names if other != name]
    return [(dialler, other, cluster.broker(other).ports.peers) for dialler, other in pairs]


async def _prove_silence(scene: Scene, name: str, side: Side) -> None:
    """Packets that met a rule are no proof that it stopped them: nobody gets a connection, either way being cut."""
    cluster, network = scene.cluster, scene.network
    dials: list[tuple[str, str, int]] = []
    if side in ("brokers", "all"):
        dials += [(name, other, cluster.broker(other).ports.clients) for other in cluster.names if other != name]
    if side in ("zookeeper", "all"):
        dials += [(name, member.name, member.port) for member in cluster.ensemble.members]
    if side in ("clients", "all"):
        dials.append((CLIENTS, name, cluster.broker(name).ports.clients))
    met = await asyncio.gather(*(asyncio.to_thread(network.meets, *dial) for dial in dials))
    for (source, target, _), seen in zip(dials, met, strict=True):
        scene.prove(f"a connection from {source} to {target}", "silence", seen)


def _prove_packets(scene: Scene, rules: dict[str, list[Rule]]) -> None:
    """In all directions together: where nothing arrives, nothing may be answered."""
    packets = {which: sum(rule.packets() for rule in some) for which, some in rules.items()}
    seen = ", ".join(f"{number} {which}" for which, number in packets.items())
    scene.prove("packets lost", "> 0", seen, sum(packets.values()) > 0)


async def _fenced(scene: Scene, name: str) -> tuple[bool, object]:
    told = await scene.cluster.metrics(name)
    value = told.get(("migratory_fenced", "")) if told is not None else None
    return value == 1, value
