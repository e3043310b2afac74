"""Clusters, reports, pods and status pages as a Kubernetes API and brokers return them, and what the operator decides
about observed clusters: for tests of the operator."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import yaml
from migratory_operator import names
from migratory_operator.api.broker_status import BrokerStatusPage
from migratory_operator.names import Object
from migratory_operator.reconcile.decide import ClusterPlan, decide
from migratory_operator.reconcile.observed import ObservedCluster, key_of
from migratory_operator.settings import OperatorSettings

SETTINGS = OperatorSettings(
    broker_image="example/broker:1",
    zookeeper_image="example/zookeeper:1",
    spark_image="example/spark:1",
    reports_enabled=True,
    allowed_images=("example/*",),
    allowed_prometheus=("http://prometheus:9090", "http://p", "https://*.monitoring.svc:9090/prom"),
)
NOW = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)


def cluster(spec: Object | None = None, name: str = "quotes", **metadata: Any) -> Object:
    """Return a MigratoryCluster object with this spec, in the namespace "market". `metadata` adds or replaces fields of
    its metadata."""
    return {
        "apiVersion": "migratory.dev/v1alpha1",
        "kind": "MigratoryCluster",
        "metadata": {"name": name, "namespace": "market", "uid": f"uid-of-{name}", "generation": 1, **metadata},
        "spec": spec or {},
    }


NEW, OLD = "revision-2", "revision-1"
"""Revisions of pods: the current one of `settled` StatefulSets, and an old one."""


def report(
    name: str = "weekly", *, metadata: Object | None = None, status: Object | None = None, **spec: Any
) -> Object:
    """Return an SLAReport object about the cluster "quotes", created a minute before NOW. `spec` adds or replaces
    fields of its spec."""
    resource: Object = {
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
    return resource if status is None else {**resource, "status": status}


def pod(
    name: str, component: str, instance: str = "quotes", *, ready: bool = True, revision: str = NEW, **status: Any
) -> Object:
    """Return a pod of a component, such as a broker, of the cluster `instance`. `status` adds or replaces fields of its
    status."""
    conditions = [{"type": "Ready", "status": "True" if ready else "False"}]
    labels = {**names.labels(instance, component), names.REVISION: revision}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "market", "uid": f"uid-of-{name}", "labels": labels},
        "status": {"podIP": "10.0.0.1", "conditions": conditions, **status},
    }


def pods(brokers: int = 3, zookeepers: int = 3, instance: str = "quotes", revision: str = NEW) -> tuple[Object, ...]:
    """Return ready pods: these numbers of brokers and of ZooKeeper members of the cluster `instance`."""
    return (
        *(pod(f"{instance}-broker-{number}", names.BROKER, instance, revision=revision) for number in range(brokers)),
        *(
            pod(f"{instance}-zookeeper-{number}", names.ZOOKEEPER, instance, revision=revision)
            for number in range(zookeepers)
        ),
    )


def page(owned: Iterable[int] = (), brokers: int = 3, **fields: Any) -> BrokerStatusPage:
    """Return the status page of one of `brokers` healthy, connected brokers, which coordinates the topic groups
    `owned`. `fields` replace fields of the page."""
    all_brokers = [f"quotes-broker-{number}" for number in range(brokers)]
    healthy: Object = {
        "ready": True,
        "zookeeper_connected": True,
        "clients": 7,
        "waiting_groups": 0,
        "lost_records": 0,
        "identity": "1a",
        "incarnation": 1,
        "member": True,
        "fenced": False,
        "draining": False,
        "links": dict.fromkeys(all_brokers, 1),
        "lists": dict.fromkeys(owned, frozenset(all_brokers)),
        "copies": 2,
        "staying": frozenset(all_brokers),
    }
    return BrokerStatusPage(**{**healthy, **fields})


def pages_of(brokers: int = 3) -> dict[str, BrokerStatusPage]:
    """Return the status pages of healthy brokers by name, with 100 topic groups spread evenly over them."""
    return {f"quotes-broker-{number}": page(range(number, 100, brokers), brokers) for number in range(brokers)}


def field_tree(wanted: Any) -> Object:
    """Return the fields of an applied value as `managedFields` has them (FieldsV1). Lists whose entries have a name
    have keys here, other lists have none."""
    if isinstance(wanted, dict):
        return {f"f:{name}": field_tree(value) for name, value in wanted.items()}
    if isinstance(wanted, list) and wanted and all(isinstance(entry, dict) and "name" in entry for entry in wanted):
        return {"k:" + json.dumps({"name": entry["name"]}): {".": {}, **field_tree(entry)} for entry in wanted}
    return {}


def as_applied(item: Object, manager: str = names.FIELD_MANAGER) -> Object:
    """Return an object with the record (`managedFields`) that `manager` has applied it."""
    metadata = {key: value for key, value in item["metadata"].items() if key not in ("name", "namespace")}
    owned = {key: value for key, value in item.items() if key not in ("apiVersion", "kind", "status")}
    record = {
        "manager": manager,
        "operation": "Apply",
        "fieldsType": "FieldsV1",
        "fieldsV1": field_tree({**owned, "metadata": metadata}),
    }
    return {**item, "metadata": {**item["metadata"], "managedFields": [record]}}


def settled(item: Object) -> Object:
    """Return an object as the API has it some time after the operator applied it, with the record of that. All replicas
    of a StatefulSet are ready and updated."""
    if "managedFields" not in item["metadata"]:
        item = as_applied(item)
    if item["kind"] != "StatefulSet":
        return item
    replicas = item["spec"]["replicas"]
    status = {
        "observedGeneration": 1,
        "replicas": replicas,
        "readyReplicas": replicas,
        "updatedReplicas": replicas,
        "updateRevision": NEW,
    }
    return {**item, "metadata": {**item["metadata"], "generation": 1}, "status": status}


BROKER_SET = ("StatefulSet", "quotes-broker")
HEALTHY_PAGES = pages_of(3)
"""Status pages of three healthy brokers, each of which coordinates a third of the topic groups."""


def observe(resource: Object, **fields: Any) -> ObservedCluster:
    """Return an observed cluster, at the time NOW, that has only the resource and the given fields."""
    return ObservedCluster(resource=resource, now=NOW, **fields)


def healthy_cluster(resource: Object | None = None, **fields: Any) -> ObservedCluster:
    """Return an observed cluster with all pods ready, all objects present, and the status that the operator writes in
    this state. `fields` replace fields of the observed cluster afterwards."""
    resource = resource or cluster()
    observed = observe(resource, pods=pods(), pages=HEALTHY_PAGES)
    for _ in range(3):
        plan = decide(observed, SETTINGS)
        applied = {key_of(item): settled(item) for item in plan.apply}
        resource = {**observed.resource, "status": copy.deepcopy(plan.status)}
        observed = replace(observed, objects={**observed.objects, **applied}, resource=resource)
    return replace(observed, **fields)


def condition(plan: ClusterPlan, type_: str) -> tuple[str, str]:
    """Return (status, reason) of the condition `type_` in the plan's status. Raise StopIteration without one."""
    found = next(entry for entry in plan.status["conditions"] if entry["type"] == type_)
    return found["status"], found["reason"]


