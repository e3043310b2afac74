"""Builders: from a cluster to the Kubernetes objects of which it consists. Pure: no clock, no API, no environment.

`desired` combines the modules of this package. The tests compare its results with YAML files, one pair per case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator.names import Object, ResourceOwner
from migratory_operator.objects import access, brokers, exposure, zookeeper
from migratory_operator.settings import OperatorSettings


def desired(
    cluster: KubernetesCluster,
    owner: ResourceOwner,
    settings: OperatorSettings,
    urls: Mapping[str, str],
    ready: Set[str],
    leaving: Sequence[str] = (),
    zookeeper_path: str | None = None,
    membership: zookeeper.MemberInstructions = zookeeper.ALL_MEMBERS,
) -> list[Object]:
    """Return all objects that a cluster should have, in the order of their creation: a pod's dependencies come before
    the pod.

    The brokers' StatefulSet, ConfigMap and disruption budget are left out until the URLs of all brokers are known,
    because each broker sends clients the URLs of the others.

    :param urls: the known URLs for clients, by broker.
    :param ready: the names of the brokers that accept clients.
    :param leaving: the names of the brokers that will be removed.
    :param zookeeper_path: the cluster's node in an external ensemble; None for the brokers' default.
    :param membership: what ZooKeeper's members are told about their ensemble.
    """
    built = [
        *access.objects(cluster, owner, settings),
        *brokers.services(cluster, owner),
        *exposure.services(cluster, owner),
        brokers.service_monitor(cluster, owner, settings),
        exposure.server_list(owner, exposure.server_entries(cluster, urls, ready)),
        *zookeeper.objects(cluster, owner, settings, membership),
    ]
    if set(urls) >= set(cluster.broker_names):
        built += brokers.objects(cluster, owner, settings, urls, leaving, zookeeper_path)
    return built
