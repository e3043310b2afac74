"""The checks before the operator removes a pod that runs something: whether the cluster can do without one more. Also
the condition CoordinationAvailable, the list of ready brokers, and what the status says about a loss of ZooKeeper's
data; pure.

A topic group with `minCopies` 2 on three brokers keeps working without one of them, but not without two. Before the
next broker is removed, all others must be available and connected: each a synced member of every topic group, none
fenced, every group with a coordinator whose member list has them all.

The functions whose names end in `problem` return the first problem as text, "" when there is none. `excluding` names
the pods that would be removed, whose own state does not matter. A message stays the same while the problem does: it
becomes a condition's message, and every change of a message is a write.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from datetime import datetime, timedelta

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.api.broker_status import BrokerStatusPage
from migratory_operator.names import Object
from migratory_operator.reconcile.observed import ObservedCluster
from migratory_operator.reconcile.pods import is_ready, is_terminating, unsettled_reason
from migratory_operator.status import ConditionValue, format_time, parse_time

DATA_LOST_AT = "dataLostAt"
"""The field of `status.zookeeper` with the time at which lost data was observed last."""
LOSS_REPORTED = timedelta(minutes=15)
"""The shortest time for which a loss of ZooKeeper's data is reported: as long as the alert about it."""


def broker_problem(cluster: KubernetesCluster, observed: ObservedCluster, excluding: Set[str] = frozenset()) -> str:
    """Return the first problem for which the brokers in `excluding` must not be removed, "" if there is none.

    All other brokers must be ready for long enough, answer, be healthy by their own status pages, and be connected to
    each other. The condition CoordinationAvailable must be True, and all these brokers be on every member list that is
    known. A pod of a broker that the cluster no longer has is a problem, too.
    """
    wanted = cluster.broker_names
    others = [broker for broker in wanted if broker not in excluding]
    if problem := pods_problem(wanted, observed.pods_by_name(names.BROKER), observed.now, excluding):
        return problem
    for broker in others:
        if (page := observed.pages.get(broker)) is None:
            return f"{broker} does not answer"
        if problem := _page_problem(page):
            return f"{broker} {problem}"
        for other in others:
            other_page = observed.pages.get(other)
            if other != broker and (other_page is None or page.links.get(other) != other_page.incarnation):
                return f"{broker} is not connected to {other}"
    coordination = coordination_condition(cluster, observed)
    if coordination.status != "True":
        return coordination.message
    for page in observed.pages.values():
        for group, members in sorted(page.lists.items()):
            if unlisted := sorted(set(others) - members):
                return f"{unlisted[0]} is not on the member list of topic group {group}"
    return ""


def ensemble_problem(cluster: KubernetesCluster, observed: ObservedCluster, excluding: Set[str] = frozenset()) -> str:
    """Return the first problem for which the ZooKeeper members in `excluding` must not be removed, "" if there is none:
    all other members must exist, be ready for long enough, and not be terminating.

    A member's pod is ready when the member serves with a quorum. With an external ensemble there is nothing to check
    here; `coordination_condition` says whether the brokers reach it.
    """
    members = observed.pods_by_name(names.ZOOKEEPER)
    return pods_problem(member_names(cluster, observed), members, observed.now, excluding)


def member_names(cluster: KubernetesCluster, observed: ObservedCluster) -> tuple[str, ...]:
    """Return the names of the ZooKeeper pods that the cluster should have, in the order of their ordinals; none with an
    external ensemble."""
    if cluster.spec.zookeeper.external is not None:
        return ()
    name = names.zookeeper_name(observed.owner.name)
    return tuple(f"{name}-{ordinal}" for ordinal in range(cluster.spec.zookeeper.replicas))


def ready_brokers(cluster: KubernetesCluster, observed: ObservedCluster) -> list[str]:
    """Return the names of the brokers whose pods are ready, in the order of their ordinals."""
    pods = observed.pods_by_name(names.BROKER)
    return [broker for broker in cluster.broker_names if broker in pods and is_ready(pods[broker])]


