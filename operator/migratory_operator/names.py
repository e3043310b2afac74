"""Names, labels, ports and owners of everything that the operator makes; pure.

Names are those of the cluster with a short ending. A cluster's name has 40 characters at most, so that the longest one,
of a StatefulSet, stays within the 52 that leave room for the revision in its pods' labels.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as the API has it."""

FIELD_MANAGER = "migratory-operator"
PREFIX = "migratory.dev"
PAUSED = f"{PREFIX}/paused"
CONFIG_HASH = f"{PREFIX}/config"
"""Of a pod template: what the pods have read. Another one makes them new."""
COMMON_HASH = f"{PREFIX}/common-config"
URL_HASHES = f"{PREFIX}/urls"
"""Of the brokers' StatefulSet: what all brokers read but for the list of them; each broker's URL, in their order."""
REVISION = "controller-revision-hash"
"""The label by which a StatefulSet tells its pods' revisions."""

CLIENTS_PORT = 8080
PEERS_PORT = 8081
ADMIN_PORT = 8082
ZOOKEEPER_PORT = 2181
QUORUM_PORT = 2888
ELECTION_PORT = 3888

BROKER = "broker"
ZOOKEEPER = "zookeeper"


@dataclass(frozen=True)
class Owner:
    """The resource that everything belongs to: it is gone when the resource is."""

    name: str
    namespace: str
    uid: str
    api_version: str
    kind: str

    @classmethod
    def of(cls, resource: Object) -> Owner:
        metadata = resource["metadata"]
        return cls(metadata["name"], metadata["namespace"], metadata["uid"], resource["apiVersion"], resource["kind"])

    @property
    def reference(self) -> Object:
        # No blockOwnerDeletion: where the API checks it, setting it needs leave to update the owner's finalizers.
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def owns(self, thing: Object) -> bool:
        references = thing["metadata"].get("ownerReferences", ())
        return any(reference["uid"] == self.uid for reference in references)


def selector(cluster: str, component: str | None = None) -> dict[str, str]:
    """Labels that belong to this cluster's objects and to no other's."""
    labels = {"app.kubernetes.io/name": "migratory", "app.kubernetes.io/instance": cluster}
    return labels if component is None else {**labels, "app.kubernetes.io/component": component}


def labels(cluster: str, component: str) -> dict[str, str]:
    return {**selector(cluster, component), "app.kubernetes.io/managed-by": FIELD_MANAGER}


def as_text(chosen: Mapping[str, str]) -> str:
    """A label selector in the form of a query."""
    return ",".join(f"{key}={value}" for key, value in sorted(chosen.items()))


def brokers_name(cluster: str) -> str:
    """The StatefulSet, the headless Service and the configuration of the brokers."""
    return f"{cluster}-{BROKER}"


def zookeeper_name(cluster: str) -> str:
    return f"{cluster}-{ZOOKEEPER}"


def clients_name(cluster: str) -> str:
    """The Service that leads a client to some ready broker, which tells it of all."""
    return f"{cluster}-clients"


def servers_name(cluster: str) -> str:
    """The ConfigMap with the server list."""
    return f"{cluster}-servers"


def pod_host(pod: str, service: str, namespace: str) -> str:
    """A pod's name in the cluster's DNS."""
    return f"{pod}.{service}.{namespace}.svc"


def thing(api_version: str, kind: str, name: str, component: str, owner: Owner, **fields: Any) -> Object:
    """One object of the cluster, with its labels and its owner."""
    return {
        "apiVersion": api_version,
        "kind": kind,
        "metadata": {
            "name": name,
            "namespace": owner.namespace,
            "labels": labels(owner.name, component),
            "ownerReferences": [owner.reference],
        },
        **fields,
    }
