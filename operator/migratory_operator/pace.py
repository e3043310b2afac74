"""How many brokers there are to be next, on the way to fewer; pure.

What a topic group needs to go on is a part of the brokers of its last list. Two that leave at once can take that with
them, one can't: so the last one leaves when all that stay are well, and the next when the groups have got over it.
"""

from __future__ import annotations

from migratory_resources.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.health import brokers_unwell, coordination
from migratory_operator.observe import Observed


def at_present(asked: KubernetesCluster, observed: Observed) -> tuple[KubernetesCluster, str]:
    """The cluster with as many brokers as there are to be now: those that were asked for, or more for a while; and why
    the next one that is to leave has to wait."""
    live = observed.objects.get(("StatefulSet", names.brokers_name(observed.owner.name)))
    there = int(live["spec"]["replicas"]) if live is not None else 0
    if there <= asked.spec.brokers.replicas:
        return asked, ""
    now = _with(there, asked)
    why = _stays(now, observed)
    return (now, why) if why else (_with(there - 1, asked), "")


def _stays(now: KubernetesCluster, observed: Observed) -> str:
    """Why the last broker of `now` can't be spared yet; ZooKeeper need have no more than its quorum."""
    last = now.broker_names[-1]
    pod = observed.named(names.BROKER).get(last)
    if pod is not None and pod.get("status", {}).get("phase") == "Pending":
        return ""  # it never ran, and holds nothing
    coordinated = coordination(now, observed)
    if coordinated.status != "True":
        return coordinated.message
    listed = frozenset[str]().union(*(page.listed for page in observed.pages.values()))
    if before := sorted(listed - set(now.broker_names)):
        return f"{before[0]}, the one before, is on the list of a topic group still"
    return brokers_unwell(now, observed, but=last)


def _with(replicas: int, asked: KubernetesCluster) -> KubernetesCluster:
    brokers = asked.spec.brokers.model_copy(update={"replicas": replicas})
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"brokers": brokers})})
