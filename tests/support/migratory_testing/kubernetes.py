"""Clusters, pods and brokers' pages as a Kubernetes API would give them, for tests of the operator."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

import yaml
from migratory_operator import names
from migratory_operator.names import Object
from migratory_operator.observe import BrokerPage
from migratory_operator.settings import Settings

SETTINGS = Settings(
    broker_image="example/broker:1", zookeeper_image="example/zookeeper:1", spark_image="example/spark:1"
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def cluster(spec: Object | None = None, name: str = "quotes", **metadata: Any) -> Object:
    return {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": name, "namespace": "market", "uid": f"uid-of-{name}", "generation": 1, **metadata},
        "spec": spec or {},
    }


NEW, OLD = "revision-2", "revision-1"
"""Of pods: what `settled` StatefulSets are at, and another."""


def report(
    name: str = "weekly", *, metadata: Object | None = None, status: Object | None = None, **spec: Any
) -> Object:
    """Of the cluster "quotes"; asked for a minute before NOW."""
    found: Object = {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "SLAReport",
        "metadata": {
            "name": name,
            "namespace": "market",
            "uid": "01234567-89ab-cdef-0123-456789abcdef",
            "generation": 1,
            "creationTimestamp": "2026-01-02T03:03:05Z",
            **(metadata or {}),
        },
        "spec": {"cluster": "quotes", **spec},
    }
    return found if status is None else {**found, "status": status}


def pod(
    name: str, component: str, instance: str = "quotes", *, ready: bool = True, revision: str = NEW, **status: Any
) -> Object:
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    labels = {**names.labels(instance, component), names.REVISION: revision}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "market", "uid": f"uid-of-{name}", "labels": labels},
        "status": {"podIP": "10.0.0.1", "conditions": conditions, **status},
    }


def pods(brokers: int = 3, zookeepers: int = 3, instance: str = "quotes", revision: str = NEW) -> tuple[Object, ...]:
    """All of them ready."""
    return (
        *(pod(f"{instance}-broker-{number}", names.BROKER, instance, revision=revision) for number in range(brokers)),
        *(
            pod(f"{instance}-zookeeper-{number}", names.ZOOKEEPER, instance, revision=revision)
            for number in range(zookeepers)
        ),
    )


def page(owned: Iterable[int] = (), brokers: int = 3, **fields: Any) -> BrokerPage:
    """Of a broker of so many, all well and connected, that coordinates these groups."""
    everybody = [f"quotes-broker-{number}" for number in range(brokers)]
    usual: Object = {
        "ready": True,
        "zookeeper_connected": True,
        "clients": 7,
        "waiting_groups": 0,
        "incarnation": 1,
        "member": True,
        "fenced": False,
        "draining": False,
        "links": dict.fromkeys(everybody, 1),
        "lists": dict.fromkeys(owned, frozenset(everybody)),
        "copies": 2,
        "staying": frozenset(everybody),
    }
    return BrokerPage(**{**usual, **fields})


def pages_of(brokers: int = 3, groups: int = 100) -> dict[str, BrokerPage]:
    """Of so many brokers, all well, the groups spread over them."""
    return {f"quotes-broker-{number}": page(range(number, groups, brokers), brokers) for number in range(brokers)}


def settled(thing: Object) -> Object:
    """An object as the API has it some time after it was applied; only StatefulSets change."""
    if thing["kind"] != "StatefulSet":
        return thing
    replicas = thing["spec"]["replicas"]
    status = {
        "observedGeneration": 1,
        "replicas": replicas,
        "readyReplicas": replicas,
        "updatedReplicas": replicas,
        "updateRevision": NEW,
    }
    return {**thing, "metadata": {**thing["metadata"], "generation": 1}, "status": status}


class _Readable(yaml.SafeDumper):
    """Text of several lines as it is, and nothing by reference."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def readable(things: Iterable[Object]) -> str:
    """YAML for people to review."""
    return yaml.dump_all(things, Dumper=_Readable, sort_keys=False, width=120)
