"""Scaling: how many brokers may exist next, while the number of brokers is reduced; pure.

A topic group needs a quorum of the brokers on its last member list. Removing two brokers at once may lose the quorum,
removing one can't. So the broker with the highest ordinal is removed when all brokers that stay are healthy, and the
next one when the topic groups have adapted their member lists. All brokers learn from the start which ones will be
removed (`leaving`), so that no client is sent to one of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.reconcile.health import broker_problem, coordination_condition
from migratory_operator.reconcile.observed import ObservedCluster


@dataclass(frozen=True)
class ScaleStep:
    """The number of brokers that may exist now, which is the desired number or, while brokers are removed, a larger
    one."""

    cluster: KubernetesCluster
    """The cluster with as many brokers as there may be now: the desired number, or more for a while."""
    leaving: Sequence[str] = ()
    """The brokers of `cluster` above the desired number."""
    blocked_by: str = ""
    """The reason for which the last broker of `leaving` can't be removed yet; "" if this step removes one, or none is
    too many."""
    waits_for_config: bool = False
    """True if `blocked_by` is only that the last broker has not read yet which other brokers leave. No pod may be
    replaced before it has."""


def next_scale_step(desired: KubernetesCluster, observed: ObservedCluster) -> ScaleStep:
    """Return the next step from the number of brokers that the StatefulSet has to the desired number.

    A larger number is reached in one step. For a smaller one, the step removes the broker with the highest ordinal, or
    says what blocks that.

    :param desired: the cluster as its resource describes it.
    """
    live = observed.objects.get(("StatefulSet", names.brokers_name(observed.owner.name)))
    present, replicas = int(live["spec"]["replicas"]) if live is not None else 0, desired.spec.brokers.replicas
    if present <= replicas:
        return ScaleStep(desired)
    current = _with_replicas(present, desired)
    leaving = current.broker_names[replicas:]
    if reason := _removal_blocker(current, leaving, observed):
        return ScaleStep(current, leaving, reason)
    if reason := _config_blocker(leaving, observed):
        return ScaleStep(current, leaving, reason, waits_for_config=True)
    return ScaleStep(_with_replicas(present - 1, desired), leaving[:-1])


def _removal_blocker(current: KubernetesCluster, leaving: Sequence[str], observed: ObservedCluster) -> str:
    """Return the reason for which the broker with the highest ordinal can't be removed yet, "" if it can. A broker
    whose pod is missing or pending does not run, and can always be removed.

    Unlike a rollout, this does not require that all ZooKeeper members are ready; a quorum suffices.

    :param current: the cluster with the number of brokers that exist.
    :param leaving: the brokers above the desired number.
    """
    last = current.broker_names[-1]
    pod = observed.pods_by_name(names.BROKER).get(last)
    if pod is None or pod.get("status", {}).get("phase") == "Pending":
        return ""  # it does not run, so it holds nothing
    coordination = coordination_condition(current, observed)
    if coordination.status != "True":
        return coordination.message
    copies = max(page.copies for page in observed.pages.values())
    if len(current.broker_names) < 2 * copies:
        return f"topic groups still have {copies} copies, which require {2 * copies - 1} brokers"
    listed = observed.listed_brokers
    if removed := sorted(listed - set(current.broker_names)):
        return f"{removed[0]}, which was removed before, is still on the member list of a topic group"
    # Leaving brokers that are on no member list hold nothing, so their health does not matter.
    return broker_problem(current, observed, {last, *(set(leaving) - listed)})


def _config_blocker(leaving: Sequence[str], observed: ObservedCluster) -> str:
    """Return a reason while the last broker of `leaving` has clients and has not read yet which other brokers leave: it
    would send its clients to them. Else return "", also if the broker does not answer.

    A changed ConfigMap takes up to a minute to reach the broker's pod.
    """
    *others, last = leaving
    page = observed.pages.get(last)
    targets = sorted(page.staying & set(others)) if page is not None and page.clients else []
    return f"{last} has not read yet that {targets[0]} will be removed, too" if targets else ""


def _with_replicas(replicas: int, cluster: KubernetesCluster) -> KubernetesCluster:
    brokers = cluster.spec.brokers.model_copy(update={"replicas": replicas})
    return cluster.model_copy(update={"spec": cluster.spec.model_copy(update={"brokers": brokers})})
