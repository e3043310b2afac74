"""Faults that delete pods: of brokers, ZooKeeper members and the operator. Any kubeconfig will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from migratory_node.kubectl import KubectlError

from migratory_chaos.engine import Fault, Observation, poll_until
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import BROKER, ZOOKEEPER, is_ready

FORCED = ("--grace-period=0", "--force")


@dataclass(frozen=True)
class DeleteBroker(Fault[KubernetesScene]):
    """A broker's pod deleted with its grace period: it drains, hands its groups over and moves its clients."""

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        victim = scene.pick_broker()
        uid, clients = target.uid(victim), scene.count_clients(victim)
        scene.start_injection(victim)
        target.kube("delete", "pod", victim, "--wait=false")
        scene.release()
        pod = target.kube.get("pod", victim) or {"metadata": {}}
        if pod["metadata"].get("uid") == uid:  # unless it was replaced already
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
            scene.prove("grace period in seconds", "> 0", grace, grace > 0)
        await scene.wait_replaced({victim: uid})
        await scene.wait_reconnects(clients)


@dataclass(frozen=True)
class ForceDeleteBroker(Fault[KubernetesScene]):
    """A broker's pod deleted without grace: a random one, or the one that coordinates most groups."""

    coordinator: bool = False

    async def inject(self, scene: KubernetesScene) -> None:
        if self.coordinator:
            victim, groups = scene.busiest_coordinator()
            prove_takeovers = scene.expect_takeovers(victim, groups)
        else:
            victim = scene.pick_broker()
        uid, clients = scene.target.uid(victim), scene.count_clients(victim)
        scene.start_injection(victim, broker=victim)
        scene.target.kube("delete", "pod", victim, *FORCED)
        scene.release()
        await scene.wait_replaced({victim: uid})
        await scene.wait_reconnects(clients)
        if self.coordinator:
            await prove_takeovers()


@dataclass(frozen=True)
class DeleteZooKeeper(Fault[KubernetesScene]):
    """ZooKeeper members deleted without grace: a follower, the leader, or all of them at once."""

    which: Literal["member", "leader", "all"]

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        modes = target.modes()
        quorum = len(modes) // 2 + 1
        leaders = sorted(name for name, mode in modes.items() if mode == "leader")
        scene.prove("one leader before", 1, len(leaders))
        followers = sorted(set(modes) - set(leaders))
        chosen = {"member": [scene.random.choice(followers)], "leader": leaders, "all": sorted(modes)}[self.which]
        uids = {name: target.uid(name) for name in chosen}

        async def lost_quorum() -> Observation:
            ready = sum(is_ready(pod) for pod in target.pods(ZOOKEEPER).values())
            return ready < quorum, ready

        async def has_leader() -> Observation:
            now = sorted(name for name, mode in target.modes().items() if mode == "leader")
            return len(now) == 1, ", ".join(now) or "none"

        async def all_serve() -> Observation:
            now = target.modes()
            return all(now.values()) and len(now) == len(modes), ", ".join(f"{name} {now[name]}" for name in now)

        scene.start_injection(*chosen)
        target.kube("delete", "pod", *chosen, *FORCED)
        scene.release()
        if self.which == "all":
            await scene.wait_until("ready members", f"< {quorum}", lost_quorum, 30.0, interval=0.1)
        await scene.wait_replaced(uids)
        if self.which == "leader":
            await scene.wait_until("one leader again", "a member", has_leader, 60.0)
        await scene.wait_until("every member serves", "a mode each", all_serve)


@dataclass(frozen=True)
class EvictBroker(Fault[KubernetesScene]):
    """A broker evicted through the API, as a node's drain does it. A second eviction at the same time is refused."""

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        victim = scene.pick_broker()
        other = next(name for name in sorted(target.pods(BROKER)) if name != victim)
        uid, clients = target.uid(victim), scene.count_clients(victim)
        scene.start_injection(victim)

        async def evicted() -> Observation:
            status = self._evict(scene, victim)  # 429 while the disruption budget is not yet counted
            return status == 201, status

        if not await scene.wait_until("the API server's answer to the eviction", "201", evicted, 60.0):
            scene.release()
            return
        # Before anything else: the budget counts the first eviction until its pod is replaced.
        second = self._evict(scene, other)
        scene.release()
        scene.prove(f"its answer to a second one, of {other}", 429, second)
        await scene.wait_replaced({victim: uid})
        await scene.wait_reconnects(clients)

    def _evict(self, scene: KubernetesScene, pod: str) -> int:
        namespace = scene.target.kube.namespace
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        return scene.target.api.post(f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction", body)[0]


@dataclass(frozen=True)
class DeleteOperator(Fault[KubernetesScene]):
    """The operator's pod deleted without grace. With `away` there is no operator for that many seconds: an object that
    is deleted meanwhile comes back with it."""

    away: float

    async def inject(self, scene: KubernetesScene) -> None:
        kube, operator = scene.operator.kube(), scene.operator
        # The ConfigMap with the server list is for other programs; the run does not need it.
        servers = f"{scene.target.name}-servers"
        (pod,) = operator.pods()
        uid = pod["metadata"]["uid"]

        async def replaced() -> Observation:
            found = [one for one in operator.pods() if is_ready(one) and one["metadata"]["uid"] != uid]
            return len(found) == 1, ", ".join(one["metadata"]["name"] for one in found) or "none"

        async def gone() -> Observation:
            return not operator.pods(), len(operator.pods())

        async def restored() -> Observation:
            try:
                found = scene.target.kube.get("configmap", servers) is not None
            except KubectlError:
                found = False
            return found, servers if found else "nothing"

        async def is_restored() -> bool:
            return (await restored())[0]

        scene.start_injection(pod["metadata"]["name"])
        if not self.away:
            kube("delete", "pod", pod["metadata"]["name"], *FORCED)
            scene.release()
        else:
            try:
                kube("scale", "deployment", operator.deployment, "--replicas=0")
                if await scene.wait_until("operators while it is away", "0", gone):
                    scene.target.kube("delete", "configmap", servers)
                    back = await poll_until(is_restored, self.away, interval=1.0)
                    scene.prove(f"the deleted object is restored within {self.away:g} s", False, back)
            finally:
                kube("scale", "deployment", operator.deployment, "--replicas=1")
                scene.release()
        await scene.wait_until("another operator, ready", "one", replaced)
        if self.away:
            await scene.wait_until("the deleted object is back", servers, restored)
