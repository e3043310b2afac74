"""Faults that take pods away: brokers, ZooKeeper members, the operator. Any kubeconfig will do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from migratory_node.kubectl import Refused

from migratory_chaos_k8s.faults import Fault, Scene
from migratory_chaos_k8s.target import BROKER, ZOOKEEPER, ready_now, until

NOW = ("--grace-period=0", "--force")


@dataclass(frozen=True)
class Kill(Fault):
    """A broker's pod is deleted: with its grace it drains, hands its groups over and lets its clients go."""

    def strike(self, scene: Scene) -> None:
        target = scene.target
        victim = scene.some_broker()
        uid, clients = target.uid(victim), scene.clients(victim)
        scene.blow(victim)
        target.kube("delete", "pod", victim, "--wait=false")
        scene.left_alone()
        pod = target.kube.get("pod", victim) or {"metadata": {}}
        if pod["metadata"].get("uid") == uid:  # else it was quicker than this look
            grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
            scene.prove("it is given time to end, in seconds", "> 0", grace, grace > 0)
        scene.replaced({victim: uid})
        scene.left_by(clients)


@dataclass(frozen=True)
class KillNow(Fault):
    """A broker's pod is deleted without grace."""

    def strike(self, scene: Scene) -> None:
        force(scene, scene.some_broker())


@dataclass(frozen=True)
class Coordinator(Fault):
    """The same, to the broker that coordinates most topic groups: others must take them over."""

    def strike(self, scene: Scene) -> None:
        victim, led = scene.busiest()
        others = [name for name in scene.target.pods(BROKER) if name != victim]
        before = scene.target.takeovers(others)
        force(scene, victim)

        def taken() -> tuple[bool, object]:
            found = scene.target.takeovers(others) - before
            return found >= led, f"{found:g}"

        scene.happens("epochs activated by the others", f">= {led}", taken)


def force(scene: Scene, victim: str) -> None:
    uid, clients = scene.target.uid(victim), scene.clients(victim)
    scene.blow(victim, broker=victim)
    scene.target.kube("delete", "pod", victim, *NOW)
    scene.left_alone()
    scene.replaced({victim: uid})
    scene.left_by(clients)


@dataclass(frozen=True)
class ZooKeeper(Fault):
    """ZooKeeper members are deleted without grace: a follower, the leader, or all of them at once."""

    which: Literal["member", "leader", "all"]

    def strike(self, scene: Scene) -> None:
        target = scene.target
        modes = target.modes()
        leaders = sorted(name for name, mode in modes.items() if mode == "leader")
        scene.prove("one leader before", 1, len(leaders))
        followers = sorted(set(modes) - set(leaders))
        chosen = {"member": [scene.random.choice(followers)], "leader": leaders, "all": sorted(modes)}[self.which]
        uids = {name: target.uid(name) for name in chosen}
        scene.blow(*chosen)
        target.kube("delete", "pod", *chosen, *NOW)
        scene.left_alone()
        if self.which == "all":
            quorum = len(modes) // 2 + 1

            def without() -> tuple[bool, object]:
                ready = sum(ready_now(pod) for pod in target.pods(ZOOKEEPER).values())
                return ready < quorum, ready

            scene.happens("ready members", f"< {quorum}", without, 30.0, poll=0.1)
        scene.replaced(uids)
        if self.which == "leader":

            def other() -> tuple[bool, object]:
                now = sorted(name for name, mode in target.modes().items() if mode == "leader")
                return len(now) == 1, ", ".join(now) or "none"

            scene.happens("one leader again", "a member", other, 60.0)

        def serves() -> tuple[bool, object]:
            now = target.modes()
            return all(now.values()) and len(now) == len(modes), ", ".join(f"{name} {now[name]}" for name in now)

        scene.happens("every member serves", "a mode each", serves)


@dataclass(frozen=True)
class Evict(Fault):
    """A broker is evicted through the API, as a node's drain does; a second one at the same time is refused."""

    def strike(self, scene: Scene) -> None:
        target = scene.target
        victim = scene.some_broker()
        other = next(name for name in sorted(target.pods(BROKER)) if name != victim)
        uid, clients = target.uid(victim), scene.clients(victim)
        scene.blow(victim)

        def evicted() -> tuple[bool, object]:
            status = self.ask(scene, victim)  # 429 while the budget is still being counted
            return status == 201, status

        if not scene.happens("the API server's answer to the eviction", "201", evicted, 60.0):
            scene.left_alone()
            return
        # Before anything else: the budget counts the first until it is replaced.
        second = self.ask(scene, other)
        scene.left_alone()
        scene.prove(f"its answer to a second one, of {other}", 429, second)
        scene.replaced({victim: uid})
        scene.left_by(clients)

    def ask(self, scene: Scene, pod: str) -> int:
        namespace = scene.target.kube.namespace
        path = f"/api/v1/namespaces/{namespace}/pods/{pod}/eviction"
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": pod, "namespace": namespace}}
        return scene.target.api.post(path, body)[0]


@dataclass(frozen=True)
class OperatorDies(Fault):
    """The operator's pod is deleted without grace; with `away` it is gone for so many seconds, and what is deleted
    meanwhile comes back with it."""

    away: float

    def strike(self, scene: Scene) -> None:
        kube, operator = scene.operator.kube(), scene.operator
        (pod,) = operator.pods()
        uid = pod["metadata"]["uid"]
        scene.blow(pod["metadata"]["name"])
        if not self.away:
            kube("delete", "pod", pod["metadata"]["name"], *NOW)
            scene.left_alone()
        else:
            self.stay_away(scene)

        def another() -> tuple[bool, object]:
            found = [one for one in operator.pods() if ready_now(one) and one["metadata"]["uid"] != uid]
            return len(found) == 1, ", ".join(one["metadata"]["name"] for one in found) or "none"

        scene.happens("another operator, ready", "one", another)
        if self.away:
            servers = f"{scene.target.name}-servers"
            scene.happens("what was deleted is back", servers, lambda: self.there(scene, servers))

    def stay_away(self, scene: Scene) -> None:
        """The ConfigMap with the server list is for other programs: nobody in the run needs it."""
        kube, operator = scene.operator.kube(), scene.operator
        servers = f"{scene.target.name}-servers"
        try:
            kube("scale", "deployment", operator.deployment, "--replicas=0")
            gone = scene.happens("operators while it is away", "0", lambda: (not operator.pods(), len(operator.pods())))
            if gone:
                scene.target.kube("delete", "configmap", servers)
                back = until(lambda: self.there(scene, servers)[0], self.away, poll=1.0)
                scene.prove(f"for {self.away:g} s nobody makes again what is deleted", False, back)
        finally:
            kube("scale", "deployment", operator.deployment, "--replicas=1")
            scene.left_alone()

    def there(self, scene: Scene, name: str) -> tuple[bool, object]:
        try:
            found = scene.target.kube.get("configmap", name) is not None
        except Refused:
            found = False
        return found, name if found else "nothing"
