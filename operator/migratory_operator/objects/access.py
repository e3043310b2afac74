"""Who may reach what: the pods' identity, which may do nothing, and the network policies; pure."""

from __future__ import annotations

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object, Owner, thing
from migratory_operator.settings import Settings


def objects(cluster: KubernetesCluster, owner: Owner, settings: Settings) -> list[Object]:
    made = [
        thing("v1", "ServiceAccount", owner.name, names.BROKER, owner, automountServiceAccountToken=False),
        _brokers(owner),
    ]
    if cluster.spec.zookeeper.external is None:
        made.append(_zookeeper(owner, settings))
    return made


def _brokers(owner: Owner) -> Object:
    pods = names.selector(owner.name, names.BROKER)
    return _policy(
        names.brokers_name(owner.name),
        names.BROKER,
        owner,
        [
            {"ports": [_tcp(names.CLIENTS_PORT)]},
            {"from": [{"podSelector": {"matchLabels": pods}}], "ports": [_tcp(names.PEERS_PORT)]},
            # Any pod may look, as Prometheus and the operator do, whose namespaces nobody knows here. It only tells.
            {"from": [{"namespaceSelector": {}}], "ports": [_tcp(names.ADMIN_PORT)]},
        ],
    )


def _zookeeper(owner: Owner, settings: Settings) -> Object:
    members = {"podSelector": {"matchLabels": names.selector(owner.name, names.ZOOKEEPER)}}
    brokers = {"podSelector": {"matchLabels": names.selector(owner.name, names.BROKER)}}
    # The operator asks who leads before it replaces members.
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


def _policy(name: str, component: str, owner: Owner, ingress: list[Object]) -> Object:
    spec = {
        "podSelector": {"matchLabels": names.selector(owner.name, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return thing("networking.k8s.io/v1", "NetworkPolicy", name, component, owner, spec=spec)


def _tcp(number: int) -> Object:
    return {"protocol": "TCP", "port": number}
