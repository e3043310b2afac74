"""Names, labels, ports and owner references of the objects that the operator creates; pure.

An object is named like its cluster, mostly with a short suffix. A cluster's name has at most 40 characters, so that
the longest name of a StatefulSet stays within the 52 that leave room for the revision in the labels of its pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

Object = dict[str, Any]
"""A Kubernetes object as the API represents it."""

FIELD_MANAGER = "migratory-operator"
"""The operator's field manager, and the value of the label `managed-by` and the name of the Leases."""
PREFIX = "migratory.dev"
"""The domain in the names of the product's own annotations and labels."""
PAUSED = f"{PREFIX}/paused"
"""Annotation that, with the value "true", stops the operator from changing a cluster's objects and pods. The operator
still writes the cluster's status, and still makes its reports."""
CONFIG_HASH = f"{PREFIX}/config"
"""Annotation of a pod template: the hash of the configuration that pods read at start. A change replaces the pods."""
COMMON_HASH = f"{PREFIX}/common-config"
URL_HASHES = f"{PREFIX}/urls"
"""Annotations of the brokers' StatefulSet: the hash of the configuration that all brokers share, without the parts that
they read again while they run; the hash of each broker's URL, in the order of their ordinals."""
HAS_DATA = f"{PREFIX}/has-data"
"""Annotation of a ZooKeeper member's volume claim: with the value "true", the member has served with this volume, so an
empty one is a loss."""
REVISION = "controller-revision-hash"
"""Label by which a StatefulSet marks its pods' revisions."""

CLIENTS_PORT = 8080
PEERS_PORT = 8081
ADMIN_PORT = 8082
ZOOKEEPER_PORT = 2181
ZOOKEEPER_TLS_PORT = 2281
"""The clients' port of members that accept TLS alone. Their port 2181 is open inside of the pod only, for its probe."""
QUORUM_PORT = 2888
ELECTION_PORT = 3888

TLS_VOLUME = "tls"
"""The volume of a ZooKeeper member that accepts TLS alone."""

BROKER = "broker"
ZOOKEEPER = "zookeeper"


@dataclass(frozen=True)
class ResourceOwner:
    """The cluster or report that owns the objects which the operator creates for it. Kubernetes deletes the objects
    after their owner."""

    name: str
    namespace: str
    uid: str
    api_version: str
    kind: str

    @classmethod
    def of(cls, resource: Object) -> ResourceOwner:
        """Return this cluster or report as the owner of the objects that are created for it."""
        metadata = resource["metadata"]
        return cls(metadata["name"], metadata["namespace"], metadata["uid"], resource["apiVersion"], resource["kind"])

    @property
    def reference(self) -> Object:
        """The entry of an object's `ownerReferences` that names this owner."""
        # No blockOwnerDeletion: some API servers require permission to update the owner's finalizers for it.
        return {
            "apiVersion": self.api_version,
            "kind": self.kind,
            "name": self.name,
            "uid": self.uid,
            "controller": True,
        }

    def owns(self, owned: Object) -> bool:
        """Return whether an object has an owner reference with this owner's uid."""
        references = owned["metadata"].get("ownerReferences", ())
        return any(reference["uid"] == self.uid for reference in references)


def selector(cluster: str, component: str | None = None) -> dict[str, str]:
    """Return the labels that select the objects of this cluster; with a component, only the objects of the
    component."""
    labels = {"app.kubernetes.io/name": "migratory", "app.kubernetes.io/instance": cluster}
    return labels if component is None else {**labels, "app.kubernetes.io/component": component}


def labels(cluster: str, component: str) -> dict[str, str]:
    """Return the labels that an object of this component of the cluster gets: those of `selector`, and the operator as
    manager."""
    return {**selector(cluster, component), "app.kubernetes.io/managed-by": FIELD_MANAGER}


def selector_text(chosen: Mapping[str, str]) -> str:
    """Return labels as the text of a label selector, sorted by key: `a=b,c=d`."""
    return ",".join(f"{key}={value}" for key, value in sorted(chosen.items()))


def brokers_name(cluster: str) -> str:
    """Return the name that the brokers' StatefulSet, headless Service, ConfigMap and other objects have."""
    return f"{cluster}-{BROKER}"


def zookeeper_name(cluster: str) -> str:
    """Return the name that the StatefulSet, headless Service, ConfigMap and other objects of the ZooKeeper ensemble
    have."""
    return f"{cluster}-{ZOOKEEPER}"


def clients_name(cluster: str) -> str:
    """Return the name of the Service that leads a client to any ready broker, which then sends the client the server
    list."""
    return f"{cluster}-clients"


def servers_name(cluster: str) -> str:
    """Return the name of the ConfigMap with the server list."""
    return f"{cluster}-servers"


def pod_host(pod: str, service: str, namespace: str) -> str:
    """Return the DNS name, inside Kubernetes, of a pod of the headless Service `service`."""
    return f"{pod}.{service}.{namespace}.svc"


def build_object(api_version: str, kind: str, name: str, component: str, owner: ResourceOwner, **fields: Any) -> Object:
    """Return an object of a cluster's component, in the cluster's namespace, with the labels of the component and the
    cluster as its owner.

    :param owner: the cluster.
    :param fields: the top-level fields beside `metadata`, such as `spec` or `data`.
    """
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
