"""Builders of the objects of the ZooKeeper ensemble; pure.

Members start in parallel, and their DNS names are published before they are ready: otherwise the ensemble would wait
for its first member, which waits for a quorum. A member's id is its ordinal + 1.

The ConfigMap has, beside the members' configuration, three files that replace no pod: `members`, the members that a pod
without data of its own knows at first; `reconfigure`, the change that the leader should make; and `founded`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.cluster.process_config import ZOOKEEPER_LOG4J, zookeeper_config, zookeeper_tls_lines
from migratory_resources.quantities import format_size

from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner, build_object
from migratory_operator.objects.pods import ON_DELETE, container, from_field, pod_template, port, service_port
from migratory_operator.objects.templates import merge_template
from migratory_operator.settings import OperatorSettings

_GRACE_SECONDS = 15
"""Seconds from SIGTERM to SIGKILL. A member has nothing to hand over."""
_MEMORY_LIMIT = 512 * 2**20
"""Default memory limit of a member in bytes. Its heap has 96 MiB, and its direct buffers as much."""
# Commands in the image. Configuration is in /etc/zookeeper, data in /data.
_MEMBER = "/opt/zookeeper/bin/member"
_HAS_QUORUM = "/opt/zookeeper/bin/has-quorum"

_SECRET = "/etc/zookeeper-tls"
"""The folder with the Secret of `spec.security.tls.zookeeper`."""
_CERTIFICATES = "/run/zookeeper-tls"
"""The folder into which the member's command writes the files that ZooKeeper reads, from the Secret, and again when the
Secret changes."""

# Java caches a failed DNS lookup for ten seconds, which would delay the members' start by that time.
_JAVA_SECURITY = "networkaddress.cache.ttl=1\nnetworkaddress.cache.negative.ttl=0\n"


@dataclass(frozen=True)
class MemberInstructions:
    """The files that tell members about their ensemble, beside their configuration."""

    voters: Sequence[int] | None = None
    """Ids of the voting members; None for the members of all pods that there may be."""
    reconfiguration: tuple[int, Sequence[int]] | None = None
    """The version of the ensemble's configuration from which the leader should change it, and the ids of the voting
    members afterwards; None for no change."""
    is_founded: bool = False
    """True if the members have data, so that one without any lost it, or joins, and does not vote before it has
    copied them."""


ALL_MEMBERS = MemberInstructions()
"""The instructions of members of whose ensemble nothing is known."""


def servers(cluster: KubernetesCluster, owner: ResourceOwner) -> str:
    """Return ZooKeeper's connection string for the brokers, `host:port,…`: of the external ensemble if there is one,
    else of the cluster's own members."""
    external = cluster.spec.zookeeper.external
    if external is not None:
        return external
    return ",".join(f"{host}:{clients_port(cluster)}" for host in _hosts(cluster, owner))


def clients_port(cluster: KubernetesCluster) -> int:
    """Return the port of the cluster's own members for brokers and the operator: another one if members accept TLS
    alone."""
    return names.ZOOKEEPER_PORT if cluster.spec.security.tls.zookeeper is None else names.ZOOKEEPER_TLS_PORT


def objects(
    cluster: KubernetesCluster, owner: ResourceOwner, settings: OperatorSettings, membership: MemberInstructions
) -> list[Object]:
    """Return the ensemble's ConfigMap, Service and StatefulSet, and a disruption budget if there are several members;
    nothing with an external ensemble."""
    if cluster.spec.zookeeper.external is not None:
        return []
    configuration = {
        "zoo.cfg": _zoo_cfg(cluster, []),
        "log4j2.properties": ZOOKEEPER_LOG4J,
        "java.security": _JAVA_SECURITY,
    }
    # Members of an older image read all members here, and ours none: they are no part of what replaces pods.
    members = {"zoo.cfg": _zoo_cfg(cluster, _hosts(cluster, owner))}
    name = names.zookeeper_name(owner.name)
    built = [
        build_object(
            "v1",
            "ConfigMap",
            name,
            names.ZOOKEEPER,
            owner,
            data=configuration | members | _membership(cluster, owner, membership),
        ),
        _service(name, owner, clients_port(cluster)),
        _stateful_set(name, cluster, owner, configuration, settings),
    ]
    if cluster.spec.zookeeper.replicas > 1:
        built.append(_budget(name, owner))
    return built


