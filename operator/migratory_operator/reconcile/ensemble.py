"""Resizing of the ZooKeeper ensemble: which member joins or leaves next; pure.

ZooKeeper changes its voting members by a reconfiguration, a write of its own that a quorum of the old and of the new
members must confirm. Each step here follows from what the members say about their present configuration, so that an
operator that was killed at any point goes on from there.

| rule | |
| --- | --- |
| ONE-AT-A-TIME | a reconfiguration adds one member or removes one: any quorum of the old configuration shares a member with any of the new one |
| JOIN-SYNCED | a member's pod is started first, without a vote. It votes once it is ready, which means that it has the leader's data |
| LEAVE-FIRST | a member's vote is taken away first, and its pod afterwards |
| KNOWN | nothing is done unless a majority of the voting members say the same configuration, and no other member a newer one: a later configuration would have been confirmed by one of them |
| FROM-VERSION | the leader is asked to change exactly the version that was observed, so that an old request changes nothing |
| VERSIONED | an ensemble that was never reconfigured is first given its present members once more. Members that join adopt only configurations with a version above 0 |
| UPDATED-FIRST | pods of an old revision are replaced before members join or leave |
"""  # noqa: E501

from __future__ import annotations

from dataclasses import dataclass

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.reconcile.health import pods_problem
from migratory_operator.reconcile.observed import ObservedCluster
from migratory_operator.reconcile.rollout import outdated_members


@dataclass(frozen=True)
class Reconfiguration:
    """A change of the voting members that the leader should make: from exactly this version to these ids."""

    version: int
    members: tuple[int, ...]


@dataclass(frozen=True)
class EnsembleStep:
    """The pods of members that may exist now, and the change of the voting members that the leader should make."""

    cluster: KubernetesCluster
    """The cluster with as many members as there may be pods now."""
    voters: tuple[int, ...] | None = None
    """Ids of the members that vote now; None while that is not known."""
    reconfiguration: Reconfiguration | None = None
    message: str = ""
    """The present step of the resizing, or the reason why it waits; "" if the ensemble has its size, or its size is not
    known to differ."""


def next_ensemble_step(desired: KubernetesCluster, observed: ObservedCluster) -> EnsembleStep:
    """Return the next step from the present members of the ensemble to the desired number.

    :param desired: the cluster as its resource describes it.
    """
    zookeeper = desired.spec.zookeeper
    live = observed.objects.get(("StatefulSet", names.zookeeper_name(observed.owner.name)))
    if zookeeper.external is not None or live is None:
        return EnsembleStep(desired)
    present, replicas = int(live["spec"]["replicas"]), zookeeper.replicas
    config = observed.ensemble
    if config is None:
        message = _progress(replicas, present, "no majority of the members says which members vote")
        return EnsembleStep(_with_members(present, desired), message="" if present == replicas else message)
    voters = tuple(sorted(config.members))
    wanted = set(range(1, replicas + 1))
    joining, leaving = sorted(wanted - config.members), sorted(config.members - wanted)
    if not joining and not leaving:
        return EnsembleStep(_with_members(voters[-1], desired), voters)
    if config.version == 0:
        changed, pods, excluded = config.members, voters[-1], set[int]()
    elif joining:
        changed, pods, excluded = config.members | {joining[0]}, max(joining[0], voters[-1]), set()
    else:
        changed, pods, excluded = config.members - {leaving[-1]}, voters[-1], {leaving[-1]}
    cluster = _with_members(pods, desired)
    if problem := _blocker(pods, excluded, observed):
        return EnsembleStep(cluster, voters, message=_progress(replicas, len(voters), problem))
    step = Reconfiguration(config.version, tuple(sorted(changed)))
    return EnsembleStep(cluster, voters, step, _progress(replicas, len(voters), "the leader changes the members"))


def _blocker(pods: int, excluded: set[int], observed: ObservedCluster) -> str:
    """Return the reason for which the voting members can't be changed yet, "" if they can: a pod of an old revision, or
    one of the first `pods` members that is not ready, without those in `excluded`."""
    if outdated := outdated_members(observed):
        return f"{outdated[0]['metadata']['name']} is of an old revision"
    name = names.zookeeper_name(observed.owner.name)
    members = {member: f"{name}-{member - 1}" for member in range(1, pods + 1)}
    present = observed.pods_by_name(names.ZOOKEEPER)
    wanted = {pod: present[pod] for pod in members.values() if pod in present}
    return pods_problem(tuple(members.values()), wanted, observed.now, {members[member] for member in excluded})


def _progress(replicas: int, voting: int, step: str) -> str:
    return f"{voting} members vote, {replicas} desired; {step}"


def _with_members(replicas: int, cluster: KubernetesCluster) -> KubernetesCluster:
    zookeeper = cluster.spec.zookeeper.model_copy(update={"replicas": replicas})
    return cluster.model_copy(update={"spec": cluster.spec.model_copy(update={"zookeeper": zookeeper})})
