"""Builders of the brokers' objects: configuration, StatefulSet, Services, disruption budget, ServiceMonitor; pure.

Clients connect to brokers directly, so every broker has its own URL. The ConfigMap has one file per broker with its
URL, because the pods of a StatefulSet differ only in their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from migratory_resources.cluster.identity import secrets_of
from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.cluster.process_config import RELOADED_LIMITS, TLS_FOLDER, broker_config

from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner, build_object
from migratory_operator.objects import zookeeper
from migratory_operator.objects.pods import ON_DELETE, container, digest, from_field, pod_template, port, service_port
from migratory_operator.objects.templates import merge_template
from migratory_operator.settings import OperatorSettings

_GRACE_AFTER_DRAIN = 20
"""Seconds from the end of the drain to SIGKILL: to close the last connections, end the session and exit."""
_PROCESS_MEMORY = 60 * 2**20
"""Bytes of a broker's process, or of one of its I/O processes, without clients."""
_UNCOMMITTED_MEMORY = 256 * 2**20
"""Bytes of QoS 1 publications that may wait for their copies: the broker's own limit."""
_MEMORY_STEP = 256 * 2**20
"""Default memory limits are multiples of this, so that few changes of other limits change them."""
_CONFIG = "/etc/migratory"
_SECRETS = "/etc/migratory-secrets"
"""The folder in which each Secret of `spec.security.tokens` and `.zookeeper` is mounted, in a folder with the Secret's
name. Kubernetes rewrites the files of a changed Secret, and brokers read those of tokens again: no pod is replaced."""
_ZOOKEEPER_START_TIMEOUT = 900
"""Seconds that a broker waits for ZooKeeper at its start. A broker that exits is restarted with growing delays; one
that waits continues as soon as there is a quorum."""


def objects(
    cluster: KubernetesCluster,
    owner: ResourceOwner,
    settings: OperatorSettings,
    urls: Mapping[str, str],
    leaving: Sequence[str],
    zookeeper_path: str | None,
) -> list[Object]:
    """Return the brokers' ConfigMap and StatefulSet, and their disruption budget if there are several brokers.

    :param urls: the URLs of all brokers, by name.
    :param leaving: the brokers that will be removed.
    :param zookeeper_path: the cluster's node in an external ensemble; None for the brokers' default.
    """
    name = names.brokers_name(owner.name)
    config = broker_config(
        cluster,
        zookeeper.servers(cluster, owner),
        leaving,
        secrets_folder=_SECRETS,
        zookeeper_path=zookeeper_path,
    )
    config["zookeeper"]["startTimeout"] = _ZOOKEEPER_START_TIMEOUT
    configuration = {
        "broker.json": json.dumps(config, indent=2) + "\n",
        **{f"url.{broker}": urls[broker] for broker in cluster.broker_names},
    }
    # Brokers re-read "brokers", "leaving", "weights", ZooKeeper's servers and these limits while they run. A change of
    # the rest replaces them.
    fixed = {key: value for key, value in config.items() if key != "leaving"}
    fixed["limits"] = {key: value for key, value in config["limits"].items() if key not in RELOADED_LIMITS}
    fixed["zookeeper"] = {**config["zookeeper"], "servers": ""}
    common = digest({"broker.json": json.dumps({**fixed, "brokers": [], "weights": {}})})
    url_hashes = [digest({"url": urls[broker]})[:8] for broker in cluster.broker_names]
    stateful_set = _stateful_set(name, cluster, owner, {"common": common, "urls": ",".join(url_hashes)}, settings)
    stateful_set["metadata"]["annotations"] = {names.COMMON_HASH: common, names.URL_HASHES: ",".join(url_hashes)}
    built = [build_object("v1", "ConfigMap", name, names.BROKER, owner, data=configuration), stateful_set]
    if cluster.spec.brokers.replicas > 1:
        # A single broker has none: it would block the drain of its node forever.
        built.append(_budget(name, owner))
    return built


