"""The node of a cluster in an external ZooKeeper ensemble; pure.

The node's path contains the namespace, as clusters of other namespaces may have the same name. Clusters of older
operators have the brokers' default node, and keep it: brokers with different nodes would not know of each other.
"""

from __future__ import annotations

import json

from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.cluster.process_config import DEFAULT_ZOOKEEPER_PATH

from migratory_operator import names
from migratory_operator.names import PREFIX, ResourceOwner
from migratory_operator.reconcile.observed import ObservedCluster


def default_zookeeper_path(owner: ResourceOwner) -> str:
    """Return the path of the node that brokers use if their configuration names none. It contains the cluster's name
    only."""
    return DEFAULT_ZOOKEEPER_PATH.format(cluster=owner.name)


def zookeeper_path(cluster: KubernetesCluster, observed: ObservedCluster) -> str | None:
    """Return the path of the node below which the cluster's nodes are in an external ensemble; None for a cluster
    without an external ensemble.

    A recorded path comes first: that of the status, else that of the brokers' ConfigMap, which is created before any
    broker and thus before the status has the path. A cluster of an older operator, with brokers' objects that name no
    path, has the default path. A new cluster gets a path with its namespace.
    """
    if cluster.spec.zookeeper.external is None:
        return None
    if recorded := observed.status.get("zookeeper", {}).get("path"):
        return str(recorded)
    owner = observed.owner
    name = names.brokers_name(owner.name)
    if (config_map := observed.objects.get(("ConfigMap", name))) is not None:
        try:
            return str(json.loads(config_map["data"]["broker.json"])["zookeeper"]["path"])
        except (KeyError, ValueError, TypeError):
            return default_zookeeper_path(owner)
    if ("StatefulSet", name) in observed.objects:
        return default_zookeeper_path(owner)
    return f"{cluster.spec.zookeeper.chroot or ''}/{PREFIX}/{owner.namespace}/{owner.name}"
