"""Builders of the access control of a cluster: the pods' service account, which has no permissions, and the network
policies; pure."""

from __future__ import annotations

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner, build_object
from migratory_operator.settings import OperatorSettings


def objects(cluster: KubernetesCluster, owner: ResourceOwner, settings: OperatorSettings) -> list[Object]:
    """Return the pods' service account, the brokers' network policy, and ZooKeeper's unless the ensemble is
    external."""
    built = [
        build_object("v1", "ServiceAccount", owner.name, names.BROKER, owner, automountServiceAccountToken=False),
        _broker_policy(owner),
    ]
    if cluster.spec.zookeeper.external is None:
        built.append(_zookeeper_policy(owner, settings))
    return built


def _broker_policy(owner: ResourceOwner) -> Object:
    pods = names.selector(owner.name, names.BROKER)
    return _policy(
        names.brokers_name(owner.name),
        names.BROKER,
        owner,
        [
            {"ports": [_tcp(names.CLIENTS_PORT)]},
            {"from": [{"podSelector": {"matchLabels": pods}}], "ports": [_tcp(names.PEERS_PORT)]},
            # Open to all pods, as the namespaces of Prometheus and the operator are not known here. It is read-only.
            {"from": [{"namespaceSelector": {}}], "ports": [_tcp(names.ADMIN_PORT)]},
        ],
    )


def _zookeeper_policy(owner: ResourceOwner, settings: OperatorSettings) -> Object:
    members = {"podSelector": {"matchLabels": names.selector(owner.name, names.ZOOKEEPER)}}
    brokers = {"podSelector": {"matchLabels": names.selector(owner.name, names.BROKER)}}
    # The operator asks for the leader before it replaces members.
    operator = {
        "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": settings.own_namespace}},
        "podSelector": {"matchLabels": {"app.kubernetes.io/name": names.FIELD_MANAGER}},
    }
    clients = [brokers, members, *([operator] if settings.own_namespace else [])]
    return _policy(
        names.zookeeper_name(owner.name),
        names.ZOOKEEPER,
        owner,
        [
            {"from": clients, "ports": [_tcp(names.ZOOKEEPER_PORT)]},
            {"from": [members], "ports": [_tcp(names.QUORUM_PORT), _tcp(names.ELECTION_PORT)]},
        ],
    )


def _policy(name: str, component: str, owner: ResourceOwner, ingress: list[Object]) -> Object:
    spec = {
        "podSelector": {"matchLabels": names.selector(owner.name, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return build_object("networking.k8s.io/v1", "NetworkPolicy", name, component, owner, spec=spec)


def _tcp(port: int) -> Object:
    return {"protocol": "TCP", "port": port}
