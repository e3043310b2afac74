"""The conditions of a cluster, from its observed state; pure.

| type | True when |
| --- | --- |
| CoordinationAvailable | ZooKeeper has a quorum and every topic group a coordinator |
| Progressing | objects are being created or changed, or pods are starting, or being replaced or removed |
| Degraded | something needs a person, or is less than desired although nothing is in progress |
| Ready | clients are served as promised: enough brokers accept clients, and coordination is available |

A planned step, such as the replacement of a pod, makes Progressing True. Ready stays True meanwhile, if enough brokers
accept clients and coordination is not missing for longer than PLANNED_GAP.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.reconcile.health import coordination_condition, ready_brokers
from migratory_operator.reconcile.observed import ObservedCluster
from migratory_operator.reconcile.pods import find_trouble
from migratory_operator.reconcile.rollout import Rollout
from migratory_operator.status import ConditionValue, parse_time

ROLLING_OUT, ROLLOUT_STOPPED, SETTLED, REJECTED = "RollingOut", "RolloutStopped", "Settled", "ObjectRefused"
INEFFECTIVE, NO_PROBLEM = "ApplyIneffective", "NothingKnown"
INVALID_SPEC, PAUSED = "InvalidSpec", "Paused"
ALL_READY = "AllReady"
PLANNED_GAP = timedelta(seconds=30)
"""Time for which coordination may be missing in a planned step while Ready stays True. A topic group's next coordinator
takes over within seconds; ZooKeeper's members notice an election at their next probe."""
_MAX_FOREIGN_NAMED = 5
"""Foreign fields that a message names; of more it has the number."""


@dataclass(frozen=True)
class ClusterProgress:
    """The findings of `decide` about a cluster that the conditions report, beside the observed state."""

    desired_brokers: int
    """The number of brokers that the resource asks for; more exist while some are being removed."""
    missing_urls: Sequence[str]
    """Brokers whose address is not known yet."""
    removal_blocker: str
    """The reason for which the next broker can't be removed yet; "" when it can."""
    changing: Sequence[str]
    """StatefulSets, and ConfigMaps that pods read, that are being created or changed now, as `kind name`."""
    rollout: Rollout
    is_planned_step: bool
    """True while the operator replaces or removes pods, also while the rollout's state is not known."""
    unknown_fields: Sequence[str]
    """Fields of the spec that this operator does not know."""
    foreign: Sequence[str]
    """Fields and entries of lists that others added to the cluster's objects, as `kind name: path`."""
    data_loss: str
    """The problem of a cluster whose ZooKeeper lost its data; "" if there is none."""
    resizing: str
    """The present step of the ZooKeeper ensemble's resizing, or the reason why it waits; "" if the ensemble has its
    size."""
    growing: str
    """The volumes of ZooKeeper's members that are smaller than requested; "" for none."""
    growth_error: str
    """The error with which a volume could not grow; "" if there is none."""


def cluster_conditions(
    cluster: KubernetesCluster, observed: ObservedCluster, progress: ClusterProgress
) -> list[ConditionValue]:
    """Return the conditions Ready, Progressing, Degraded and CoordinationAvailable of a cluster whose spec is valid, in
    this order.

    :param cluster: the cluster with the number of brokers that may exist now; `progress` has the desired number.
    """
    coordination = coordination_condition(cluster, observed)
    progressing = _progressing(cluster, observed, progress)
    return [
        _ready(cluster, observed, coordination, progress),
        progressing,
        _degraded(observed, progressing, coordination, progress),
        coordination,
    ]


def blocked_conditions(reason: str, message: str) -> list[ConditionValue]:
    """Return the four conditions of a cluster that the operator can't reconcile, such as one with an invalid spec: not
    Ready, not Progressing, Degraded, and CoordinationAvailable Unknown. All have this reason and message."""
    return [
        ConditionValue("Ready", "False", reason, message),
        ConditionValue("Progressing", "False", reason, message),
        ConditionValue("Degraded", "True", reason, message),
        ConditionValue("CoordinationAvailable", "Unknown", reason, message),
    ]


