"""Builders of the access control of a cluster: the pods' service account, which has no permissions, and the network
policies; pure."""

from __future__ import annotations

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner, build_object
from migratory_operator.objects import zookeeper
from migratory_operator.objects.templates import annotate
from migratory_operator.settings import OperatorSettings


def objects(cluster: KubernetesCluster, owner: ResourceOwner, settings: OperatorSettings) -> list[Object]:
    """Return the pods' service account, the brokers' network policy, and that of ZooKeeper's members unless the
    ensemble is external."""
    account = build_object("v1", "ServiceAccount", owner.name, names.BROKER, owner, automountServiceAccountToken=False)
    template = cluster.spec.brokers.pod
    built = [
        annotate(account, template.service_account_annotations if template is not None else {}),
        _broker_policy(owner, settings),
    ]
    if cluster.spec.zookeeper.external is None:
        clients_port = zookeeper.clients_port(cluster)
        built.append(_zookeeper_policy(owner, settings, clients_port))
    return built


def _broker_policy(owner: ResourceOwner, settings: OperatorSettings) -> Object:
    """Return the network policy of the brokers: everybody may reach the clients' port, brokers of the cluster the
    peers' port, and the operator and the pods of `settings.monitors` the administration."""
    pods = names.selector(owner.name, names.BROKER)
    ingress: list[Object] = [
        {"ports": [_tcp(names.CLIENTS_PORT)]},
        {"from": [{"podSelector": {"matchLabels": pods}}], "ports": [_tcp(names.PEERS_PORT)]},
    ]
    # A rule with an empty list of sources would allow all.
    if readers := [*_operator(settings), *(_monitor(*monitor) for monitor in settings.monitors)]:
        ingress.append({"from": readers, "ports": [_tcp(names.ADMIN_PORT)]})
    return _policy(names.brokers_name(owner.name), names.BROKER, owner, ingress)


def _operator(settings: OperatorSettings) -> list[Object]:
    """Return the operator's pods as the source of a rule, in a list of one; an empty list if the operator does not run
    in a pod."""
    label = f"app.kubernetes.io/name={names.FIELD_MANAGER}"
    return [_monitor(settings.own_namespace, label)] if settings.own_namespace else []


def _monitor(namespace: str, label: str) -> Object:
    """Return the source of a rule: the pods with this label, `NAME=VALUE` or "" for all, in this namespace, "*" for
    all."""
    name, _, value = label.partition("=")
    labels: Object = {} if namespace == "*" else {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    return {"namespaceSelector": labels} | ({"podSelector": {"matchLabels": {name: value}}} if label else {})


def _zookeeper_policy(owner: ResourceOwner, settings: OperatorSettings, clients_port: int) -> Object:
    """Return the network policy of ZooKeeper's members: brokers, members and the operator may reach the clients' port,
    and only members the ports of the quorum."""
    members = {"podSelector": {"matchLabels": names.selector(owner.name, names.ZOOKEEPER)}}
    brokers = {"podSelector": {"matchLabels": names.selector(owner.name, names.BROKER)}}
    # The operator asks for the leader before it replaces members.
    clients = [brokers, members, *_operator(settings)]
    return _policy(
        names.zookeeper_name(owner.name),
        names.ZOOKEEPER,
        owner,
        [
            {"from": clients, "ports": [_tcp(clients_port)]},
            {"from": [members], "ports": [_tcp(names.QUORUM_PORT), _tcp(names.ELECTION_PORT)]},
        ],
    )


def _policy(name: str, component: str, owner: ResourceOwner, ingress: list[Object]) -> Object:
    """Return a network policy by which a component's pods accept only the connections that the rules `ingress`
    allow."""
    spec = {
        "podSelector": {"matchLabels": names.selector(owner.name, component)},
        "policyTypes": ["Ingress"],
        "ingress": ingress,
    }
    return build_object("networking.k8s.io/v1", "NetworkPolicy", name, component, owner, spec=spec)


def _tcp(port: int) -> Object:
    return {"protocol": "TCP", "port": port}
