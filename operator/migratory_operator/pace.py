"""How many brokers there are to be next, on the way to fewer; pure.

What a topic group needs to go on is a part of the brokers of its last list. Two that leave at once can take that with
them, one can't: so the last one leaves when all that stay are well, and the next when the groups have got over it. Who
leaves later is told to all from the start (`leaving`): no client is sent there, to be sent on.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.health import brokers_unwell, coordination
from migratory_operator.observe import Observed


@dataclass(frozen=True)
class Present:
    """`cluster`: with as many brokers as there are to be now, those that were asked for, or more for a while;
    `leaving`: the surplus; `stays`: why the last of them has to wait, "" when none does; `untold`: it waits for no more
    than to hear of the others, and nothing else is to happen before."""

    cluster: KubernetesCluster
    leaving: Sequence[str] = ()
    stays: str = ""
    untold: bool = False


def at_present(asked: KubernetesCluster, observed: Observed) -> Present:
    live = observed.objects.get(("StatefulSet", names.brokers_name(observed.owner.name)))
    there, wanted = int(live["spec"]["replicas"]) if live is not None else 0, asked.spec.brokers.replicas
    if there <= wanted:
        return Present(asked)
    now = _with(there, asked)
    leaving = now.broker_names[wanted:]
    if why := _stays(now, leaving, observed):
        return Present(now, leaving, why)
    if why := _untold(leaving, observed):
        return Present(now, leaving, why, untold=True)
    return Present(_with(there - 1, asked), leaving[:-1])


def _stays(now: KubernetesCluster, leaving: Sequence[str], observed: Observed) -> str:
    """Why the last broker of `now` can't be spared yet; ZooKeeper need have no more than its quorum."""
    last = now.broker_names[-1]
    pod = observed.named(names.BROKER).get(last)
    if pod is None or pod.get("status", {}).get("phase") == "Pending":
        return ""  # it does not run, and holds nothing
    coordinated = coordination(now, observed)
    if coordinated.status != "True":
        return coordinated.message
    copies = max(page.copies for page in observed.pages.values())
    if len(now.broker_names) < 2 * copies:
        return f"topic groups have {copies} copies still, which takes {2 * copies - 1} brokers"
    listed = frozenset[str]().union(*(page.listed for page in observed.pages.values()))
    if before := sorted(listed - set(now.broker_names)):
        return f"{before[0]}, the one before, is on the list of a topic group still"
    # Others that are to leave and are on no list count for nothing any more, well or not.
    return brokers_unwell(now, observed, {last, *(set(leaving) - listed)})


def _untold(leaving: Sequence[str], observed: Observed) -> str:
    """Whether the last would send its clients to brokers that leave, too: the file takes a minute to reach its pod."""
    *others, last = leaving
    page = observed.pages.get(last)
    counted_on = sorted(page.staying & set(others)) if page is not None and page.clients else []
    return f"{last} has not read yet that {counted_on[0]} leaves, too" if counted_on else ""


def _with(replicas: int, asked: KubernetesCluster) -> KubernetesCluster:
    brokers = asked.spec.brokers.model_copy(update={"replicas": replicas})
    return asked.model_copy(update={"spec": asked.spec.model_copy(update={"brokers": brokers})})
