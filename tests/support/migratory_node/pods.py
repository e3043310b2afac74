"""Pods and clusters that tests create, and what they read from the operator's objects."""

from __future__ import annotations

import json
import os
import shlex
import uuid
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from migratory_node.kubectl import Kubectl, Object, condition_of, is_current

BROKER_IMAGE = os.environ.get("MIGRATORY_BROKER_IMAGE", "migratory-broker:0.1.0")
ZOOKEEPER_IMAGE = os.environ.get("MIGRATORY_ZOOKEEPER_IMAGE", "migratory-zookeeper:0.1.0")
RESULT = "RESULT:"
Cluster = Callable[..., str]
"""The fixture that makes a cluster: `cluster(spec, name, ready=True)` returns its name."""
Namespaces = Callable[[], AbstractContextManager[Kubectl]]
"""The fixture that makes namespaces: `with namespaces() as kube` creates one, and deletes it."""
SMALLEST: Object = {"brokers": {"replicas": 1}, "zookeeper": {"replicas": 1}, "delivery": {"minCopies": 1}}
"""The spec of the smallest cluster."""


class Pods:
    """Short-lived pods of the broker's image, which has the client and the load generator."""

    def __init__(self, kube: Kubectl) -> None:
        self._kube = kube

    def load(self, name: str, *options: str, **container_fields: Any) -> None:
        """Start `migratory bench run` with these options. Its result ends the pod's log."""
        command = (
            f"migratory bench run {shlex.join(options)} --json /tmp/result.json; echo {RESULT}; cat /tmp/result.json"
        )
        self.start(name, "-c", command, command=["/bin/sh"], **container_fields)

    def account(self, name: str, limit: float = 240.0) -> Object:
        """Wait until the load generator has ended, and return its counts. Its own verdict also considers whether the
        machine was too busy to send in time, which says nothing about losses."""
        _, log = self.end(name, limit)
        before, found, result = log.partition(f"{RESULT}\n")
        assert found, f"no result:\n{before}"
        account: Object = json.loads(result)
        return account

    def start(
        self,
        name: str,
        *arguments: str,
        volumes: Sequence[Object] = (),
        labels: Mapping[str, str] | None = None,
        trusted: str = "",
        **container_fields: Any,
    ) -> None:
        """Create a pod with these arguments of the image.

        :param trusted: the Secret whose `ca.crt` has the authorities that its clients trust; "" for the system's.
        """
        container: Object = {
            "name": "main",
            "image": BROKER_IMAGE,
            "imagePullPolicy": "IfNotPresent",
            "args": list(arguments),
            "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
            "securityContext": {"readOnlyRootFilesystem": True},
            **container_fields,
        }
        if trusted:
            container["env"] = [{"name": "SSL_CERT_FILE", "value": "/trusted/ca.crt"}]
            container["volumeMounts"].append({"name": "trusted", "mountPath": "/trusted"})
            volumes = [*volumes, {"name": "trusted", "secret": {"secretName": trusted}}]
        spec: Object = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "terminationGracePeriodSeconds": 1,
            "containers": [container],
            "volumes": [{"name": "tmp", "emptyDir": {}}, *volumes],
        }
        metadata = {"name": name, "labels": labels or {}}
        self._kube.apply({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})

    def log(self, name: str) -> str:
        return self._kube("logs", name)

    def end(self, name: str, limit: float = 120.0) -> tuple[str, str]:
        """Wait for the end of a pod. Return its phase and log. Raise AssertionError after `limit` seconds."""

        def ended() -> str:
            phase = (self._kube.get("pod", name) or {}).get("status", {}).get("phase", "")
            return phase if phase in ("Succeeded", "Failed") else ""

        return self._kube.until(ended, f"the end of pod {name}", limit), self.log(name)


def is_ready(pod: Object) -> bool:
    """Return whether a pod is ready and not being deleted."""
    conditions = pod.get("status", {}).get("conditions") or ()
    ready = any(one["type"] == "Ready" and one["status"] == "True" for one in conditions)
    return ready and "deletionTimestamp" not in pod["metadata"]


def make_cluster(kube: Kubectl, spec: Object | None = None, name: str = "quotes", *, ready: bool = True) -> str:
    """Make a cluster that fits a small node, wait until it is ready if `ready`, and return its name."""
    wanted = spec or {}
    brokers = {"drain": {"period": "2s"}, **wanted.get("brokers", {})}
    small: Object = {"topics": {"groups": 20}, **wanted, "brokers": brokers}
    kube.apply(
        {
            "apiVersion": "migratory.dev/v1alpha1",
            "kind": "MigratoryCluster",
            "metadata": {"name": name},
            "spec": small,
        }
    )
    if ready:
        kube.wait_ready(name)
    return name


def weights(kube: Kubectl) -> list[int]:
    """Return the weights of the servers of the cluster "quotes", in the order of its status."""
    return [one["weight"] for one in (kube.get("mgc", "quotes") or {})["status"]["servers"]]


def weigh(kube: Kubectl, weight: int) -> None:
    """Give the first broker of the cluster "quotes" another weight."""
    kube.patch("mgc", "quotes", {"spec": {"brokers": {"weights": {"quotes-broker-0": weight}}}})


def is_settled(kube: Kubectl, name: str = "quotes") -> bool:
    """Return whether the operator has nothing left to do for the current spec."""
    found = kube.get("mgc", name) or {}
    return is_current(found) and condition_of(found, "Progressing") == ("False", "Settled")


def wait_settled(kube: Kubectl, name: str = "quotes", limit: float = 300.0) -> Object:
    """Wait until the cluster is settled and ready, and return it. Raise AssertionError after `limit` seconds."""
    kube.until(lambda: is_settled(kube, name), f"{name} settled", limit)
    return kube.wait_ready(name)


def urls(kube: Kubectl, name: str) -> str:
    """Return the URLs of the servers in a cluster's status, separated by commas as commands take them."""
    status = (kube.get("mgc", name) or {}).get("status", {})
    return ",".join(server["url"] for server in status["servers"])


def listed_urls(kube: Kubectl, name: str) -> list[str]:
    """Return the URLs of the servers in the ConfigMap of the server list."""
    data = (kube.get("configmap", f"{name}-servers") or {}).get("data", {})
    return [server["url"] for server in json.loads(data["servers.json"])["servers"]]


def create_namespace(kubeconfig: Path) -> Kubectl:
    """Create a namespace, and return kubectl for it.

    MIGRATORY_TEST_NAMESPACE names it, for an operator outside of the cluster that watches that one alone.
    """
    kube = Kubectl(kubeconfig, os.environ.get("MIGRATORY_TEST_NAMESPACE") or f"test-{uuid.uuid4().hex[:8]}")
    kube("create", "namespace", kube.namespace)
    return kube


def delete_namespace(kube: Kubectl) -> None:
    """Delete a namespace with all that is in it, which must take less than a minute and a half."""
    kube("delete", "namespace", kube.namespace, "--timeout=90s", limit=120)
