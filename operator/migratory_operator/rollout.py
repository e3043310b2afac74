"""Which pod, if any, is replaced next because it is not as its StatefulSet has it now; pure.

The StatefulSets leave their pods alone (`OnDelete`): whether one can be spared is more than its own readiness says
(`health.py`). The rules, in this order; each follows from what is observed, so an operator that was killed goes on.

| rule | |
| --- | --- |
| STOPPED | while a pod of the present revision has failed nothing is replaced: the next one would fail as well |
| EMPTY | pods of an old revision that run nothing go at once: they serve nobody and hold nothing, and what they wait for (an image that is not there) may be what was mended. So do ZooKeeper's members that have failed and never were ready |
| ENSEMBLE | ZooKeeper's members next, one at a time, the leader last, while all others serve, all brokers that answer reach them, and no broker is on its way |
| BROKERS | then the brokers, one at a time, from the last one on, while all others are well |
| UNWELL-FIRST | one that is not ready itself goes before those that are. Others that are not, and that no topic group lists, keep it from nothing |
"""  # noqa: E501

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.health import brokers_unwell, ensemble_unwell, failed, member_names, never_ready
from migratory_operator.names import Object
from migratory_operator.observe import Observed, is_ready, leaves, trouble


@dataclass(frozen=True)
class Replacement:
    """A pod that is to go. `gently`: by an eviction, which a node's drain at the same moment makes the API server
    refuse; else by deletion, which nothing forbids."""

    pod: Object
    gently: bool


@dataclass(frozen=True)
class Rollout:
    """`message` says which pod and what is waited for, or why it stopped. `unseen`: what pods are to be made from is on
    its way, and whether any of them is old is not known before it is there."""

    state: Literal["none", "unseen", "rolling", "stopped"] = "none"
    message: str = ""
    replace: tuple[Replacement, ...] = ()


UNSEEN = Rollout("unseen")


def next_step(cluster: KubernetesCluster, observed: Observed, began: bool) -> Rollout:
    """:param began: whether a rollout is under way already; it ends when all is well."""
    members, brokers = _revisions(observed, names.ZOOKEEPER), _revisions(observed, names.BROKER)
    if members is None or brokers is None:
        return UNSEEN
    old_members = _old(member_names(cluster, observed), observed, names.ZOOKEEPER, members)
    old_brokers = _old(tuple(reversed(cluster.broker_names)), observed, names.BROKER, brokers)
    old = [*old_members, *old_brokers]
    if not old and not began:
        return Rollout()
    for component, revision in ((names.ZOOKEEPER, members), (names.BROKER, brokers)):
        for pod in observed.pods_of(component):
            if pod["metadata"]["labels"].get(names.REVISION) == revision and (why := failed(pod, observed.now)):
                return Rollout("stopped", f"{why}; {_left(old)}")
    if not old:
        why = ensemble_unwell(cluster, observed) or brokers_unwell(cluster, observed)
        return Rollout("rolling", f"every pod is new; waits: {why}") if why else Rollout()
    empty = tuple(Replacement(pod, gently=False) for pod in old if _is_empty(pod, cluster, observed.now))
    if empty:
        gone = ", ".join(_name(one.pod) for one in empty)
        others = [pod for pod in old if pod not in [one.pod for one in empty]]
        return Rollout("rolling", f"{gone} ran nothing and goes at once; {_left(others)}", empty)
    if old_members:
        old_members.sort(key=lambda pod: _ORDER.get(observed.modes.get(_name(pod), ""), 1))
        return _one_of(old_members, lambda but: _members_stay(cluster, observed, but), old)
    listed = frozenset[str]().union(*(page.listed for page in observed.pages.values()))
    idle = {_name(pod) for pod in old_brokers if not is_ready(pod) and not leaves(pod)} - listed
    return _one_of(old_brokers, lambda but: _brokers_stay(cluster, observed, but), old, idle)


def old_members(observed: Observed) -> list[Object]:
    """ZooKeeper's pods that are to be replaced: those whose mode matters."""
    revision = _revisions(observed, names.ZOOKEEPER)
    return _old(tuple(sorted(observed.named(names.ZOOKEEPER))), observed, names.ZOOKEEPER, revision or "")