def _hosts(cluster: KubernetesCluster, owner: ResourceOwner) -> list[str]:
    """Return the DNS names of the cluster's own members, in the order of their ordinals."""
    name = names.zookeeper_name(owner.name)
    return [
        names.pod_host(f"{name}-{ordinal}", name, owner.namespace) for ordinal in range(cluster.spec.zookeeper.replicas)
    ]


def _membership(cluster: KubernetesCluster, owner: ResourceOwner, membership: MemberInstructions) -> dict[str, str]:
    """Return the files of the ConfigMap about the members of the ensemble, by name."""
    present = set(range(1, cluster.spec.zookeeper.replicas + 1))
    files = {"members": _server_lines(owner, present if membership.voters is None else present | {*membership.voters})}
    if membership.reconfiguration is not None:
        version, members = membership.reconfiguration
        files["reconfigure"] = f"version={version:x}\n{_server_lines(owner, members)}"
    if membership.is_founded:
        files["founded"] = "true"
    return files


def _server_lines(owner: ResourceOwner, members: Iterable[int]) -> str:
    """Return the lines of a ZooKeeper configuration that name these members, by id."""
    name = names.zookeeper_name(owner.name)
    hosts = {member: names.pod_host(f"{name}-{member - 1}", name, owner.namespace) for member in sorted(members)}
    ports = f"{names.QUORUM_PORT}:{names.ELECTION_PORT}:participant"
    return "".join(f"server.{member}={host}:{ports}\n" for member, host in hosts.items())


def _zoo_cfg(cluster: KubernetesCluster, hosts: Sequence[str]) -> str:
    """Return the text of the members' configuration file, `zoo.cfg`, which is the same for all of them, with the
    members on these hosts."""
    extra_lines = [
        "autopurge.snapRetainCount=3",
        "autopurge.purgeInterval=1",
        # A pod's own name may not resolve yet when it starts, or to the address of the previous pod.
        "quorumListenOnAllIPs=true",
    ]
    if cluster.spec.security.tls.zookeeper is not None:
        # The probe's own port: no Secret has a certificate for a command inside of the pod.
        extra_lines.append("clientPortAddress=127.0.0.1")
        files = f"{_CERTIFICATES}/member.pem", f"{_CERTIFICATES}/ca.crt"
        extra_lines += zookeeper_tls_lines(names.ZOOKEEPER_TLS_PORT, *files)
    members = [f"{host}:{names.QUORUM_PORT}:{names.ELECTION_PORT}" for host in hosts]
    return zookeeper_config("/data", names.ZOOKEEPER_PORT, extra_lines, members)


def _service(name: str, owner: ResourceOwner, clients_port: int) -> Object:
    """Return the headless Service of the members, which also names members that are not ready."""
    spec = {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": names.selector(owner.name, names.ZOOKEEPER),
        "ports": [
            service_port("zookeeper", clients_port),
            service_port("quorum", names.QUORUM_PORT),
            service_port("election", names.ELECTION_PORT),
        ],
    }
    return build_object("v1", "Service", name, names.ZOOKEEPER, owner, spec=spec)


