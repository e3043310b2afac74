"""Observed clusters and what the operator decides about them, for tests of the decision."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from migratory_operator import names
from migratory_operator.names import Object
from migratory_operator.reconcile.decide import ClusterPlan, decide
from migratory_operator.reconcile.observed import ObservedCluster, key_of

from migratory_testing.kubernetes import NOW, SETTINGS, cluster, pages_of, pods, settled

BROKER_SET = ("StatefulSet", "quotes-broker")
HEALTHY_PAGES = pages_of(3)
"""Status pages of three healthy brokers, each of which coordinates a third of the topic groups."""


def observe(resource: Object, **fields: Any) -> ObservedCluster:
    """Return an observed cluster with nothing but what is given."""
    return ObservedCluster(resource=resource, now=NOW, **fields)


def healthy_cluster(resource: Object | None = None, **fields: Any) -> ObservedCluster:
    """Return a cluster with all pods ready, all objects present, and the status that the operator wrote for that."""
    resource = resource or cluster()
    observed = observe(resource, pods=pods(), pages=HEALTHY_PAGES)
    for _ in range(3):
        plan = decide(observed, SETTINGS)
        applied = {key_of(item): settled(item) for item in plan.apply}
        resource = {**observed.resource, "status": copy.deepcopy(plan.status)}
        observed = replace(observed, objects={**observed.objects, **applied}, resource=resource)
    return replace(observed, **fields)


def condition(plan: ClusterPlan, type_: str) -> tuple[str, str]:
    """Return status and reason of a condition."""
    found = next(entry for entry in plan.status["conditions"] if entry["type"] == type_)
    return found["status"], found["reason"]


def message(plan: ClusterPlan, type_: str) -> str:
    """Return the message of a condition."""
    return str(next(entry["message"] for entry in plan.status["conditions"] if entry["type"] == type_))


def next_pass(observed: ObservedCluster, **fields: Any) -> tuple[ObservedCluster, ClusterPlan]:
    """Return the cluster with the changed fields and the status of the new decision, and that decision."""
    changed = replace(observed, **fields)
    plan = decide(changed, SETTINGS)
    return replace(changed, resource={**changed.resource, "status": plan.status}), plan


def events_of(plan: ClusterPlan) -> list[tuple[str, str]]:
    """Return type and reason of each Event."""
    return [(event.type, event.reason) for event in plan.events]


def config_hash(stateful_set: Object) -> str:
    """Return the configuration hash of the pods."""
    return str(stateful_set["spec"]["template"]["metadata"]["annotations"][names.CONFIG_HASH])


def replace_pods(pods: Iterable[Object], *changed: Object) -> tuple[Object, ...]:
    """Return the pods, with those of the same names replaced."""
    names_changed = {pod["metadata"]["name"] for pod in changed}
    return (*(pod for pod in pods if pod["metadata"]["name"] not in names_changed), *changed)
