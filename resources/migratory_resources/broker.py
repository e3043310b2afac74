"""The part of a cluster that a broker reads: its configuration file as data, the same for every broker of the cluster.

What differs between brokers (name, listeners, advertised addresses) comes from its command line.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from migratory_resources.model import MigratoryCluster


def broker_config(cluster: MigratoryCluster, zookeeper_servers: str, leaving: Sequence[str] = ()) -> dict[str, Any]:
    """JSON-ready; durations in seconds, sizes in bytes.

    :param zookeeper_servers: "host:port,host:port".
    :param leaving: of the cluster's brokers, those that will be ended for good.
    """
    spec = cluster.spec
    config = {
        "cluster": cluster.name,
        "brokers": cluster.broker_names,
        "zookeeper": {"servers": zookeeper_servers, "sessionTimeout": spec.zookeeper.session_timeout},
        "topics": spec.topics.model_dump(by_alias=True),
        "limits": spec.limits.model_dump(by_alias=True),
        "delivery": spec.delivery.model_dump(by_alias=True, exclude={"compression"}),
        "compression": spec.delivery.compression,
        "weights": dict(spec.brokers.weights),
        "drain": spec.brokers.drain.model_dump(by_alias=True),
        "ioProcesses": spec.brokers.io_processes,
    }
    # not there when nobody leaves: a broker of a release before knows no such field
    return config | {"leaving": list(leaving)} if leaving else config