def keep_config_hash(wanted: Object, live: Object | None) -> Object:
    """Return the wanted StatefulSet of the brokers with the configuration hash of the live one in its pod template, so
    that a changed hash is no reason to replace pods. Other changes of the template still are one.

    Return `wanted` unchanged if the pods must read their configuration again: the URL of a broker has changed, or
    something else that brokers read only at start. Return it unchanged also if there is no live StatefulSet, or one
    without a hash.

    Brokers re-read the list of brokers and their weights while they run, so neither is a reason to restart any of them.
    """
    if live is None:
        return wanted
    new, old = wanted["metadata"]["annotations"], live["metadata"].get("annotations", {})
    pairs = zip(new[names.URL_HASHES].split(","), old.get(names.URL_HASHES, "").split(","), strict=False)
    if new[names.COMMON_HASH] != old.get(names.COMMON_HASH) or any(after != before for after, before in pairs):
        return wanted
    live_hash = live["spec"]["template"]["metadata"].get("annotations", {}).get(names.CONFIG_HASH)
    if live_hash is None:
        return wanted
    spec = wanted["spec"]
    metadata = spec["template"]["metadata"]
    annotations = {**metadata["annotations"], names.CONFIG_HASH: live_hash}
    template = {**spec["template"], "metadata": {**metadata, "annotations": annotations}}
    return {**wanted, "spec": {**spec, "template": template}}


def services(cluster: KubernetesCluster, owner: ResourceOwner) -> list[Object]:
    """Return two Services that select all brokers: the headless one for the pods' DNS names, and the one for
    clients."""
    headless = {
        "clusterIP": "None",
        # Brokers connect to each other, and the operator asks them, before they are ready.
        "publishNotReadyAddresses": True,
        "selector": names.selector(owner.name, names.BROKER),
        "ports": [
            service_port("clients", names.CLIENTS_PORT),
            service_port("peers", names.PEERS_PORT),
            service_port("admin", names.ADMIN_PORT),
        ],
    }
    clients = {
        "type": "ClusterIP",
        "selector": names.selector(owner.name, names.BROKER),
        "ports": [service_port("clients", names.CLIENTS_PORT)],
    }
    return [
        build_object("v1", "Service", names.brokers_name(owner.name), names.BROKER, owner, spec=headless),
        build_object("v1", "Service", names.clients_name(owner.name), names.BROKER, owner, spec=clients),
    ]


def service_monitor(cluster: KubernetesCluster, owner: ResourceOwner, settings: OperatorSettings) -> Object:
    """Return a ServiceMonitor, by which Prometheus scrapes the administration ports of all brokers, ready or not. If
    the administration has TLS, it trusts the authority in the Secret of that certificate, and checks the brokers'
    name."""
    endpoint: Object = {"port": "admin"}
    if settings.monitor_interval:
        endpoint["interval"] = settings.monitor_interval
    certificate = cluster.spec.security.tls.administration
    if certificate is not None:
        authority = {"secret": {"name": certificate.secret_name, "key": "ca.crt"}}
        endpoint |= {"scheme": "https", "tlsConfig": {"ca": authority, "serverName": names.brokers_name(owner.name)}}
    spec = {"selector": {"matchLabels": names.selector(owner.name, names.BROKER)}, "endpoints": [endpoint]}
    monitor = build_object(
        "monitoring.coreos.com/v1", "ServiceMonitor", names.brokers_name(owner.name), names.BROKER, owner, spec=spec
    )
    # A Prometheus may select by labels. Ours take precedence: the operator finds the object again by them.
    monitor["metadata"]["labels"] = {**dict(settings.monitor_labels), **monitor["metadata"]["labels"]}
    return monitor


def _budget(name: str, owner: ResourceOwner) -> Object:
    """Return the brokers' disruption budget: drains of nodes may evict one broker at a time."""
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(owner.name, names.BROKER)}}
    return build_object("policy/v1", "PodDisruptionBudget", name, names.BROKER, owner, spec=spec)


def _memory_limit(cluster: KubernetesCluster) -> int:
    """Return the default memory limit of a broker in bytes: the sum of what its caches, its processes and the limits of
    clients allow, half as much again for connections and the kernel's part of them, rounded up to _MEMORY_STEP."""
    spec, limits = cluster.spec, cluster.spec.limits
    handshakes = limits.input_total // 2 + (limits.input_total if spec.security.tls.clients is not None else 0)
    clients = limits.queue_total + limits.input_total + handshakes + limits.subscriptions_total + _UNCOMMITTED_MEMORY
    memory = clients + spec.topics.cache.max_bytes + _PROCESS_MEMORY * (1 + spec.brokers.io_processes)
    return math.ceil(memory * 1.5 / _MEMORY_STEP) * _MEMORY_STEP


