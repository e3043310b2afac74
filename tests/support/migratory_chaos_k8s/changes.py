"""Faults by the resource's spec: what people change, and get wrong. All goes through the spec alone: how the operator
brings it about is its own affair. What was changed is changed back, or is harmless and stays.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from migratory_chaos_k8s.faults import Fault, Scene
from migratory_chaos_k8s.target import BROKER, ZOOKEEPER, Target

NOT_THERE = "migratory-broker:no-such-image"
ROLL_SECONDS = 400.0
"""Three pods, one after the other, each behind a cluster that is whole."""
WRONG_IMAGE = ("ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull")


def uids(target: Target, component: str) -> dict[str, str]:
    return {name: pod["metadata"]["uid"] for name, pod in target.pods(component).items()}


def spec_of(target: Target, *path: str) -> Any:
    """None where the spec says nothing."""
    found: Any = target.resource()["spec"]
    for key in path:
        found = (found or {}).get(key)
    return found


@dataclass(frozen=True)
class BadImage(Fault):
    """An image that is nowhere, and then the one before again. The brokers that run must go on: one less at most."""

    def strike(self, scene: Scene) -> None:
        target = scene.target
        before = spec_of(target, "brokers", "image")
        wanted = target.replicas(BROKER)
        scene.blow(f"{target.name}-broker")
        try:
            target.kube.patch("mgc", target.name, {"spec": {"brokers": {"image": NOT_THERE}}})
            scene.happens("a pod that has no image", " or ".join(WRONG_IMAGE), lambda: waiting(target), ROLL_SECONDS)

            def told() -> tuple[bool, object]:
                status, reason = target.kube.condition(target.name, "Degraded")
                return status == "True" and reason in WRONG_IMAGE, f"{status} {reason}"

            scene.happens("the condition Degraded", "True, with that reason", told)
            ready = int(target.resource()["status"].get("readyBrokers", 0))
            scene.prove("brokers that take clients meanwhile", f">= {wanted - 1}", ready, ready >= wanted - 1)
        finally:
            target.kube.patch("mgc", target.name, {"spec": {"brokers": {"image": before}}})
            scene.left_alone()

        def good() -> tuple[bool, object]:
            images = {pod["spec"]["containers"][0]["image"] for pod in target.pods(BROKER).values()}
            return NOT_THERE not in images, ", ".join(sorted(images))

        scene.happens("no pod with that image", "the one before", good, ROLL_SECONDS)


def waiting(target: Target) -> tuple[bool, object]:
    """Whether a broker's container waits for an image that can't be had."""
    found = [
        f"{name}: {reason}"
        for name, pod in target.pods(BROKER).items()
        for one in pod.get("status", {}).get("containerStatuses") or ()
        if (reason := one.get("state", {}).get("waiting", {}).get("reason")) in WRONG_IMAGE
    ]
    return bool(found), ", ".join(found) or "none"


@dataclass(frozen=True)
class Configuration(Fault):
    """Another value in the brokers' configuration: every broker is made new."""

    def strike(self, scene: Scene) -> None:
        target = scene.target
        before = uids(target, BROKER)
        value = "2Mi" if spec_of(target, "limits", "queuePerClient") != "2Mi" else "1Mi"
        written = self.written(target)
        scene.blow(*sorted(before))
        target.kube.patch("mgc", target.name, {"spec": {"limits": {"queuePerClient": value}}})
        scene.left_alone()

        def other() -> tuple[bool, object]:
            now = self.written(target)
            return now != written, "another" if now != written else "the same"

        scene.happens("the configuration in the ConfigMap", "another", other)
        scene.replaced(before, ROLL_SECONDS)

    def written(self, target: Target) -> object:
        found = target.kube.get("configmap", f"{target.name}-broker") or {"data": {"broker.json": "{}"}}
        return json.loads(found["data"]["broker.json"])


@dataclass(frozen=True)
class Roll(Fault):
    """Other resources: every pod is made new, one after the other, brokers or ZooKeeper members."""

    component: str

    def strike(self, scene: Scene) -> None:
        target = scene.target
        before = uids(target, self.component)
        part, usual = {BROKER: ("brokers", 256), ZOOKEEPER: ("zookeeper", 160)}[self.component]
        value = f"{usual + 1}Mi" if spec_of(target, part, "resources", "requests", "memory") != f"{usual + 1}Mi" else (
            f"{usual}Mi"
        )  # fmt: skip
        scene.blow(*sorted(before))
        target.kube.patch("mgc", target.name, {"spec": {part: {"resources": {"requests": {"memory": value}}}}})
        scene.left_alone()
        scene.replaced(before, ROLL_SECONDS)

        def new() -> tuple[bool, object]:
            found = {
                pod["spec"]["containers"][0]["resources"]["requests"]["memory"]
                for pod in target.pods(self.component).values()
            }
            return found == {value}, ", ".join(sorted(found))

        scene.happens("the memory that its pods ask for", value, new, ROLL_SECONDS)


@dataclass(frozen=True)
class Scale(Fault):
    """One or two brokers more, and back. Between the two the cluster becomes whole."""

    more: int

    def strike(self, scene: Scene) -> None:
        target = scene.target
        usual = target.replicas(BROKER)
        before = uids(target, BROKER)
        new = [f"{target.name}-broker-{number}" for number in range(usual, usual + self.more)]
        scene.blow(*new)
        try:
            self.resize(target, usual + self.more)
            began = scene.now
            wrong = scene.whole()
            scene.notes["up_seconds"] = round(scene.now - began, 1)
            scene.prove("whole with more brokers", [], wrong)
            part = {name: (target.metrics(name) or {}).get(("migratory_member", ""), 0.0) for name in new}
            scene.prove("the new ones are members of every group", dict.fromkeys(new, 1.0), part)
            scene.notes["clients"] = self.clients(scene)
        finally:
            scene.blow(*new)
            self.resize(target, usual)
            scene.left_alone()

        def gone() -> tuple[bool, object]:
            left = sorted(set(target.pods(BROKER)) & set(new))
            return not left, ", ".join(left) or "none"

        scene.happens("pods of those that leave", "none", gone, ROLL_SECONDS)
        scene.prove("those that stay are the same", sorted(before.items()), sorted(uids(target, BROKER).items()))

    def resize(self, target: Target, replicas: int) -> None:
        target.kube("scale", "mgc", target.name, f"--replicas={replicas}")

    def clients(self, scene: Scene) -> dict[str, int]:
        return dict(scene.load.status().get("connections") or {})