def message(plan: ClusterPlan, type_: str) -> str:
    """Return the message of the condition `type_` in the plan's status. Raise StopIteration without one."""
    return str(next(entry["message"] for entry in plan.status["conditions"] if entry["type"] == type_))


def next_pass(observed: ObservedCluster, **fields: Any) -> tuple[ObservedCluster, ClusterPlan]:
    """Let the operator decide about the cluster after replacing these fields. Return that cluster with the status of
    the decision, and the decision."""
    changed = replace(observed, **fields)
    plan = decide(changed, SETTINGS)
    return replace(changed, resource={**changed.resource, "status": plan.status}), plan


def events_of(plan: ClusterPlan) -> list[tuple[str, str]]:
    """Return (type, reason) of each Kubernetes Event that the plan emits."""
    return [(event.type, event.reason) for event in plan.events]


def config_hash(stateful_set: Object) -> str:
    """Return the configuration hash in the pod template of a StatefulSet."""
    return str(stateful_set["spec"]["template"]["metadata"]["annotations"][names.CONFIG_HASH])


def replace_pods(pods: Iterable[Object], *changed: Object) -> tuple[Object, ...]:
    """Return the pods with `changed` in place of those of the same names. The changed pods come last."""
    names_changed = {pod["metadata"]["name"] for pod in changed}
    return (*(pod for pod in pods if pod["metadata"]["name"] not in names_changed), *changed)


class _Readable(yaml.SafeDumper):
    """A dumper that writes text of several lines as blocks, and no aliases."""

    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="|" if "\n" in text else None)


_Readable.add_representer(str, _text)


def readable(items: Iterable[Object]) -> str:
    """Return the objects as YAML documents for people to review."""
    return yaml.dump_all(items, Dumper=_Readable, sort_keys=False, width=120)
