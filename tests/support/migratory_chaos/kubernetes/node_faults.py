"""Faults on a Kubernetes that need the node's own processes, where the node is this machine (`local_node.py`)."""

from __future__ import annotations

import asyncio
import json
from dataclasses import dataclass
from datetime import UTC, datetime

from migratory_node.kubectl import KubectlError

from migratory_chaos.engine import Fault, Observation
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import BROKER

FENCED_AFTER_SECONDS = 10.0
"""Seconds of silence of all other brokers after which a broker must be fenced."""


@dataclass(frozen=True)
class CrashBroker(Fault[KubernetesScene]):
    """The broker that coordinates most groups is killed with SIGKILL. Its container is started again in the same
    pod."""

    async def inject(self, scene: KubernetesScene) -> None:
        cluster = scene.cluster
        victim = await scene.pick_broker(coordinator=True)
        prove_takeovers = await scene.expect_takeovers([victim])
        (before,) = cluster.pods(BROKER)[victim]["status"]["containerStatuses"]
        clients = scene.count_clients(victim)

        async def restarted() -> Observation:
            (now,) = cluster.pods(BROKER)[victim]["status"]["containerStatuses"]
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
    """A broker's pod is cut off from all other pods for `seconds`. The node still reaches the pod, so its probes
    succeed. `inject` removes the partition before it returns."""

    seconds: float

    async def inject(self, scene: KubernetesScene) -> None:
        victim = await scene.pick_broker()
        address = scene.cluster.pods(BROKER)[victim]["status"]["podIP"]
        node = scene.node

        try:
            scene.start_injection(victim)
            rules = node.cut(address)
            end = scene.now + self.seconds
            if self.seconds > FENCED_AFTER_SECONDS:
                await scene.wait_fenced(victim, self.seconds)
            await asyncio.sleep(max(0.0, end - scene.now))
            dropped = [rule.packets() for rule in rules]
            scene.prove("dropped packets from and to it", "> 0 each", dropped, min(dropped) > 0)
        finally:
            node.heal()
            scene.release()
        scene.prove("rules that are left", [], node.rules())


@dataclass(frozen=True)
class RestartNode(Fault[KubernetesScene]):
    """The node's kubelet and containerd are stopped for `seconds`. The containers keep running."""

    seconds: float

    async def inject(self, scene: KubernetesScene) -> None:
        node, kube = scene.node, scene.cluster.kube
        before = node.process_ids()
        uids = scene.cluster.uids(BROKER)
        scene.start_injection(node.name)
        try:
            node.stop_daemons()
            scene.prove("kubelet and containerd that run", {}, node.process_ids())
            try:
                answer = kube.request(f"/api/v1/nodes/{node.name}/proxy/healthz")
            except KubectlError:
                answer = ""
            scene.prove("the kubelet's answer", "", answer)
            await asyncio.sleep(self.seconds)
        finally:
            node.start_daemons()
            scene.release()
        started = datetime.now(UTC)
        after = node.process_ids()
        others = sorted(name for name in before if after.get(name) not in (None, before[name]))
        scene.prove("processes replaced", sorted(before), others)

        async def renewed() -> Observation:
            leases = "/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases"
            renewed_at = json.loads(kube.request(f"{leases}/{node.name}"))["spec"]["renewTime"]
            return datetime.fromisoformat(renewed_at) > started, renewed_at

        await scene.wait_until("the node's lease renewed", f"after {started:%H:%M:%S}Z", renewed)
        scene.prove("brokers' pods are the same", sorted(uids.values()), sorted(scene.cluster.uids(BROKER).values()))
