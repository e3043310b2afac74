"""Builders: from a cluster to the Kubernetes objects that it is made of. Pure: no clock, no API, no environment.

`desired` puts the parts together; each part is a module. The tests hold them against YAML files, one pair a case.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator.names import Object, Owner
from migratory_operator.objects import access, brokers, exposure, monitor, servers, zookeeper
from migratory_operator.settings import Settings


def desired(
    cluster: KubernetesCluster,
    owner: Owner,
    settings: Settings,
    urls: Mapping[str, str],
    ready: Set[str],
    leaving: Sequence[str] = (),
) -> list[Object]:
    """Everything, in the order in which it is made: what pods need comes before them.

    While a broker's URL is not known there are no brokers: each of them tells the others' clients its own.

    :param urls: of brokers, as far as they are known.
    :param ready: the brokers that take clients now.
    :param leaving: the brokers that the cluster will do without.
    """
    made = [
        *access.objects(cluster, owner, settings),
        *brokers.services(cluster, owner),
        *exposure.services(cluster, owner),
        *monitor.objects(owner, settings),
        servers.config_map(owner, servers.entries(cluster, urls, ready)),
        *zookeeper.objects(cluster, owner, settings),
    ]
    if set(urls) >= set(cluster.broker_names):
        made += brokers.objects(cluster, owner, settings, urls, leaving)
    return made
