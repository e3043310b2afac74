"""Faults that need the node's own processes: only where the node is this machine's (`machine_node.py`)."""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import UTC, datetime

from migratory_chaos_k8s.faults import Fault, Scene
from migratory_chaos_k8s.machine_node import MachineNode
from migratory_chaos_k8s.target import BROKER, until

FENCES_SECONDS = 10.0
"""A broker that hears nobody for so long must have stood back."""


def machine(scene: Scene) -> MachineNode:
    if scene.machine is None:
        raise RuntimeError("a fault of the machine's node where there is none")
    return scene.machine


@dataclass(frozen=True)
class Crash(Fault):
    """SIGKILL to the busiest coordinator's process: the container is started again in the same pod."""

    def strike(self, scene: Scene) -> None:
        target = scene.target
        victim, led = scene.busiest()
        others = [name for name in target.pods(BROKER) if name != victim]
        before = target.takeovers(others)
        (status,) = target.pods(BROKER)[victim]["status"]["containerStatuses"]
        clients = scene.clients(victim)
        scene.blow(victim, broker=victim)
        machine(scene).kill_container(status["containerID"])
        scene.left_alone()

        def ended() -> tuple[bool, object]:
            (now,) = target.pods(BROKER)[victim]["status"]["containerStatuses"]
            code = now.get("lastState", {}).get("terminated", {}).get("exitCode")
            return now["restartCount"] > status["restartCount"] and code == 137, f"{now['restartCount']} starts, {code}"

        def taken() -> tuple[bool, object]:
            found = target.takeovers(others) - before
            return found >= led, f"{found:g}"

        scene.happens("another start of the container, and the exit code before", "one more, 137", ended)
        scene.happens("epochs activated by the others", f">= {led}", taken)
        scene.left_by(clients)


@dataclass(frozen=True)
class Partition(Fault):
    """A broker's pod and all other pods don't hear each other; the node reaches both, so that the pod stays ready as
    far as its probes go. Healed before anything else is done to the pod."""

    seconds: float

    def strike(self, scene: Scene) -> None:
        victim = scene.some_broker()
        address = scene.target.pods(BROKER)[victim]["status"]["podIP"]
        node = machine(scene)
        try:
            scene.blow(victim)
            node.cut(address)
            began = time.monotonic()
            if self.seconds > FENCES_SECONDS:

                def fenced() -> tuple[bool, object]:
                    told = scene.target.metrics(victim) or {}
                    return told.get(("migratory_fenced", "")) == 1, told.get(("migratory_fenced", ""), "no answer")

                scene.happens("migratory_fenced of the one that is cut off", "1", fenced, self.seconds)
            until(lambda: time.monotonic() - began >= self.seconds, self.seconds)
            out, back = node.dropped(address)
            scene.prove("packets from and to it that were dropped", "> 0 each", f"{out}, {back}", min(out, back) > 0)
        finally:
            node.heal()
            scene.left_alone()
        scene.prove("packets that still meet a rule", (0, 0), node.dropped(address))


@dataclass(frozen=True)
class NodeRestart(Fault):
    """kubelet and containerd end and are away for a while; the containers go on without them."""

    seconds: float

    def strike(self, scene: Scene) -> None:
        node = machine(scene)
        before = node.process_ids()
        uids = {name: pod["metadata"]["uid"] for name, pod in scene.target.pods(BROKER).items()}
        scene.blow(node.name)
        try:
            node.stop_daemons()
            scene.prove("kubelet and containerd that run", {}, node.process_ids())
            status = scene.target.api.get(f"/api/v1/nodes/{node.name}/proxy/healthz")[0]
            scene.prove("the kubelet's answer", "none", status, status != 200)
            began = time.monotonic()
            until(lambda: time.monotonic() - began >= self.seconds, self.seconds)
        finally:
            node.start_daemons()
            scene.left_alone()
        back = datetime.now(UTC)
        after = node.process_ids()
        others = sorted(name for name in before if after.get(name) not in (None, before[name]))
        scene.prove("other processes now", sorted(before), others)

        def renewed() -> tuple[bool, object]:
            lease = scene.target.api.json(f"/apis/coordination.k8s.io/v1/namespaces/kube-node-lease/leases/{node.name}")
            time_of = datetime.fromisoformat(lease["spec"]["renewTime"].replace("Z", "+00:00"))
            return time_of > back, lease["spec"]["renewTime"]

        scene.happens("the node's lease renewed", f"after {back:%H:%M:%S}Z", renewed)
        now = {name: pod["metadata"]["uid"] for name, pod in scene.target.pods(BROKER).items()}
        scene.prove("brokers' pods are the same", sorted(uids.values()), sorted(now.values()))
