"""What tests run in the cluster beside what the operator runs there, and what they read of it."""

from __future__ import annotations

import json
import os
import shlex
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from migratory_node.kubectl import Kubectl, Object

BROKER_IMAGE = os.environ.get("MIGRATORY_BROKER_IMAGE", "migratory-broker:0.1.0")
ZOOKEEPER_IMAGE = os.environ.get("MIGRATORY_ZOOKEEPER_IMAGE", "migratory-zookeeper:0.1.0")
RESULT = "RESULT:"
Cluster = Callable[..., str]
"""The fixture that makes a cluster: `cluster(spec, name, ready=True)` gives its name."""
ONE: Object = {"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}}
"""The smallest cluster that there is."""


class Pods:
    """Short-lived pods of the broker's image, which has the client and the load generator."""

    def __init__(self, kube: Kubectl) -> None:
        self._kube = kube

    def load(self, name: str, *options: str, **container_fields: Any) -> None:
        """`migratory bench run` with these options; its result stands at the end of the pod's log."""
        command = (
            f"migratory bench run {shlex.join(options)} --json /tmp/result.json; echo {RESULT}; cat /tmp/result.json"
        )
        self.start(name, "-c", command, command=["/bin/sh"], **container_fields)

    def account(self, name: str, limit: float = 240.0) -> Object:
        """What the load generator counted, once it has ended. Its own verdict also minds a machine that was too busy
        to send in time, which says nothing about what was lost."""
        _, log = self.end(name, limit)
        before, found, result = log.partition(f"{RESULT}\n")
        assert found, f"no result:\n{before}"
        account: Object = json.loads(result)
        return account

    def start(self, name: str, *arguments: str, volumes: Sequence[Object] = (), **container_fields: Any) -> None:
        container: Object = {
            "name": "main",
            "image": BROKER_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "args": list(arguments),
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            "securityContext": {"readOnlyRootFilesystem": True},
            **container_fields,
        }
        spec: Object = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
        }
        self._kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec})

    def log(self, name: str) -> str:
        return self._kube("logs", name)

    def end(self, name: str, limit: float = 120.0) -> tuple[str, str]:
        """(phase, log) of a pod that has ended."""

        def ended() -> str:
            phase = (self._kube.get("pod", name) or {}).get("status", {}).get("phase", "")
            return phase if phase in ("Succeeded", "Failed") else ""

        return self._kube.until(ended, f"the end of pod {name}", limit), self.log(name)


def make_cluster(kube: Kubectl, spec: Object | None = None, name: str = "quotes", *, ready: bool = True) -> str:
    """One that fits a small node; waits until it is ready unless told otherwise. Gives its name."""
    asked = spec or {}
    brokers = {"drain": {"period": "2s"}, **asked.get("brokers", {})}
    small: Object = {"topics": {"groups": 20}, **asked, "brokers": brokers}
    kube.apply(
        {
            "apiVersion": "migratory.dev/v1alpha1",
            "kind": "MigratoryCluster",
            "metadata": {"name": name},
            "spec": small,
        }
    )
    if ready:
        kube.ready(name)
    return name


def is_settled(kube: Kubectl, name: str = "quotes") -> bool:
    """Whether the operator has nothing left to do for its present spec."""
    found = kube.get("mgc", name) or {}
    current = found.get("status", {}).get("observedGeneration") == found.get("metadata", {}).get("generation")
    return current and kube.condition(name, "Progressing") == ("False", "Settled")


def settled(kube: Kubectl, name: str = "quotes", limit: float = 300.0) -> Object:
    """The cluster once that is so, and it is ready."""
    kube.until(lambda: is_settled(kube, name), f"{name} settled", limit)
    return kube.ready(name)


def urls(kube: Kubectl, name: str) -> str:
    """The servers of a cluster's status, as commands take them."""
    status = (kube.get("mgc", name) or {}).get("status", {})
    return ",".join(server["url"] for server in status["servers"])


def listed(kube: Kubectl, name: str) -> list[str]:
    """The URLs in the server list's ConfigMap."""
    data = (kube.get("configmap", f"{name}-servers") or {}).get("data", {})
    return [server["url"] for server in json.loads(data["servers.json"])["servers"]]


def own_namespace(kubeconfig: Path) -> Iterator[Kubectl]:
    """A namespace, which must be gone within a minute and a half of its deletion.

    MIGRATORY_TEST_NAMESPACE names it, for an operator outside of the cluster that cares for that one alone.
    """
    kube = Kubectl(kubeconfig, os.environ.get("MIGRATORY_TEST_NAMESPACE") or f"test-{uuid.uuid4().hex[:8]}")
    kube("create", "namespace", kube.namespace)
    yield kube
    kube("delete", "namespace", kube.namespace, "--timeout=90s", limit=120)
