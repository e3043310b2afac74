"""Faults on a Kubernetes that delete pods: of brokers, ZooKeeper members and the operator. Any kubeconfig will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from migratory_node.kubectl import KubectlError
from migratory_node.pods import is_ready

from migratory_chaos.engine import Fault, Observation, poll_until
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import BROKER, ZOOKEEPER

FORCED = ("--grace-period=0", "--force")
BUDGET = "disruption budget"
"""Words of a refusal by a PodDisruptionBudget."""


@dataclass(frozen=True)
class DeleteBroker(Fault[KubernetesScene]):
    """A broker's pod is deleted: a random one, or with `coordinator` the one that coordinates most groups. In its
    grace period the broker drains, hands its groups over and moves its clients; with `forced` there is no grace
    period."""

    forced: bool
    coordinator: bool = False

    async def inject(self, scene: KubernetesScene) -> None:
        kube = scene.cluster.kube
        victim = await scene.pick_broker(self.coordinator)
        prove_takeovers = await scene.expect_takeovers([victim]) if self.coordinator else None
        uid, clients = scene.cluster.uids(BROKER)[victim], scene.count_clients(victim)
        scene.start_injection(victim, broker=victim if self.forced else None)
        kube("delete", "pod", victim, *(FORCED if self.forced else ("--wait=false",)))
        scene.release()
        pod = kube.get("pod", victim)
        if not self.forced and pod is not None and pod["metadata"]["uid"] == uid:  # unless it was replaced already
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
            scene.prove("grace period in seconds", "> 0", grace, grace > 0)
        await scene.wait_replaced({victim: uid})
        await scene.wait_reconnects(clients)
        if prove_takeovers is not None:
            await prove_takeovers()


@dataclass(frozen=True)
class DeleteZooKeeper(Fault[KubernetesScene]):
    """ZooKeeper members' pods are deleted without grace: a follower, the leader, or all of them at once."""

    which: Literal["member", "leader", "all"]

    async def inject(self, scene: KubernetesScene) -> None:
        cluster = scene.cluster
        modes = cluster.modes()
        quorum = len(modes) // 2 + 1
        leaders = sorted(name for name, mode in modes.items() if mode == "leader")
        scene.prove("one leader before", 1, len(leaders))
        followers = sorted(set(modes) - set(leaders))
        chosen = {"member": [scene.random.choice(followers)], "leader": leaders, "all": sorted(modes)}[self.which]
        uids = {name: uid for name, uid in cluster.uids(ZOOKEEPER).items() if name in chosen}

        async def lost_quorum() -> Observation:
            ready = sum(is_ready(pod) for pod in cluster.pods(ZOOKEEPER).values())
            return ready < quorum, ready

        async def has_leader() -> Observation:
            now = sorted(name for name, mode in cluster.modes().items() if mode == "leader")
            return len(now) == 1, ", ".join(now) or "none"

        async def all_serve() -> Observation:
            now = cluster.modes()
            return all(now.values()) and len(now) == len(modes), ", ".join(f"{name} {now[name]}" for name in now)

        scene.start_injection(*chosen)
        cluster.kube("delete", "pod", *chosen, *FORCED)
        scene.release()
        if self.which == "all":
            await scene.wait_until("ready members", f"< {quorum}", lost_quorum, 30.0, interval=0.1)
        await scene.wait_replaced(uids)
        if self.which == "leader":
            await scene.wait_until("one leader again", "a member", has_leader, 60.0)
        await scene.wait_until("every member serves", "a mode each", all_serve)


@dataclass(frozen=True)
class EvictBroker(Fault[KubernetesScene]):
    """A broker is evicted through the API, as when a node is drained. An eviction of a second broker must be
    refused until the first one is replaced."""

    async def inject(self, scene: KubernetesScene) -> None:
        victim = await scene.pick_broker()
        uids, clients = scene.cluster.uids(BROKER), scene.count_clients(victim)
        other = next(name for name in sorted(uids) if name != victim)
        scene.start_injection(victim)

        async def evicted() -> Observation:
            answer = self._evict(scene, victim)  # refused while the disruption budget is not yet counted
            return not answer, answer

        if not await scene.wait_until("the refusal of the eviction", "", evicted, 60.0):
            return
        # Before anything else: the budget counts the first eviction until its pod is replaced.
        refusal = self._evict(scene, other)
        scene.release()
        scene.prove(f"the refusal of a second one, of {other}", BUDGET, refusal, BUDGET in refusal)
        await scene.wait_replaced({victim: uids[victim]})
        await scene.wait_reconnects(clients)

    def _evict(self, scene: KubernetesScene, pod: str) -> str:
        """Return the error with which the API server refuses to evict a pod; empty when it accepts."""
        kube = scene.cluster.kube
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": kube.namespace}}
        try:
            kube.request(f"/api/v1/namespaces/{kube.namespace}/pods/{pod}/eviction", body)
        except KubectlError as error:
            return str(error)
        return ""


@dataclass(frozen=True)
class DeleteOperator(Fault[KubernetesScene]):
    """The operator's pod is deleted without grace. If `away` is not 0, there is no operator for that many seconds:
    an object that is deleted meanwhile is restored only once the operator is back."""

    away: float

    async def inject(self, scene: KubernetesScene) -> None:
        kube, operator = scene.operator.kube, scene.operator
        # The ConfigMap with the server list is for other programs; the run does not need it.
        servers = f"{scene.cluster.name}-servers"
        (pod,) = operator.pods()
        uid = pod["metadata"]["uid"]

        async def replaced() -> Observation:
            found = [one for one in operator.pods() if is_ready(one) and one["metadata"]["uid"] != uid]
            return len(found) == 1, ", ".join(one["metadata"]["name"] for one in found) or "none"

        async def gone() -> Observation:
            return not operator.pods(), len(operator.pods())

        async def restored() -> Observation:
            found = scene.cluster.kube.get("configmap", servers) is not None
            return found, servers if found else "nothing"

        async def is_restored() -> bool:
            return (await restored())[0]

        scene.start_injection(pod["metadata"]["name"])
        if not self.away:
            kube("delete", "pod", pod["metadata"]["name"], *FORCED)
            scene.release()
        else:
            try:
                kube("scale", "deployment", operator.name, "--replicas=0")
                if await scene.wait_until("operators while it is away", "0", gone):
                    scene.cluster.kube("delete", "configmap", servers)
                    back = await poll_until(is_restored, self.away, 1.0, scene.TRANSIENT)
                    scene.prove(f"the deleted object is restored within {self.away:g} s", False, back)
            finally:
                kube("scale", "deployment", operator.name, "--replicas=1")
                scene.release()
        await scene.wait_until("another operator, ready", "one", replaced)
        if self.away:
            await scene.wait_until("the deleted object is back", servers, restored)
