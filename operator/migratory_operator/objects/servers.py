"""The server list: which brokers take clients, where and how many of them; pure.

Brokers tell it to the clients that are connected. The ConfigMap is for those that are not yet.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Set

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object, Owner, thing

USUAL_WEIGHT = 100


def entries(cluster: KubernetesCluster, urls: Mapping[str, str], ready: Set[str]) -> list[Object]:
    """As the status has it: every broker whose URL is known."""
    weights = cluster.spec.brokers.weights
    return [
        {
            "broker": broker,
            "url": urls[broker],
            "weight": weights.get(broker, USUAL_WEIGHT),
            "ready": broker in ready,
        }
        for broker in cluster.broker_names
        if broker in urls
    ]


def config_map(owner: Owner, listed: list[Object]) -> Object:
    """As `GET /v1/servers` of a broker: those that take clients now."""
    servers = [{"url": entry["url"], "weight": entry["weight"]} for entry in listed if entry["ready"]]
    data = {"servers.json": json.dumps({"servers": servers}, indent=2) + "\n"}
    return thing("v1", "ConfigMap", names.servers_name(owner.name), names.BROKER, owner, data=data)
