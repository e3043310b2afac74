"""The brokers' objects: configuration, pods, Services, disruption budget; pure.

Clients hold connections to brokers and not to a balancer, so every broker has a URL of its own. It stands in the
configuration, one file for each broker, because a StatefulSet's pods are alike in all but their names.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence

from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.cluster.process_config import broker_config

from migratory_operator import names
from migratory_operator.names import Object, Owner, thing
from migratory_operator.objects import zookeeper
from migratory_operator.objects.pods import ON_DELETE, container, digest, from_field, pod_template, port, service_port
from migratory_operator.settings import Settings

# After the drain a broker closes what is left, ends its session and exits, within seconds each.
_GRACE_AFTER_DRAIN = 20
_CONFIG = "/etc/migratory"
# A pod that gives up is started again ever later; one that waits goes on as soon as there is a quorum.
_ZOOKEEPER_SECONDS = 900


def objects(
    cluster: KubernetesCluster, owner: Owner, settings: Settings, urls: Mapping[str, str], leaving: Sequence[str]
) -> list[Object]:
    """:param urls: by broker's name, all of them.
    :param leaving: of the brokers, those that the cluster will do without."""
    name = names.brokers_name(owner.name)
    config = broker_config(cluster, zookeeper.servers(cluster, owner), leaving)
    config["zookeeper"]["startTimeout"] = _ZOOKEEPER_SECONDS
    configuration = {
        "broker.json": json.dumps(config, indent=2) + "\n",
        **{f"url.{broker}": urls[broker] for broker in cluster.broker_names},
    }
    fixed = {key: value for key, value in config.items() if key != "leaving"}  # what is read while they run
    common = digest({"broker.json": json.dumps({**fixed, "brokers": []})})
    addresses = [digest({"url": urls[broker]})[:8] for broker in cluster.broker_names]
    stateful_set = _stateful_set(name, cluster, owner, {"common": common, "urls": ",".join(addresses)}, settings)
    stateful_set["metadata"]["annotations"] = {names.COMMON_HASH: common, names.URL_HASHES: ",".join(addresses)}
    made = [thing("v1", "ConfigMap", name, names.BROKER, owner, data=configuration), stateful_set]
    if cluster.spec.brokers.replicas > 1:
        # One broker alone has none: it would keep its node from ever being drained.
        made.append(_budget(name, owner))
    return made


def for_those_that_run(wanted: Object, live: Object | None) -> Object:
    """The brokers' StatefulSet with the pods' hash that it has, where nothing changed for the pods that there are.

    Brokers read while they run who else belongs to the cluster, so more or fewer of them are no reason to restart any.
    """
    if live is None:
        return wanted
    now, then = wanted["metadata"]["annotations"], live["metadata"].get("annotations", {})
    pairs = zip(now[names.URL_HASHES].split(","), then.get(names.URL_HASHES, "").split(","), strict=False)
    if now[names.COMMON_HASH] != then.get(names.COMMON_HASH) or any(one != other for one, other in pairs):
        return wanted
    had = live["spec"]["template"]["metadata"].get("annotations", {}).get(names.CONFIG_HASH)
    if had is None:
        return wanted
    spec = wanted["spec"]
    metadata = spec["template"]["metadata"]
    template = {**spec["template"], "metadata": {**metadata, "annotations": {names.CONFIG_HASH: had}}}
    return {**wanted, "spec": {**spec, "template": template}}


def services(cluster: KubernetesCluster, owner: Owner) -> list[Object]:
    """Of the brokers together. They are there before the brokers are, whose URLs may depend on others like them."""
    headless = {
        "clusterIP": "None",
        # brokers find each other before they take clients, and the operator asks those that don't
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
        thing("v1", "Service", names.brokers_name(owner.name), names.BROKER, owner, spec=headless),
        thing("v1", "Service", names.clients_name(owner.name), names.BROKER, owner, spec=clients),
    ]


def _budget(name: str, owner: Owner) -> Object:
    spec = {"maxUnavailable": 1, "selector": {"matchLabels": names.selector(owner.name, names.BROKER)}}
    return thing("policy/v1", "PodDisruptionBudget", name, names.BROKER, owner, spec=spec)


def _stateful_set(
    name: str, cluster: KubernetesCluster, owner: Owner, read: dict[str, str], settings: Settings
) -> Object:
    """:param read: what makes the pods new when it changes."""
    spec = cluster.spec.brokers
    # The URL is checked first: a broker that told others its own 0.0.0.0 would be of use to nobody.
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
        settings,
        command=["/bin/sh", "-c", command],
        env=[
            from_field("POD_NAME", "metadata.name"),
            # a broker that leaves sends its clients to those of another revision first: they are the new ones
            from_field("MIGRATORY_REVISION", f"metadata.labels['{names.REVISION}']"),
        ],
        ports=[
            port("clients", names.CLIENTS_PORT),
            port("peers", names.PEERS_PORT),
            port("admin", names.ADMIN_PORT),
        ],
        readinessProbe={
            "httpGet": {"path": "/readyz", "port": "admin", "scheme": "HTTP"},
            "periodSeconds": 2,
            "timeoutSeconds": 3,
            "failureThreshold": 2,
        },
        livenessProbe={
            "httpGet": {"path": "/healthz", "port": "admin", "scheme": "HTTP"},
            "periodSeconds": 10,
            "timeoutSeconds": 5,
            "failureThreshold": 6,
        },
        volumeMounts=[
            {"name": "config", "mountPath": _CONFIG},
            {"name": "tmp", "mountPath": "/tmp"},
        ],
    )
    template = pod_template(
        owner,
        names.BROKER,
        read,
        settings,
        math.ceil(spec.drain.period) + _GRACE_AFTER_DRAIN,
        containers=[broker],
        volumes=[{"name": "config", "configMap": {"name": name}}, {"name": "tmp", "emptyDir": {}}],
    )
    return thing(
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
            "template": template,
        },
    )