# Those that lead go last: each change of the leader is an election.
_ORDER = {"follower": 0, "leader": 2}


def _revisions(observed: Observed, component: str) -> str | None:
    """What the pods' label is to be; "" where there are none of these pods; None while the StatefulSet's controller
    has not seen its last change."""
    name = {names.ZOOKEEPER: names.zookeeper_name, names.BROKER: names.brokers_name}[component](observed.owner.name)
    found = observed.objects.get(("StatefulSet", name))
    if found is None:
        return ""
    status = found.get("status", {})
    if status.get("observedGeneration", 0) < found["metadata"].get("generation", 1):
        return None
    return str(status.get("updateRevision", ""))


def _old(wanted: Sequence[str], observed: Observed, component: str, revision: str) -> list[Object]:
    """Pods of another revision, in the order of `wanted`."""
    pods = observed.named(component)
    there = [pods[name] for name in wanted if name in pods]
    return [pod for pod in there if revision and pod["metadata"]["labels"].get(names.REVISION) != revision]


def _is_empty(pod: Object, cluster: KubernetesCluster, now: datetime) -> bool:
    """Runs nothing and can't: nothing is lost with it."""
    if leaves(pod):
        return False
    status = pod.get("status", {})
    if status.get("phase") == "Pending":
        return True
    if _component(pod) == names.ZOOKEEPER:
        if never_ready(pod) and failed(pod, now):
            return True  # no quorum ever counted it
        if cluster.spec.zookeeper.storage.ephemeral:
            return False  # it has run, and what it wrote is in the pod
    containers = status.get("containerStatuses") or ()
    return trouble(pod) is not None and all("waiting" in one.get("state", {}) for one in containers)


def _one_of(
    pods: Sequence[Object], unwell: Callable[[Set[str]], str], old: Sequence[Object], idle: Set[str] = frozenset()
) -> Rollout:
    """:param unwell: why pods of these names can't be spared.
    :param idle: pods that are not ready, and that nobody misses."""
    why = unwell(frozenset())
    if not why:
        return _replace(pods[0], old)
    for pod in pods:
        if not is_ready(pod) and not leaves(pod) and not unwell({_name(pod), *idle}):
            # beside others that are not ready the disruption budget would keep it
            return _replace(pod, old, gently=not idle - {_name(pod)})
    return Rollout("rolling", f"waits: {why}; {_left(old)}")


def _members_stay(cluster: KubernetesCluster, observed: Observed, but: Set[str]) -> str:
    """Why ZooKeeper can't do without one more member now."""
    if why := ensemble_unwell(cluster, observed, but):
        return why
    pods = observed.named(names.BROKER)
    for broker in cluster.broker_names:
        if broker not in pods or leaves(pods[broker]):
            return f"{broker} is being replaced"
        if not is_ready(pods[broker]) and not failed(pods[broker], observed.now):
            return f"{broker} is not ready"
    for broker, page in sorted(observed.pages.items()):
        if not page.zookeeper_connected:
            return f"{broker} does not reach ZooKeeper"
    return ""


def _brokers_stay(cluster: KubernetesCluster, observed: Observed, but: Set[str]) -> str:
    """Why the cluster can't do without one more broker now."""
    return ensemble_unwell(cluster, observed) or brokers_unwell(cluster, observed, but)


def _replace(pod: Object, old: Sequence[Object], gently: bool = True) -> Rollout:
    others = [one for one in old if one is not pod]
    return Rollout("rolling", f"{_name(pod)} is being replaced; {_left(others)}", (Replacement(pod, gently),))


def _left(old: Sequence[Object]) -> str:
    staying = sorted(_name(pod) for pod in old if not leaves(pod))
    return f"of an old revision: {', '.join(staying)}" if staying else "no other pod is of an old revision"


def _component(pod: Object) -> str:
    return str(pod["metadata"]["labels"]["app.kubernetes.io/component"])


def _name(pod: Object) -> str:
    return str(pod["metadata"]["name"])
