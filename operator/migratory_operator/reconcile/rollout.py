"""The rollout: decides which pod is replaced next because it is not of its StatefulSet's current revision; pure.

The StatefulSets leave their pods alone (`OnDelete`): whether the cluster can do without a pod depends on more than
readiness (`health.py`). The rules apply in this order. Each follows from observed state, so a restarted operator
continues where the previous one stopped.

| rule | |
| --- | --- |
| STOPPED | while a pod of the current revision has failed nothing is replaced: the next one would fail as well |
| EMPTY | pods of an old revision that run nothing are deleted at once: they serve nobody and hold nothing, and the change may repair what they wait for (such as a missing image). So are ZooKeeper members that have failed and never were ready |
| ENSEMBLE | ZooKeeper's members come first, one at a time, the leader last, while all other members serve, all brokers that answer are connected to ZooKeeper, and no broker is starting |
| BROKERS | then the brokers, one at a time, from the highest ordinal down, while all others are healthy |
| UNWELL-FIRST | a pod that is not ready itself is replaced before those that are. Other pods that are not ready, and on no member list, do not block it |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.names import Object
from migratory_operator.reconcile.health import broker_problem, ensemble_problem, member_names
from migratory_operator.reconcile.observed import ObservedCluster
from migratory_operator.reconcile.pods import find_failure, find_trouble, is_ready, is_terminating, was_never_ready


@dataclass(frozen=True)
class Replacement:
    """A pod that the operator removes, so that its StatefulSet creates it again with the current revision."""

    pod: Object
    evict: bool
    """True to evict the pod, which the API server refuses while a node's drain uses the disruption budget; false to
    delete it, which nothing forbids."""


@dataclass(frozen=True)
class Rollout:
    """The state of a rollout, and the pods to be replaced now."""

    state: Literal["none", "unknown", "rolling", "stopped"] = "none"
    """none: all pods are up to date; rolling: pods are being replaced, or the cluster is not healthy yet afterwards;
    stopped: a pod of the current revision has failed; unknown: the StatefulSets are about to change, or Kubernetes has
    not processed their last change, so the pods' revisions can't be compared yet."""
    message: str = ""
    """The pod that is replaced and what the rollout waits for, or why it stopped; "" in the other states."""
    replace: tuple[Replacement, ...] = ()


UNKNOWN_ROLLOUT = Rollout("unknown")


def next_rollout_step(cluster: KubernetesCluster, observed: ObservedCluster, in_progress: bool) -> Rollout:
    """Return the state of the rollout and the pods to replace now, which are none while it waits or is stopped.

    :param in_progress: True if a rollout has started already. It then ends only when all pods are up to date and the
        cluster is healthy.
    """
    member_revision, broker_revision = _revision(observed, names.ZOOKEEPER), _revision(observed, names.BROKER)
    if member_revision is None or broker_revision is None:
        return UNKNOWN_ROLLOUT
    old_members = _outdated(member_names(cluster, observed), observed, names.ZOOKEEPER, member_revision)
    old_brokers = _outdated(tuple(reversed(cluster.broker_names)), observed, names.BROKER, broker_revision)
    outdated = [*old_members, *old_brokers]
    if not outdated and not in_progress:
        return Rollout()
    for component, revision in ((names.ZOOKEEPER, member_revision), (names.BROKER, broker_revision)):
        for pod in observed.pods_of(component):
            if pod["metadata"]["labels"].get(names.REVISION) != revision:
                continue
            if failure := find_failure(pod, observed.now):
                return Rollout("stopped", f"{failure}; {_remaining(outdated)}")
    if not outdated:
        problem = ensemble_problem(cluster, observed) or broker_problem(cluster, observed)
        return Rollout("rolling", f"all pods are up to date; waiting: {problem}") if problem else Rollout()
    empty = tuple(Replacement(pod, evict=False) for pod in outdated if _is_empty(pod, cluster, observed.now))
    if empty:
        replaced = ", ".join(_name(replacement.pod) for replacement in empty)
        others = [pod for pod in outdated if pod not in [replacement.pod for replacement in empty]]
        return Rollout("rolling", f"deleting {replaced}, which run nothing; {_remaining(others)}", empty)
    if old_members:
        old_members.sort(key=lambda pod: _MODE_ORDER.get(observed.modes.get(_name(pod), ""), 1))
        return _replace_one(old_members, lambda excluding: _member_blocker(cluster, observed, excluding), outdated)
    not_ready = {_name(pod) for pod in old_brokers if not is_ready(pod) and not is_terminating(pod)}
    idle = not_ready - observed.listed_brokers
    return _replace_one(old_brokers, lambda excluding: _broker_blocker(cluster, observed, excluding), outdated, idle)


def outdated_members(observed: ObservedCluster) -> list[Object]:
    """Return the ZooKeeper pods of an old revision; none while the current revision is not known. The caller asks these
    members for their modes, which decide the order of replacement."""
    revision = _revision(observed, names.ZOOKEEPER)
    member_pods = tuple(sorted(observed.pods_by_name(names.ZOOKEEPER)))
    return _outdated(member_pods, observed, names.ZOOKEEPER, revision or "")


_MODE_ORDER = {"follower": 0, "leader": 2}
"""Order of replacement by mode; unknown modes have 1. The leader is last: each change of the leader is an election."""


def _revision(observed: ObservedCluster, component: str) -> str | None:
    """Return the current revision of a component's pods, which is that of its StatefulSet.

    Return "" if there is no StatefulSet; None while Kubernetes has not processed the StatefulSet's last change.
    """
    name = {names.ZOOKEEPER: names.zookeeper_name, names.BROKER: names.brokers_name}[component](observed.owner.name)
    stateful_set = observed.objects.get(("StatefulSet", name))
    if stateful_set is None:
        return ""
    status = stateful_set.get("status", {})
    if status.get("observedGeneration", 0) < stateful_set["metadata"].get("generation", 1):
        return None
    return str(status.get("updateRevision", ""))


def _outdated(wanted: Sequence[str], observed: ObservedCluster, component: str, revision: str) -> list[Object]:
    """Return the existing pods named in `wanted` whose revision is not `revision`, in the order of `wanted`; none if
    `revision` is ""."""
    pods = observed.pods_by_name(component)
    present = [pods[name] for name in wanted if name in pods]
    return [pod for pod in present if revision and pod["metadata"]["labels"].get(names.REVISION) != revision]


def _is_empty(pod: Object, cluster: KubernetesCluster, now: datetime) -> bool:
    """Return whether deleting a pod loses nothing.

    True for a pending pod, for a ZooKeeper member that failed before it was ever ready, and for a pod in trouble (see
    `find_trouble`) whose containers all wait. False for a terminating pod, and for a ZooKeeper member with ephemeral
    storage that is neither pending nor failed before it was ready: its data is inside the pod.
    """
    if is_terminating(pod):
        return False
    status = pod.get("status", {})
    if status.get("phase") == "Pending":
        return True
    if _component(pod) == names.ZOOKEEPER:
        if was_never_ready(pod) and find_failure(pod, now):
            return True  # no quorum ever included it
        if cluster.spec.zookeeper.storage.ephemeral:
            return False  # it has run, and its data is inside the pod
    containers = status.get("containerStatuses") or ()
    return find_trouble(pod) is not None and all("waiting" in status.get("state", {}) for status in containers)


def _replace_one(
    pods: Sequence[Object],
    blocker: Callable[[Set[str]], str],
    outdated: Sequence[Object],
    idle: Set[str] = frozenset(),
) -> Rollout:
    """Return the rollout that replaces the first of `pods` if nothing blocks it. Else it replaces the first of them
    that is not ready and without which nothing blocks. If there is none, the rollout waits and says for what.

    :param pods: pods of an old revision, in the order of their replacement.
    :param blocker: returns the reason for which the cluster can't do without the pods of these names, "" if it can. For
        no names, it is the reason for which it can't do without any one pod.
    :param outdated: all pods of an old revision, for the message.
    :param idle: the names of pods that are not ready and whose brokers are on no member list. They block nothing. While
        there are others of them, the replaced pod is deleted: the disruption budget would forbid its eviction.
    """
    reason = blocker(frozenset())
    if not reason:
        return _replace(pods[0], outdated)
    for pod in pods:
        if not is_ready(pod) and not is_terminating(pod) and not blocker({_name(pod), *idle}):
            # While other pods are not ready the disruption budget would forbid the eviction.
            return _replace(pod, outdated, evict=not idle - {_name(pod)})
    return Rollout("rolling", f"waiting: {reason}; {_remaining(outdated)}")


def _member_blocker(cluster: KubernetesCluster, observed: ObservedCluster, excluding: Set[str]) -> str:
    """Return the reason for which the ensemble can't do without the members in `excluding`, or for an empty set without
    any one member; "" if it can. All other members must be ready. All brokers must exist and none be starting, and
    those that answer be connected to ZooKeeper."""
    if problem := ensemble_problem(cluster, observed, excluding):
        return problem
    pods = observed.pods_by_name(names.BROKER)
    for broker in cluster.broker_names:
        if broker not in pods or is_terminating(pods[broker]):
            return f"{broker} is being replaced"
        if not is_ready(pods[broker]) and not find_failure(pods[broker], observed.now):
            return f"{broker} is not ready"
    for broker, page in sorted(observed.pages.items()):
        if not page.zookeeper_connected:
            return f"{broker} is not connected to ZooKeeper"
    return ""


def _broker_blocker(cluster: KubernetesCluster, observed: ObservedCluster, excluding: Set[str]) -> str:
    """Return the reason for which the cluster can't do without the brokers in `excluding`, or for an empty set without
    any one broker; "" if it can. All other brokers and all ZooKeeper members must be healthy."""
    return ensemble_problem(cluster, observed) or broker_problem(cluster, observed, excluding)


def _replace(pod: Object, outdated: Sequence[Object], evict: bool = True) -> Rollout:
    """Return the rollout that replaces this pod now."""
    others = [other for other in outdated if other is not pod]
    return Rollout("rolling", f"replacing {_name(pod)}; {_remaining(others)}", (Replacement(pod, evict),))


def _remaining(outdated: Sequence[Object]) -> str:
    remaining = sorted(_name(pod) for pod in outdated if not is_terminating(pod))
    return f"still of an old revision: {', '.join(remaining)}" if remaining else "no other pod is of an old revision"


def _component(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])