def coordination_condition(cluster: KubernetesCluster, observed: ObservedCluster) -> ConditionValue:
    """Return the condition CoordinationAvailable.

    It is True if a majority of the ZooKeeper members are ready, a broker is connected to ZooKeeper, and every topic
    group has a coordinator. It is Unknown if the majority is ready and no broker answers, else False. The members of an
    external ensemble are not checked.
    """

    def condition(status: str, reason: str, message: str) -> ConditionValue:
        return ConditionValue("CoordinationAvailable", status, reason, message)

    zookeeper = cluster.spec.zookeeper
    if zookeeper.external is None:
        ensemble, pods = observed.ensemble, observed.pods_by_name(names.ZOOKEEPER)
        # Members that join do not vote yet.
        voters = ensemble.members if ensemble is not None else range(1, zookeeper.replicas + 1)
        name = names.zookeeper_name(observed.owner.name)
        ready = sum(is_ready(pods[pod]) for member in voters if (pod := f"{name}-{member - 1}") in pods)
        if ready < len(voters) // 2 + 1:
            message = f"{ready} of {len(voters)} ZooKeeper members are ready: no quorum"
            return condition("False", "NoQuorum", message)
    if not observed.pages:
        return condition("Unknown", "NoBrokerAnswers", "no broker answers yet")
    if not any(page.zookeeper_connected for page in observed.pages.values()):
        return condition("False", "ZooKeeperUnreachable", "no broker is connected to ZooKeeper")
    coordinated = frozenset[int]().union(*(page.owned for page in observed.pages.values()))
    uncoordinated = cluster.spec.topics.groups - len(coordinated)
    if uncoordinated > 0:
        return condition("False", "GroupsWithoutCoordinator", f"{uncoordinated} topic groups have no coordinator")
    return condition("True", "Coordinated", f"all {cluster.spec.topics.groups} topic groups have a coordinator")


def zookeeper_data(observed: ObservedCluster) -> Object:
    """Return the status fields about ZooKeeper's data: its identity and, if a change of the identity was ever observed,
    the time of the last one. Both stay as they are while no broker that is connected to ZooKeeper reports an identity,
    or such brokers do not agree."""
    before = observed.status.get("zookeeper", {})
    fields = {key: before[key] for key in ("identity", DATA_LOST_AT) if key in before}
    identities = {page.identity for page in observed.pages.values() if page.zookeeper_connected} - {""}
    if len(identities) == 1:
        (identity,) = identities
        if fields.get("identity", identity) != identity:
            fields[DATA_LOST_AT] = format_time(observed.now)
        fields["identity"] = identity
    return fields


def data_loss_problem(observed: ObservedCluster, data: Object) -> str:
    """Return the problem of a cluster whose ZooKeeper lost its data, "" if there is none. There is one while a
    coordinator reports topic groups without a record, and for `LOSS_REPORTED` after a change of the data's identity was
    observed.

    :param data: the fields that `zookeeper_data` returned.
    """
    missing = sum(page.lost_records for page in observed.pages.values())
    lost_at = data.get(DATA_LOST_AT)
    if missing:
        return f"ZooKeeper lost its data; {missing} topic groups have no record yet; restart no broker until they have"
    if lost_at is not None and observed.now - parse_time(lost_at) < LOSS_REPORTED:
        return f"ZooKeeper lost its data, or came back with older data ({lost_at}); check its storage"
    return ""


def _page_problem(page: BrokerStatusPage) -> str:
    """Return the reason in a broker's own status page for which other brokers must not be removed, "" if there is
    none."""
    if page.draining:
        return "is shutting down"
    if page.fenced:
        return "is fenced"
    if not page.member:
        return "is not a synced member of every topic group yet"
    if not page.zookeeper_connected:
        return "is not connected to ZooKeeper"
    if page.lost_records:
        return "coordinates topic groups whose records ZooKeeper lost"
    if page.waiting_groups:
        return "has topic groups that wait for brokers of their last member list"
    return "" if page.ready else "does not accept clients"


def pods_problem(wanted: Sequence[str], pods: Mapping[str, Object], now: datetime, excluding: Set[str]) -> str:
    """Return the first problem of these pods, "" if there is none: a pod that is not in `wanted`, or a wanted one that
    is missing, terminating, not ready or not available for long enough. Pods in `excluding` are not checked."""
    for name in sorted(pods):
        if name not in wanted:
            return f"{name} is terminating"
    for name in wanted:
        if name in excluding:
            continue
        if (pod := pods.get(name)) is None:
            return f"{name} does not exist yet"
        if is_terminating(pod):
            return f"{name} is terminating"
        if not is_ready(pod):
            return f"{name} is not ready"
        if unsettled := unsettled_reason(pod, now):
            return unsettled
    return ""