def _ready(
    cluster: KubernetesCluster, observed: ObservedCluster, coordination: ConditionValue, progress: ClusterProgress
) -> ConditionValue:
    """Return the condition Ready: True if enough brokers are ready, and coordination is available or missing only for a
    moment of a planned step."""
    wanted, ready = cluster.spec.brokers.replicas, len(ready_brokers(cluster, observed))
    if ready < _needed_brokers(cluster, observed):
        return ConditionValue("Ready", "False", "BrokersNotReady", f"{ready} of {wanted} brokers accept clients")
    if coordination.status != "True" and not _is_planned_gap(observed, coordination, progress):
        return ConditionValue("Ready", "False", coordination.reason, coordination.message)
    if ready < wanted:
        message = f"{ready} of {wanted} brokers accept clients, enough to serve them"
        return ConditionValue("Ready", "True", "EnoughReady", message)
    return ConditionValue("Ready", "True", ALL_READY, f"all {wanted} brokers accept clients")


def _needed_brokers(cluster: KubernetesCluster, observed: ObservedCluster) -> int:
    """Return how many brokers must accept clients for Ready: a majority of those on the topic groups' member lists, or
    of all while none is known to be on a list, and at least `minCopies`. New brokers are on no list at first."""
    members = len(observed.listed_brokers & set(cluster.broker_names)) or cluster.spec.brokers.replicas
    return max(members // 2 + 1, cluster.spec.delivery.min_copies)


def _is_planned_gap(observed: ObservedCluster, coordination: ConditionValue, progress: ClusterProgress) -> bool:
    """Return whether coordination is missing only for a moment of a planned step: pods are being replaced or removed,
    the cluster was ready before, and coordination has been missing for less than PLANNED_GAP."""
    previous = {condition["type"]: condition for condition in observed.status.get("conditions", ())}
    before = previous.get(coordination.type)
    if before is None or previous.get("Ready", {}).get("status") != "True" or not progress.is_planned_step:
        return False
    return before["status"] == "True" or observed.now - parse_time(before["lastTransitionTime"]) < PLANNED_GAP


def _progressing(cluster: KubernetesCluster, observed: ObservedCluster, progress: ClusterProgress) -> ConditionValue:
    """Return the condition Progressing, with the first of the steps or waits in progress as its reason. It is False if
    there is none, if the rollout is stopped, if the API server rejects an object, or if an apply has no effect."""

    def condition(reason: str, message: str, status: str = "True") -> ConditionValue:
        return ConditionValue("Progressing", status, reason, message)

    if progress.missing_urls:
        message = f"no address yet for {', '.join(progress.missing_urls)}; brokers start when all addresses are known"
        return condition("WaitingForAddresses", message)
    if progress.desired_brokers < cluster.spec.brokers.replicas:
        scaling = (
            f"removing brokers one at a time: {cluster.spec.brokers.replicas} exist, {progress.desired_brokers} desired"
        )
        if not progress.removal_blocker:
            return condition("Scaling", scaling)
        blocked = f"{scaling}; waiting: {progress.removal_blocker}"
        if progress.rollout.state == "stopped":  # possibly by what the removal waits for, so it needs a person
            return condition(ROLLOUT_STOPPED, f"{progress.rollout.message}; {blocked}", "False")
        return condition("Scaling", blocked)
    if {f"{kind} {name}" for kind, name in observed.permanently_rejected} & set(progress.changing):
        return condition(REJECTED, _rejection(observed), "False")
    set_names = [names.brokers_name(observed.owner.name)]
    if cluster.spec.zookeeper.external is None:
        set_names.append(names.zookeeper_name(observed.owner.name))
    for name in set_names:
        if ("StatefulSet", name) not in observed.objects:
            if is_being_created(observed):
                return condition("Creating", f"creating StatefulSet {name}")
            return condition("Updating", f"creating StatefulSet {name} again")
    if progress.changing:
        return condition("Updating", f"updating {', '.join(progress.changing)}")
    sets = [observed.objects["StatefulSet", name] for name in set_names]
    for stateful_set in sets:
        if stateful_set.get("status", {}).get("observedGeneration", 0) < stateful_set["metadata"].get("generation", 1):
            return condition("Updating", f"StatefulSet {stateful_set['metadata']['name']} has just changed")
    if progress.rollout.state == "stopped":
        return condition(ROLLOUT_STOPPED, progress.rollout.message, "False")
    if progress.rollout.state == "rolling":
        return condition(ROLLING_OUT, progress.rollout.message)
    for stateful_set in sets:
        name, status = stateful_set["metadata"]["name"], stateful_set.get("status", {})
        replicas = stateful_set["spec"]["replicas"]
        if status.get("replicas", 0) != replicas:
            return condition("Scaling", f"{name}: {status.get('replicas', 0)} pods exist, {replicas} desired")
        if status.get("readyReplicas", 0) < replicas:
            return condition("Starting", f"{name}: {status.get('readyReplicas', 0)} of {replicas} pods are ready")
    if progress.resizing:
        return condition("ZooKeeperResizing", progress.resizing)
    if progress.growing:
        return condition("VolumesGrowing", progress.growing)
    if observed.permanently_rejected:
        return condition(REJECTED, _rejection(observed), "False")
    if observed.ineffective:
        return condition(INEFFECTIVE, _without_effect(observed), "False")
    if observed.rejected:
        kind, name = min(observed.rejected)
        return condition("Updating", f"applying {kind} {name} failed and will be retried")
    return condition(SETTLED, "the cluster is as desired", "False")


def is_being_created(observed: ObservedCluster) -> bool:
    """Return whether objects that are missing may never have existed, by the reason of Progressing in the last status:
    there is no such condition yet, or objects were being created, or addresses of brokers were awaited. The same holds
    if there is no broker pod, and the operator was paused, the spec was invalid, or an object was rejected."""
    before = next((each for each in observed.status.get("conditions", ()) if each["type"] == "Progressing"), None)
    if before is None or before["reason"] in ("Creating", "WaitingForAddresses"):
        return True
    return before["reason"] in (PAUSED, INVALID_SPEC, REJECTED) and not observed.pods_of(names.BROKER)


def _rejection(observed: ObservedCluster) -> str:
    kind, name = min(observed.permanently_rejected)
    return f"the API server rejects {kind} {name}: {observed.permanently_rejected[kind, name]}"


def _without_effect(observed: ObservedCluster) -> str:
    kind, name = min(observed.ineffective)
    return (
        f"{kind} {name} was applied and {observed.ineffective[kind, name]} is still not as the operator sets it; "
        "find the admission webhook or the controller that changes it"
    )


def _degraded(
    observed: ObservedCluster,
    progressing: ConditionValue,
    coordination: ConditionValue,
    progress: ClusterProgress,
) -> ConditionValue:
    """Return the condition Degraded, with the first problem as its reason. Missing coordination and waiting topic
    groups are problems only while nothing is in progress. Without a problem it is False; its message then names fields
    that the operator does not know, or foreign fields."""

    def condition(reason: str, message: str, status: str = "True") -> ConditionValue:
        return ConditionValue("Degraded", status, reason, message)

    if progress.data_loss:  # first: what other problems suggest, a restart, would take copies away
        return condition("ZooKeeperDataLost", progress.data_loss)
    for component in (names.ZOOKEEPER, names.BROKER):
        for pod in sorted(observed.pods_of(component), key=lambda pod: str(pod["metadata"]["name"])):
            if (trouble := find_trouble(pod)) is not None:
                return condition(*trouble)
    if observed.conflicting:
        kind, name = min(observed.conflicting)
        message = f"{kind} {name} belongs to another owner; delete or rename it, or give the cluster another name"
        return condition("NameTaken", message)
    if observed.permanently_rejected:
        return condition(REJECTED, _rejection(observed))
    if observed.ineffective:
        return condition(INEFFECTIVE, _without_effect(observed))
    if progress.growth_error:
        return condition("VolumeResizeFailed", progress.growth_error)
    if progressing.reason == ROLLOUT_STOPPED:
        return condition(ROLLOUT_STOPPED, progressing.message)
    waiting = sum(page.waiting_groups for page in observed.pages.values())
    if progressing.status == "False" and coordination.status == "False":
        return condition(coordination.reason, coordination.message)
    if progressing.status == "False" and waiting:
        message = f"topic groups wait for brokers of their last member list (reported {waiting} times)"
        return condition("GroupsWait", message)
    if progress.unknown_fields:
        fields = ", ".join(progress.unknown_fields)
        message = (
            f"the operator is older than the custom resource definitions and ignores {fields}; upgrade the operator"
        )
        return condition("UnknownFields", message, "False")
    if progress.foreign:
        named = "; ".join(progress.foreign[:_MAX_FOREIGN_NAMED])
        more = len(progress.foreign) - _MAX_FOREIGN_NAMED
        message = f"set by others, and left as it is: {named}{f'; and {more} more' if more > 0 else ''}"
        return condition("ForeignFields", message, "False")
    return condition(NO_PROBLEM, "no problem is known", "False")
