"""The conditions of a cluster, from what was observed; pure.

| type | True when |
| --- | --- |
| CoordinationAvailable | ZooKeeper has a quorum and every topic group a coordinator |
| Progressing | objects are being made or changed, or pods are on their way |
| Degraded | something needs a person, or is less than asked for although nothing is on its way |
| Ready | every broker takes clients and coordination is available |
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from migratory_resources.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object
from migratory_operator.observe import Observed, is_ready, trouble

_LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class Verdict:
    """One condition before it has a time."""

    type: str
    status: str
    reason: str
    message: str


def verdicts(cluster: KubernetesCluster, observed: Observed, missing_urls: Sequence[str], asked: int) -> list[Verdict]:
    """Of a cluster whose spec is valid.

    :param cluster: as it is to be at present.
    :param asked: how many brokers it is to have in the end; fewer while some are leaving.
    """
    coordinated = coordination(cluster, observed)
    progressing = _progressing(cluster, observed, missing_urls, asked)
    return [
        _ready(cluster, observed, coordinated),
        progressing,
        _degraded(cluster, observed, progressing, coordinated),
        coordinated,
    ]


def refused(reason: str, message: str) -> list[Verdict]:
    """Of a cluster that the operator can't or must not touch."""
    return [
        Verdict("Ready", "False", reason, message),
        Verdict("Progressing", "False", reason, message),
        Verdict("Degraded", "True", reason, message),
        Verdict("CoordinationAvailable", "Unknown", reason, message),
    ]


def written(verdict: Verdict, before: Sequence[Object], generation: int, now: datetime) -> Object:
    """As the status has it: the time of the transition stays while the status does."""
    old = next((condition for condition in before if condition.get("type") == verdict.type), None)
    same = old is not None and old.get("status") == verdict.status
    return {
        "type": verdict.type,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": verdict.message[:_LONGEST_MESSAGE],
        "lastTransitionTime": old["lastTransitionTime"] if same and old else now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "observedGeneration": generation,
    }


def _ready(cluster: KubernetesCluster, observed: Observed, coordinated: Verdict) -> Verdict:
    wanted, ready = cluster.spec.brokers.replicas, len(ready_brokers(cluster, observed))
    if ready < wanted:
        return Verdict("Ready", "False", "BrokersNotReady", f"{ready} of {wanted} brokers take clients")
    if coordinated.status != "True":
        return Verdict("Ready", "False", coordinated.reason, coordinated.message)
    return Verdict("Ready", "True", "AllReady", f"all {wanted} brokers take clients")


def ready_brokers(cluster: KubernetesCluster, observed: Observed) -> list[str]:
    """In the order of their names' numbers."""
    ready = {pod["metadata"]["name"] for pod in observed.pods_of(names.BROKER) if is_ready(pod)}
    return [broker for broker in cluster.broker_names if broker in ready]


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


def _progressing(cluster: KubernetesCluster, observed: Observed, missing_urls: Sequence[str], asked: int) -> Verdict:
    def say(reason: str, message: str, status: str = "True") -> Verdict:
        return Verdict("Progressing", status, reason, message)

    if missing_urls:
        waits = f"no address yet for {', '.join(missing_urls)}: brokers start when all are known"
        return say("WaitingForAddresses", waits)
    if asked < cluster.spec.brokers.replicas:
        leaving = f"{cluster.spec.brokers.replicas} brokers, wanted {asked}: they leave one after the other"
        return say("Scaling", leaving)
    wanted = [names.brokers_name(observed.owner.name)]
    if cluster.spec.zookeeper.external is None:
        wanted.append(names.zookeeper_name(observed.owner.name))
    for name in wanted:
        found = observed.objects.get(("StatefulSet", name))
        if found is None:
            return say("Creating", f"StatefulSet {name} is being made")
        status, replicas = found.get("status", {}), found["spec"]["replicas"]
        if status.get("observedGeneration", 0) < found["metadata"].get("generation", 1):
            return say("Updating", f"StatefulSet {name} has just changed")
        if status.get("replicas", 0) != replicas:
            return say("Scaling", f"{name}: {status.get('replicas', 0)} pods, wanted {replicas}")
        if status.get("updatedReplicas", 0) < replicas and status.get("updateRevision") != status.get(
            "currentRevision"
        ):
            return say("RollingOut", f"{name}: {status.get('updatedReplicas', 0)} of {replicas} pods are new")
        if status.get("readyReplicas", 0) < replicas:
            return say("Starting", f"{name}: {status.get('readyReplicas', 0)} of {replicas} pods are ready")
    return say("Settled", "everything is as asked for", "False")


def _degraded(cluster: KubernetesCluster, observed: Observed, progressing: Verdict, coordinated: Verdict) -> Verdict:
    for component in (names.ZOOKEEPER, names.BROKER):
        for pod in sorted(observed.pods_of(component), key=lambda one: str(one["metadata"]["name"])):
            if (found := trouble(pod)) is not None:
                return Verdict("Degraded", "True", found[0], found[1])
    if observed.taken:
        kind, name = min(observed.taken)
        message = f"{kind} {name} belongs to something else; delete or rename it, or name the cluster otherwise"
        return Verdict("Degraded", "True", "NameTaken", message)
    waiting = sum(page.waiting_groups for page in observed.pages.values())
    if progressing.status == "False" and coordinated.status == "False":
        return Verdict("Degraded", "True", coordinated.reason, coordinated.message)
    if progressing.status == "False" and waiting:
        message = f"topic groups wait for brokers of their last list ({waiting} sightings)"
        return Verdict("Degraded", "True", "GroupsWait", message)
    return Verdict("Degraded", "False", "NothingKnown", "nothing needs a person")
