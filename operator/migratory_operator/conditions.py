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

from migratory_resources.cluster.kubernetes import KubernetesCluster

from migratory_operator import names
from migratory_operator.health import coordination, ready_brokers
from migratory_operator.observe import Observed, trouble
from migratory_operator.rollout import Rollout
from migratory_operator.verdict import Verdict

ROLLING, STOPPED, SETTLED, REFUSED = "RollingOut", "RolloutStopped", "Settled", "ObjectRefused"


@dataclass(frozen=True)
class Underway:
    """What the operator is about, as far as the pods alone do not show it.

    `asked`: how many brokers there are to be in the end; fewer while some are leaving, and `stays` says why the next of
    them has to wait. `missing_urls`: brokers whose address is not known. `changing`: what pods are made from and is
    being changed now. `unknown`: fields of the spec that this operator leaves out.
    """

    asked: int
    missing_urls: Sequence[str]
    stays: str
    changing: Sequence[str]
    rollout: Rollout
    unknown: Sequence[str]


def verdicts(cluster: KubernetesCluster, observed: Observed, underway: Underway) -> list[Verdict]:
    """Of a cluster whose spec is valid.

    :param cluster: as it is to be at present.
    """
    coordinated = coordination(cluster, observed)
    progressing = _progressing(cluster, observed, underway)
    return [
        _ready(cluster, observed, coordinated),
        progressing,
        _degraded(observed, progressing, coordinated, underway.unknown),
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


def _ready(cluster: KubernetesCluster, observed: Observed, coordinated: Verdict) -> Verdict:
    wanted, ready = cluster.spec.brokers.replicas, len(ready_brokers(cluster, observed))
    if ready < wanted:
        return Verdict("Ready", "False", "BrokersNotReady", f"{ready} of {wanted} brokers take clients")
    if coordinated.status != "True":
        return Verdict("Ready", "False", coordinated.reason, coordinated.message)
    return Verdict("Ready", "True", "AllReady", f"all {wanted} brokers take clients")


def _progressing(cluster: KubernetesCluster, observed: Observed, underway: Underway) -> Verdict:
    def say(reason: str, message: str, status: str = "True") -> Verdict:
        return Verdict("Progressing", status, reason, message)

    if underway.missing_urls:
        waits = f"no address yet for {', '.join(underway.missing_urls)}: brokers start when all are known"
        return say("WaitingForAddresses", waits)
    if underway.asked < cluster.spec.brokers.replicas:
        leaving = f"{cluster.spec.brokers.replicas} brokers, wanted {underway.asked}: they leave one after the other"
        if not underway.stays:
            return say("Scaling", leaving)
        if underway.rollout.state == "stopped":  # by what they wait for, perhaps: it needs a person
            return say(STOPPED, f"{underway.rollout.message}; {leaving}; waits: {underway.stays}", "False")
        return say("Scaling", f"{leaving}; waits: {underway.stays}")
    if {f"{kind} {name}" for kind, name in observed.refused} & set(underway.changing):
        return say(REFUSED, _refusal(observed), "False")
    wanted = [names.brokers_name(observed.owner.name)]
    if cluster.spec.zookeeper.external is None:
        wanted.append(names.zookeeper_name(observed.owner.name))
    for name in wanted:
        if ("StatefulSet", name) not in observed.objects:
            return say("Creating", f"StatefulSet {name} is being made")
    if underway.changing:
        return say("Updating", f"{', '.join(underway.changing)}: being changed")
    sets = [observed.objects["StatefulSet", name] for name in wanted]
    for found in sets:
        if found.get("status", {}).get("observedGeneration", 0) < found["metadata"].get("generation", 1):
            return say("Updating", f"StatefulSet {found['metadata']['name']} has just changed")
    if underway.rollout.state in ("rolling", "stopped"):
        stopped = underway.rollout.state == "stopped"
        return say(STOPPED if stopped else ROLLING, underway.rollout.message, "False" if stopped else "True")
    for found in sets:
        name, status, replicas = found["metadata"]["name"], found.get("status", {}), found["spec"]["replicas"]
        if status.get("replicas", 0) != replicas:
            return say("Scaling", f"{name}: {status.get('replicas', 0)} pods, wanted {replicas}")
        if status.get("readyReplicas", 0) < replicas:
            return say("Starting", f"{name}: {status.get('readyReplicas', 0)} of {replicas} pods are ready")
    if observed.refused:
        return say(REFUSED, _refusal(observed), "False")
    if observed.untaken:
        kind, name = min(observed.untaken)
        return say("Updating", f"{kind} {name}: was not taken just now, and is tried again")
    return say(SETTLED, "everything is as asked for", "False")


def _refusal(observed: Observed) -> str:
    kind, name = min(observed.refused)
    return f"the API server does not take {kind} {name}: {observed.refused[kind, name]}"


def _degraded(observed: Observed, progressing: Verdict, coordinated: Verdict, unknown: Sequence[str]) -> Verdict:
    for component in (names.ZOOKEEPER, names.BROKER):
        for pod in sorted(observed.pods_of(component), key=lambda one: str(one["metadata"]["name"])):
            if (found := trouble(pod)) is not None:
                return Verdict("Degraded", "True", found[0], found[1])
    if observed.taken:
        kind, name = min(observed.taken)
        message = f"{kind} {name} belongs to something else; delete or rename it, or name the cluster otherwise"
        return Verdict("Degraded", "True", "NameTaken", message)
    if observed.refused:
        return Verdict("Degraded", "True", REFUSED, _refusal(observed))
    if progressing.reason == STOPPED:
        return Verdict("Degraded", "True", STOPPED, progressing.message)
    waiting = sum(page.waiting_groups for page in observed.pages.values())
    if progressing.status == "False" and coordinated.status == "False":
        return Verdict("Degraded", "True", coordinated.reason, coordinated.message)
    if progressing.status == "False" and waiting:
        message = f"topic groups wait for brokers of their last list ({waiting} sightings)"
        return Verdict("Degraded", "True", "GroupsWait", message)
    if unknown:
        message = (
            f"the operator is older than the definitions, and leaves out {', '.join(unknown)}, which it does not know"
        )
        return Verdict("Degraded", "False", "UnknownFields", message)
    return Verdict("Degraded", "False", "NothingKnown", "nothing needs a person")
