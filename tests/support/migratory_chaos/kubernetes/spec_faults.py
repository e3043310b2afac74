"""Faults made by edits of the resource's spec: changes that people make, and mistakes. How the operator applies them is
its own affair. An edit is undone, or is harmless and stays."""

from __future__ import annotations

import json
from dataclasses import dataclass

from migratory_chaos.engine import Fault, Observation
from migratory_chaos.kubernetes.scene import KubernetesScene
from migratory_chaos.kubernetes.target import BROKER, ZOOKEEPER

MISSING_IMAGE = "migratory-broker:no-such-image"
IMAGE_REASONS = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull")
ROLLOUT_SECONDS = 400.0
"""For three pods one after the other, each after the cluster is healthy."""


@dataclass(frozen=True)
class BadImage(Fault[KubernetesScene]):
    """An image that does not exist, then the previous one. At most one broker may be missing meanwhile."""

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        before = target.spec("brokers", "image")
        wanted = target.replicas(BROKER)

        async def waits() -> Observation:
            found = [
                f"{name}: {reason}"
                for name, pod in target.pods(BROKER).items()
                for one in pod.get("status", {}).get("containerStatuses") or ()
                if (reason := one.get("state", {}).get("waiting", {}).get("reason")) in IMAGE_REASONS
            ]
            return bool(found), ", ".join(found) or "none"

        async def degraded() -> Observation:
            status, reason = target.kube.condition(target.name, "Degraded")
            return status == "True" and reason in IMAGE_REASONS, f"{status} {reason}"

        async def restored() -> Observation:
            images = {pod["spec"]["containers"][0]["image"] for pod in target.pods(BROKER).values()}
            return MISSING_IMAGE not in images, ", ".join(sorted(images))

        scene.start_injection(f"{target.name}-broker")
        try:
            target.kube.patch("mgc", target.name, {"spec": {"brokers": {"image": MISSING_IMAGE}}})
            await scene.wait_until("a pod without its image", " or ".join(IMAGE_REASONS), waits, ROLLOUT_SECONDS)
            await scene.wait_until("the condition Degraded", "True, with that reason", degraded)
            ready = int(target.resource()["status"].get("readyBrokers", 0))
            scene.prove("brokers that accept clients meanwhile", f">= {wanted - 1}", ready, ready >= wanted - 1)
        finally:
            target.kube.patch("mgc", target.name, {"spec": {"brokers": {"image": before}}})
            scene.release()
        await scene.wait_until("no pod with that image", "the previous one", restored, ROLLOUT_SECONDS)


@dataclass(frozen=True)
class ChangeConfiguration(Fault[KubernetesScene]):
    """Another value in the brokers' configuration, for which every broker is replaced."""

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        before = target.uids(BROKER)
        value = "2Mi" if target.spec("limits", "queuePerClient") != "2Mi" else "1Mi"

        def configuration() -> object:
            found = target.kube.get("configmap", f"{target.name}-broker") or {"data": {"broker.json": "{}"}}
            return json.loads(found["data"]["broker.json"])

        written = configuration()

        async def changed() -> Observation:
            is_other = configuration() != written
            return is_other, "another" if is_other else "the same"

        scene.start_injection(*sorted(before))
        target.kube.patch("mgc", target.name, {"spec": {"limits": {"queuePerClient": value}}})
        scene.release()
        await scene.wait_until("the configuration in the ConfigMap", "another", changed)
        await scene.wait_replaced(before, ROLLOUT_SECONDS)


@dataclass(frozen=True)
class Roll(Fault[KubernetesScene]):
    """Other resource requests, for which every broker or ZooKeeper member is replaced, one after the other."""

    component: str

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        before = target.uids(self.component)
        part, usual = {BROKER: ("brokers", 256), ZOOKEEPER: ("zookeeper", 160)}[self.component]
        value, other = f"{usual + 1}Mi", f"{usual}Mi"
        if target.spec(part, "resources", "requests", "memory") == value:
            value = other

        async def applied() -> Observation:
            containers = [pod["spec"]["containers"][0] for pod in target.pods(self.component).values()]
            found = {container["resources"]["requests"]["memory"] for container in containers}
            return found == {value}, ", ".join(sorted(found))

        scene.start_injection(*sorted(before))
        target.kube.patch("mgc", target.name, {"spec": {part: {"resources": {"requests": {"memory": value}}}}})
        scene.release()
        await scene.wait_replaced(before, ROLLOUT_SECONDS)
        await scene.wait_until("the memory that its pods request", value, applied, ROLLOUT_SECONDS)


@dataclass(frozen=True)
class Scale(Fault[KubernetesScene]):
    """One or two brokers more, and back once the cluster is healthy with them."""

    more: int

    async def inject(self, scene: KubernetesScene) -> None:
        target = scene.target
        usual = target.replicas(BROKER)
        before = target.uids(BROKER)
        new = [f"{target.name}-broker-{number}" for number in range(usual, usual + self.more)]

        def resize(replicas: int) -> None:
            target.kube("scale", "mgc", target.name, f"--replicas={replicas}")

        async def gone() -> Observation:
            left = sorted(set(target.pods(BROKER)) & set(new))
            return not left, ", ".join(left) or "none"

        scene.start_injection(*new)
        try:
            resize(usual + self.more)
            began = scene.now
            wrong = await scene.wait_healthy()
            scene.notes["up_seconds"] = round(scene.now - began, 1)
            scene.prove("what is wrong with more brokers", [], wrong)
            members = {name: (target.metrics(name) or {}).get(("migratory_member", ""), 0.0) for name in new}
            scene.prove("the new ones are members of every group", dict.fromkeys(new, 1.0), members)
            scene.notes["clients"] = dict(scene.load.status().get("connections") or {})
        finally:
            scene.start_injection(*new)
            resize(usual)
            scene.release()
        await scene.wait_until("pods of the brokers that leave", "none", gone, ROLLOUT_SECONDS)
        scene.prove("the others are the same pods", sorted(before.items()), sorted(target.uids(BROKER).items()))
