"""How many brokers there are to be next, on the way to fewer; pure.

What a topic group needs to go on is a part of the brokers of its last list. Two that leave at once can take that with
them, one can't: so the last one leaves when all that stay are well, and the next when the groups have got over it.
"""

from __future__ import annotations

from migratory_resources.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.conditions import coordination, ready_brokers
from migratory_operator.observe import Observed


def at_present(asked: KubernetesCluster, observed: Observed) -> KubernetesCluster:
    """The cluster with as many brokers as there are to be now: those that were asked for, or more for a while."""
    live = observed.objects.get(("StatefulSet", names.brokers_name(observed.owner.name)))
    there = int(live["spec"]["replicas"]) if live is not None else 0
    if there <= asked.spec.brokers.replicas:
        return asked
    now = _with(there, asked)
    return _with(there - 1, asked) if _may_leave(now, observed) else now


def _may_leave(now: KubernetesCluster, observed: Observed) -> bool:
    """Whether the last broker of `now` may."""
    *staying, last = now.broker_names
    pods = {pod["metadata"]["name"]: pod for pod in observed.pods_of(names.BROKER)}
    if last in pods and pods[last].get("status", {}).get("phase") == "Pending":
        return True  # it never ran, and holds nothing
    listed = frozenset[str]().union(*(page.listed for page in observed.pages.values()))
    return (
        set(pods) <= set(now.broker_names)
        and set(staying) <= set(ready_brokers(now, observed))
        and coordination(now, observed).status == "True"
        and listed <= set(now.broker_names)  # the one before is off every list
    )


def _with(replicas: int, asked: KubernetesCluster) -> KubernetesCluster:
    brokers = asked.spec.brokers.model_copy(update={"replicas": replicas})
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"brokers": brokers})})
