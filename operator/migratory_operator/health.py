"""Whether a pod can be spared: what every step that takes one away waits for; pure.

A topic group of `minCopies` 2 on three brokers goes on without one of them, not without two. So before the next broker
goes, all others must be there, and know of one another: each a synced member of every group, none fenced, every group
with a coordinator that lists them all. Each function gives the first thing that is not so, "" when all is well; `but`
are the pods that go, whose own state does not matter.

What is said stays the same while it is the same: it becomes a condition's message, and a change of that is a write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta
from typing import Any

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object
from migratory_operator.observe import BrokerPage, Observed, is_ready, leaves, readiness, trouble
from migratory_operator.verdict import Verdict

CALM = timedelta(seconds=5)
"""A pod that is ready counts as there after so long; twice as long for each time that its container was restarted, up
to `LONGEST_CALM`: one that is ready for seconds between two crashes is not there."""
LONGEST_CALM = timedelta(minutes=5)
_ONE_MOMENT = timedelta(seconds=2)
"""Shorter than any readiness probe takes to turn twice."""
DEADLINE = timedelta(minutes=10)
"""A pod that has not been ready for so long has failed: it will need somebody."""


def brokers_unwell(cluster: KubernetesCluster, observed: Observed, but: Set[str] = frozenset()) -> str:
    wanted = cluster.broker_names
    others = [broker for broker in wanted if broker not in but]
    if absent := _absent(wanted, observed.named(names.BROKER), observed.now, but):
        return absent
    for broker in others:
        if (page := observed.pages.get(broker)) is None:
            return f"{broker} does not answer"
        if amiss := _amiss(page):
            return f"{broker} {amiss}"
        for other in others:
            there = observed.pages.get(other)
            if other != broker and (there is None or page.links.get(other) != there.incarnation):
                return f"{broker} is not connected to {other}"
    coordinated = coordination(cluster, observed)
    if coordinated.status != "True":
        return coordinated.message
    for page in observed.pages.values():
        for group, members in sorted(page.lists.items()):
            if unlisted := sorted(set(others) - members):
                return f"{unlisted[0]} is not on the list of topic group {group}"
    return ""


def ensemble_unwell(cluster: KubernetesCluster, observed: Observed, but: Set[str] = frozenset()) -> str:
    """Of the ZooKeeper members, whose readiness means that they serve with a quorum. An external ensemble is well as
    long as brokers reach it."""
    return _absent(member_names(cluster, observed), observed.named(names.ZOOKEEPER), observed.now, but)


def member_names(cluster: KubernetesCluster, observed: Observed) -> tuple[str, ...]:
    if cluster.spec.zookeeper.external is not None:
        return ()
    name = names.zookeeper_name(observed.owner.name)
    return tuple(f"{name}-{ordinal}" for ordinal in range(cluster.spec.zookeeper.replicas))


def failed(pod: Object, now: datetime) -> str:
    """Why a pod that is not ready will not become so without somebody's doing; "" when nothing is known, and of one on
    its way out, whose condition speaks of the time when it was ready."""
    if is_ready(pod) or leaves(pod):
        return ""
    if (found := trouble(pod)) is not None:
        return f"{found[1]} ({found[0]})"
    since = _moment(readiness(pod).get("lastTransitionTime") or pod["metadata"].get("creationTimestamp"))
    if since is not None and now - since > DEADLINE:
        return f"{pod['metadata']['name']} has not been ready for {DEADLINE.total_seconds() / 60:g} minutes"
    return ""


def never_ready(pod: Object) -> bool:
    """Not once since it began: its condition is as old as the pod, which the kubelet writes down at one moment."""
    condition, began = readiness(pod), _moment(pod.get("status", {}).get("startTime"))
    since = _moment(condition.get("lastTransitionTime"))
    if condition.get("status") == "True" or since is None or began is None:
        return False
    return since - began <= _ONE_MOMENT


def ready_brokers(cluster: KubernetesCluster, observed: Observed) -> list[str]:
    """In the order of their names' numbers."""
    pods = observed.named(names.BROKER)
    return [broker for broker in cluster.broker_names if broker in pods and is_ready(pods[broker])]


def coordination(cluster: KubernetesCluster, observed: Observed) -> Verdict:
    """CoordinationAvailable."""

    def say(status: str, reason: str, message: str) -> Verdict:
        return Verdict("CoordinationAvailable", status, reason, message)

    zookeeper = cluster.spec.zookeeper
    if zookeeper.external is None:
        ready = sum(is_ready(pod) for pod in observed.pods_of(names.ZOOKEEPER))
        if ready < zookeeper.replicas // 2 + 1:
            return say("False", "NoQuorum", f"{ready} of {zookeeper.replicas} ZooKeeper members are ready: no quorum")
    if not observed.pages:
        return say("Unknown", "NoBrokerAnswers", "no broker answers yet")
    if not any(page.zookeeper_connected for page in observed.pages.values()):
        return say("False", "ZooKeeperUnreachable", "no broker reaches ZooKeeper")
    owned = frozenset[int]().union(*(page.owned for page in observed.pages.values()))
    without = cluster.spec.topics.groups - len(owned)
    if without > 0:
        return say("False", "GroupsWithoutCoordinator", f"{without} topic groups have no coordinator")
    return say("True", "Coordinated", f"all {cluster.spec.topics.groups} topic groups have a coordinator")


def _amiss(page: BrokerPage) -> str:
    """What a broker says of itself that keeps others from being spared."""
    if page.draining:
        return "is leaving"
    if page.fenced:
        return "is cut off from the others"
    if not page.member:
        return "is not a synced member of every topic group yet"
    if not page.zookeeper_connected:
        return "does not reach ZooKeeper"
    if page.waiting_groups:
        return "knows topic groups that wait for brokers of their last list"
    return "" if page.ready else "takes no clients"


def _absent(wanted: Sequence[str], pods: Mapping[str, Object], now: datetime, but: Set[str]) -> str:
    """What of the pods is not there, or there and not wanted."""
    for name in sorted(pods):
        if name not in wanted:
            return f"{name} is on its way out"
    for name in wanted:
        if name in but:
            continue
        if (pod := pods.get(name)) is None:
            return f"{name} is to be made"
        if leaves(pod):
            return f"{name} is on its way out"
        if not is_ready(pod):
            return f"{name} is not ready"
        if excited := _excited(pod, now):
            return excited
    return ""


def _excited(pod: Object, now: datetime) -> str:
    """Ready, but too short a time to count on it."""
    restarts = max((int(one.get("restartCount", 0)) for one in _containers(pod)), default=0)
    calm = min(CALM * 2 ** min(restarts, 10), LONGEST_CALM)
    since = _moment(readiness(pod).get("lastTransitionTime"))
    if since is None or now - since >= calm:
        return ""
    again = f", and was restarted {restarts} times" if restarts else ""
    return f"{pod['metadata']['name']} has been ready for less than {calm.total_seconds():g} s{again}"


def _containers(pod: Object) -> Sequence[Any]:
    return pod.get("status", {}).get("containerStatuses") or ()


def _moment(text: str | None) -> datetime | None:
    return datetime.fromisoformat(text) if text else None