def _budget(name: str, owner: ResourceOwner) -> Object:
    """Return the members' disruption budget: drains of nodes may evict one member at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(owner.name, names.ZOOKEEPER)}}
    return build_object("policy/v1", "PodDisruptionBudget", name, names.ZOOKEEPER, owner, spec=spec)


def _stateful_set(
    name: str,
    cluster: KubernetesCluster,
    owner: ResourceOwner,
    configuration: dict[str, str],
    settings: OperatorSettings,
) -> Object:
    """Return the StatefulSet of the members.

    :param configuration: the files of the ConfigMap, by name; a change replaces the pods.
    """
    zookeeper = cluster.spec.zookeeper
    volumes: list[Object] = [
        {"name": "config", "configMap": {"name": name}},
        {"name": "tmp", "emptyDir": {}},
    ]
    mounts: list[Object] = []
    if (certificate := cluster.spec.security.tls.zookeeper) is not None:
        # Keys are written to memory alone, as Kubernetes writes Secrets.
        volumes += [
            {"name": names.TLS_VOLUME, "secret": {"secretName": certificate.secret_name, "defaultMode": 0o440}},
            {"name": "certificates", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ]
        mounts += [
            {"name": names.TLS_VOLUME, "mountPath": _SECRET, "readOnly": True},
            {"name": "certificates", "mountPath": _CERTIFICATES},
        ]
    claims: list[Object] = []
    if zookeeper.storage.ephemeral:
        volumes.append({"name": "data", "emptyDir": {"sizeLimit": format_size(zookeeper.storage.size)}})
    else:
        claims.append(_claim(cluster, owner))
    member = container(
        "zookeeper",
        zookeeper.image or settings.zookeeper_image,
        zookeeper.resources,
        _MEMORY_LIMIT,
        settings,
        command=[_MEMBER],
        env=[from_field("POD_NAME", "metadata.name")],
        ports=[
            port("zookeeper", clients_port(cluster)),
            port("quorum", names.QUORUM_PORT),
            port("election", names.ELECTION_PORT),
        ],
        readinessProbe={
            "exec": {"command": [_HAS_QUORUM]},
            "periodSeconds": 3,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        livenessProbe={
            "tcpSocket": {"port": "zookeeper"},
            "initialDelaySeconds": 30,
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        volumeMounts=[
            {"name": "config", "mountPath": "/etc/zookeeper"},
            {"name": "data", "mountPath": "/data"},
            {"name": "tmp", "mountPath": "/tmp"},
            *mounts,
        ],
    )
    members = names.selector(owner.name, names.ZOOKEEPER)
    template = pod_template(
        owner, names.ZOOKEEPER, configuration, settings, _GRACE_SECONDS, containers=[member], volumes=volumes
    )
    spec: Object = {
        "serviceName": name,
        "replicas": zookeeper.replicas,
        "podManagementPolicy": "Parallel",
        "updateStrategy": ON_DELETE,
        "selector": {"matchLabels": members},
        "template": merge_template(template, zookeeper.pod, members, settings),
    }
    if claims:
        spec["volumeClaimTemplates"] = claims
        # A member that left must not come back with what it knew: it would vote by an old configuration.
        retention = {"whenDeleted": zookeeper.storage.when_deleted, "whenScaled": "Delete"}
        spec["persistentVolumeClaimRetentionPolicy"] = retention
    return build_object("apps/v1", "StatefulSet", name, names.ZOOKEEPER, owner, spec=spec)


def keep_claim_size(wanted: Object, live: Object | None) -> Object:
    """Return the wanted StatefulSet of the members with the volume size of the live one in its claim template, which is
    immutable. Claims themselves grow (`reconcile.claims`). Return `wanted` unchanged if one of the two has no claim
    template."""
    templates = wanted["spec"].get("volumeClaimTemplates")
    live_templates = live["spec"].get("volumeClaimTemplates") if live is not None else None
    if not templates or not live_templates:
        return wanted
    resources = {"requests": {"storage": live_templates[0]["spec"]["resources"]["requests"]["storage"]}}
    kept = {**templates[0], "spec": {**templates[0]["spec"], "resources": resources}}
    return {**wanted, "spec": {**wanted["spec"], "volumeClaimTemplates": [kept]}}


def _claim(cluster: KubernetesCluster, owner: ResourceOwner) -> Object:
    """Return the template of the volume claim for a member's data."""
    storage = cluster.spec.zookeeper.storage
    spec: Object = {
        "accessModes": ["ReadWriteOnce"],
        "resources": {"requests": {"storage": format_size(storage.size)}},
    }
    if storage.class_name is not None:
        spec["storageClassName"] = storage.class_name
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": "data", "labels": names.selector(owner.name, names.ZOOKEEPER)},
        "spec": spec,
    }
