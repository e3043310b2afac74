"""Faults made by edits of the resource's spec, such as people make on purpose or by mistake. The proofs check the
result of an edit, not the operator's steps. An edit is undone, or is harmless and stays."""

from __future__ import annotations

import json
from dataclasses import dataclass

from migratory_node.kubectl import Object

from migratory_chaos.engine import Fault, Observation
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import BROKER, ZOOKEEPER

MISSING_IMAGE = "migratory-broker:no-such-image"
IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull")
ROLLOUT_SECONDS = 400.0
"""Seconds for a rollout of three pods, one after the other, each after the cluster is healthy."""


@dataclass(frozen=True)
class BadImage(Fault[KubernetesScene]):
    """The brokers' image is set to one that does not exist, then to the previous one. At most one broker may be
    missing meanwhile."""

    async def inject(self, scene: KubernetesScene) -> None:
        cluster = scene.cluster
        before = cluster.spec("brokers", "image")
        wanted = cluster.replicas(BROKER)

        async def waits() -> Observation:
            found = [
                f"{name}: {reason}"
                for name, pod in cluster.pods(BROKER).items()
                for one in pod.get("status", {}).get("containerStatuses") or ()
                if (reason := one.get("state", {}).get("waiting", {}).get("reason")) in IMAGE_REASONS
            ]
            return bool(found), ", ".join(found) or "none"

        async def degraded() -> Observation:
            status, reason = cluster.kube.condition(cluster.name, "Degraded")
            return status == "True" and reason in IMAGE_REASONS, f"{status} {reason}"

        async def restored() -> Observation:
            images = {pod["spec"]["containers"][0]["image"] for pod in cluster.pods(BROKER).values()}
            return MISSING_IMAGE not in images, ", ".join(sorted(images))

        scene.start_injection(f"{cluster.name}-broker")
        try:
            cluster.kube.patch("mgc", cluster.name, {"spec": {"brokers": {"image": MISSING_IMAGE}}})
            await scene.wait_until("a pod without its image", " or ".join(IMAGE_REASONS), waits, ROLLOUT_SECONDS)
            await scene.wait_until("the condition Degraded", "True, with that reason", degraded)
            ready = int(cluster.resource()["status"].get("readyBrokers", 0))
            scene.prove("brokers that accept clients meanwhile", f">= {wanted - 1}", ready, ready >= wanted - 1)
        finally:
            cluster.kube.patch("mgc", cluster.name, {"spec": {"brokers": {"image": before}}})
            scene.release()
        await scene.wait_until("no pod with that image", "the previous one", restored, ROLLOUT_SECONDS)


@dataclass(frozen=True)
class Roll(Fault[KubernetesScene]):
    """A change for which every broker or ZooKeeper member is replaced, one after the other: other resource requests, or
    with `configuration` another value in the brokers' configuration."""

    component: str
    configuration: bool = False

    async def inject(self, scene: KubernetesScene) -> None:
        cluster = scene.cluster
        before = cluster.uids(self.component)
        path: tuple[str, ...]
        if self.configuration:
            path, usual, other = ("limits", "queuePerClient"), "1Mi", "2Mi"
        else:
            part, megabytes = {BROKER: ("brokers", 256), ZOOKEEPER: ("zookeeper", 160)}[self.component]
            path, usual, other = (part, "resources", "requests", "memory"), f"{megabytes}Mi", f"{megabytes + 1}Mi"
        value = usual if cluster.spec(*path) == other else other
        change: Object | str = value
        for key in reversed(path):
            change = {key: change}

        def configuration() -> object:
            found = cluster.kube.get("configmap", f"{cluster.name}-broker") or {"data": {"broker.json": "{}"}}
            return json.loads(found["data"]["broker.json"])

        written = configuration()

        async def applied() -> Observation:
            if self.configuration:
                is_other = configuration() != written
                return is_other, "another configuration" if is_other else "the same configuration"
            containers = [pod["spec"]["containers"][0] for pod in cluster.pods(self.component).values()]
            found = {container["resources"]["requests"]["memory"] for container in containers}
            return found == {value}, ", ".join(sorted(found))

        scene.start_injection(*sorted(before))
        cluster.kube.patch("mgc", cluster.name, {"spec": change})
        scene.release()
        await scene.wait_replaced(before, ROLLOUT_SECONDS)
        expected = "another configuration" if self.configuration else value
        await scene.wait_until("the ConfigMap, or the memory that pods request", expected, applied, ROLLOUT_SECONDS)


@dataclass(frozen=True)
class Scale(Fault[KubernetesScene]):
    """The cluster gets `more` additional brokers, and loses them again once it is healthy with them."""

    more: int

    async def inject(self, scene: KubernetesScene) -> None:
        cluster = scene.cluster
        usual = cluster.replicas(BROKER)
        before = cluster.uids(BROKER)
        new = [f"{cluster.name}-broker-{number}" for number in range(usual, usual + self.more)]

        def resize(replicas: int) -> None:
            cluster.kube("scale", "mgc", cluster.name, f"--replicas={replicas}")

        async def gone() -> Observation:
            left = sorted(set(cluster.pods(BROKER)) & set(new))
            return not left, ", ".join(left) or "none"

        scene.start_injection(*new)
        try:
            resize(usual + self.more)
            began = scene.now
            wrong = await scene.wait_healthy()
            scene.record.notes["up_seconds"] = round(scene.now - began, 1)
            scene.prove("what is wrong with more brokers", [], wrong)
            members = await cluster.read_all("migratory_member", brokers=new)
            scene.prove("the new ones are members of every group", dict.fromkeys(new, 1.0), members)
            scene.record.notes["clients"] = dict(scene.load.status().get("connections") or {})
        finally:
            scene.start_injection(*new)
            resize(usual)
            scene.release()
        await scene.wait_until("pods of the brokers that leave", "none", gone, ROLLOUT_SECONDS)
        scene.prove("the others are the same pods", sorted(before.items()), sorted(cluster.uids(BROKER).items()))