def _stateful_set(
    name: str, cluster: KubernetesCluster, owner: ResourceOwner, read: dict[str, str], settings: OperatorSettings
) -> Object:
    """Return the StatefulSet of the brokers.

    :param read: hashes, by name, of the configuration that pods read at start; a change replaces the pods.
    """
    spec = cluster.spec.brokers
    security = cluster.spec.security
    passwords = [security.zookeeper.password_secret] if security.zookeeper is not None else []
    secrets = sorted({secret.name for secret in (*secrets_of(security.tokens), *passwords)})
    # Brokers notice a changed Secret by themselves: the mounted files are replaced, and no pod is restarted.
    certificates = {
        purpose: {"name": f"tls-{purpose}", "secret": {"secretName": source.secret_name, "defaultMode": 0o440}}
        for purpose, source in security.tls
        if source is not None
    }
    probe = {"port": "admin", "scheme": "HTTP" if cluster.spec.security.tls.administration is None else "HTTPS"}
    # The URL is read first, so that a missing file stops the broker instead of advertising 0.0.0.0.
    command = (
        f'url=$(cat "{_CONFIG}/url.$POD_NAME") && exec migratory broker --config={_CONFIG}/broker.json '
        f'--name="$POD_NAME" --clients=0.0.0.0:{names.CLIENTS_PORT} --peers=0.0.0.0:{names.PEERS_PORT} '
        f'--admin=0.0.0.0:{names.ADMIN_PORT} --advertise-url="$url" '
        f'--advertise-peer="{names.pod_host("$POD_NAME", name, owner.namespace)}:{names.PEERS_PORT}"'
    )
    broker = container(
        "broker",
        spec.image or settings.broker_image,
        spec.resources,
        _memory_limit(cluster),
        settings,
        command=["/bin/sh", "-c", command],
        env=[
            from_field("POD_NAME", "metadata.name"),
            # A broker that shuts down prefers brokers of another revision for its clients: the new ones.
            from_field("MIGRATORY_REVISION", f"metadata.labels['{names.REVISION}']"),
        ],
        ports=[
            port("clients", names.CLIENTS_PORT),
            port("peers", names.PEERS_PORT),
            port("admin", names.ADMIN_PORT),
        ],
        readinessProbe={
            "httpGet": {"path": "/readyz", **probe},
            "periodSeconds": 2,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        livenessProbe={
            "httpGet": {"path": "/healthz", **probe},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        volumeMounts=[
            {"name": "config", "mountPath": _CONFIG},
            {"name": "tmp", "mountPath": "/tmp"},
            *(
                {"name": f"secret-{index}", "mountPath": f"{_SECRETS}/{secret}", "readOnly": True}
                for index, secret in enumerate(secrets)
            ),
            *(
                {"name": volume["name"], "mountPath": f"{TLS_FOLDER}/{purpose}", "readOnly": True}
                for purpose, volume in certificates.items()
            ),
        ],
    )
    template = pod_template(
        owner,
        names.BROKER,
        read,
        settings,
        math.ceil(spec.drain.period) + _GRACE_AFTER_DRAIN,
        containers=[broker],
        volumes=[
            {"name": "config", "configMap": {"name": name}},
            {"name": "tmp", "emptyDir": {}},
            *(
                {"name": f"secret-{index}", "secret": {"secretName": secret, "defaultMode": 0o440}}
                for index, secret in enumerate(secrets)
            ),
            *certificates.values(),
        ],
    )
    return build_object(
        "apps/v1",
        "StatefulSet",
        name,
        names.BROKER,
        owner,
        spec={
            "serviceName": name,
            "replicas": spec.replicas,
            "podManagementPolicy": "Parallel",
            "updateStrategy": ON_DELETE,
            "selector": {"matchLabels": names.selector(owner.name, names.BROKER)},
            "template": merge_template(template, spec.pod, names.selector(owner.name, names.BROKER), settings),
        },
    )
