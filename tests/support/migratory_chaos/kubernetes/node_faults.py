"""Faults that need the node's own processes: only where the node is this machine's (`local_node.py`)."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from datetime import UTC, datetime

from migratory_chaos.engine import Fault, Observation
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import BROKER

FENCED_AFTER_SECONDS = 10.0
"""A broker that hears no other for longer must be fenced."""


@dataclass(frozen=True)
class CrashBroker(Fault[KubernetesScene]):
    """SIGKILL to the process of the busiest coordinator. Its container is started again in the same pod."""

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        victim, groups = scene.busiest_coordinator()
        prove_takeovers = scene.expect_takeovers(victim, groups)
        (before,) = target.pods(BROKER)[victim]["status"]["containerStatuses"]
        clients = scene.count_clients(victim)

        async def restarted() -> Observation:
            (now,) = target.pods(BROKER)[victim]["status"]["containerStatuses"]
            code = now.get("lastState", {}).get("terminated", {}).get("exitCode")
            return now["restartCount"] > before["restartCount"] and code == 137, f"{now['restartCount']} starts, {code}"

        scene.start_injection(victim, broker=victim)
        scene.node.kill_container(before["containerID"])
        scene.release()
        await scene.wait_until("another start of the container, and the previous exit code", "one more, 137", restarted)
        await prove_takeovers()
        await scene.wait_reconnects(clients)


@dataclass(frozen=True)
class PartitionBroker(Fault[KubernetesScene]):
    """A broker's pod cut off from all other pods. The node reaches it, so that its probes succeed. `inject`
    removes the partition before it returns."""

    seconds: float

    async def inject(self, scene: KubernetesScene) -> None:
        victim = scene.pick_broker()
        address = scene.target.pods(BROKER)[victim]["status"]["podIP"]
        node = scene.node

        async def fenced() -> Observation:
            value = (scene.target.metrics(victim) or {}).get(("migratory_fenced", ""), "no answer")
            return value == 1, value

        try:
            scene.start_injection(victim)
            node.cut(address)
            end = scene.now + self.seconds
            if self.seconds > FENCED_AFTER_SECONDS:
                await scene.wait_until("migratory_fenced of the broker", "1", fenced, self.seconds)
            await asyncio.sleep(max(0.0, end - scene.now))
            sent, received = node.dropped(address)
            holds = min(sent, received) > 0
            scene.prove("dropped packets from and to it", "> 0 each", f"{sent}, {received}", holds)
        finally:
            node.heal()
            scene.release()
        scene.prove("packets that still match a rule", (0, 0), node.dropped(address))


@dataclass(frozen=True)
class RestartNode(Fault[KubernetesScene]):
    """kubelet and containerd stopped for a while. The containers keep running."""

    seconds: float

    async def inject(self, scene: KubernetesScene) -> None:
        node, api = scene.node, scene.target.api
        before = node.process_ids()
        uids = scene.target.uids(BROKER)
        scene.start_injection(node.name)
        try:
            node.stop_daemons()
            scene.prove("kubelet and containerd that run", {}, node.process_ids())
            status = api.get(f"/api/v1/nodes/{node.name}/proxy/healthz")[0]
            scene.prove("the kubelet's answer", "none", status, status != 200)
            await asyncio.sleep(self.seconds)
        finally:
            node.start_daemons()
            scene.release()
        started = datetime.now(UTC)
        after = node.process_ids()
        others = sorted(name for name in before if after.get(name) not in (None, before[name]))
        scene.prove("processes replaced", sorted(before), others)

        async def renewed() -> Observation:
            lease = api.json(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}")
            renewed_at = lease["spec"]["renewTime"]
            return datetime.fromisoformat(renewed_at.replace("Z", "+00:00")) > started, renewed_at

        await scene.wait_until("the node's lease renewed", f"after {started:%H:%M:%S}Z", renewed)
        scene.prove("brokers' pods are the same", sorted(uids.values()), sorted(scene.target.uids(BROKER).values()))
