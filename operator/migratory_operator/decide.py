"""The decision: from what there is to what is applied, what goes, and what the status says; pure.

Level-based: it looks at the whole and not at what happened, so that whatever was missed, undone or done by somebody
else is made good by the next look. Nothing here knows a clock or the API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.validation.custom_resources import read_cluster, unknown_cluster_fields
from migratory_resources.validation.problems import ClusterFileError

from migratory_operator import names
from migratory_operator.conditions import STOPPED, Underway, refused, verdicts
from migratory_operator.differences import differs
from migratory_operator.health import ready_brokers
from migratory_operator.names import Object, Owner
from migratory_operator.objects import brokers, desired, exposure, servers
from migratory_operator.observe import Key, Observed, is_ready, key_of
from migratory_operator.pace import at_present
from migratory_operator.rollout import UNSEEN, Replacement, Rollout, next_step
from migratory_operator.settings import Settings
from migratory_operator.verdict import Verdict, shortened, time_text, written

SINCE = "rolloutSince"
_SOON = 0.5
_WHILE_PODS_GO = 2.0
_WHILE_UNWELL = 5.0
"""Seconds. What brokers say of themselves changes without an event of Kubernetes."""


@dataclass(frozen=True)
class Event:
    """What a person would want to know, once."""

    type: str
    reason: str
    message: str


@dataclass(frozen=True)
class Plan:
    """`again`: seconds until the next look, although nothing may have changed that is watched; 0 for none."""

    apply: tuple[Object, ...] = ()
    delete: tuple[Object, ...] = ()
    replace: tuple[Replacement, ...] = ()
    status: Object = field(default_factory=dict)
    events: tuple[Event, ...] = ()
    again: float = 0.0


def decide(observed: Observed, settings: Settings) -> Plan:
    if "deletionTimestamp" in observed.resource["metadata"]:
        # Everything belongs to the resource: the garbage collector takes it.
        return Plan()
    try:
        asked = read_cluster(observed.resource)
    except ClusterFileError as error:
        message = "; ".join(str(problem) for problem in error.problems)
        return _plan(observed, refused("InvalidSpec", message), _since(observed, UNSEEN))
    owner, present = observed.owner, at_present(asked, observed)
    cluster = present.cluster
    urls = exposure.urls(cluster, owner, observed.services())
    ready = frozenset(ready_brokers(cluster, observed))
    made = desired(cluster, owner, settings, urls, ready, present.leaving)
    wanted = [_steady(thing, observed) for thing in made if thing["kind"] not in observed.unknown]
    missing = [broker for broker in cluster.broker_names if broker not in urls]
    apply = tuple(
        thing
        for thing in wanted
        if key_of(thing) not in observed.taken and differs(thing, observed.objects.get(key_of(thing)))
    )
    changing = [f"{kind} {name}" for kind, name in map(key_of, apply) if _makes_pods(kind, name, owner)]
    since = observed.status.get(SINCE)
    rollout = UNSEEN if changing or present.untold else next_step(cluster, observed, since is not None)
    unknown = unknown_cluster_fields(observed.resource)
    underway = Underway(asked.spec.brokers.replicas, missing, present.stays, changing, rollout, unknown)
    found = verdicts(cluster, observed, underway)
    details = _details(cluster, observed, servers.entries(cluster, urls, ready))
    if observed.resource["metadata"].get("annotations", {}).get(names.PAUSED) == "true":
        paused = Verdict("Progressing", "False", "Paused", f"the annotation {names.PAUSED} keeps everything as it is")
        found = [paused if one.type == "Progressing" else one for one in found]
        kept = _since(observed, rollout) if since is not None else {}
        return _plan(observed, found, details | kept, _of_rollout(since, kept, rollout))
    details |= (begun := _since(observed, rollout))
    keep = {key_of(thing) for thing in wanted}
    if missing:
        # Brokers that run go on as they are until the addresses of all are known.
        keep |= {(kind, names.brokers_name(owner.name)) for kind in _OF_BROKERS}
    delete = tuple(
        thing
        for key, thing in sorted(observed.objects.items())
        if key not in keep and owner.owns(thing) and "deletionTimestamp" not in thing["metadata"]
    )
    told = [*_restored(observed, apply), *_of_rollout(since, begun, rollout)]
    plan = _plan(observed, found, details, told)
    pods_go = rollout.state == "rolling" or cluster.spec.brokers.replicas > asked.spec.brokers.replicas
    well = any(one.type == "Ready" and one.status == "True" for one in found)
    again = _SOON if missing and apply else _WHILE_PODS_GO if pods_go else 0.0 if well else _WHILE_UNWELL
    return replace(plan, apply=apply, delete=delete, replace=rollout.replace, again=again)


def held_up(plan: Plan, why: str) -> Plan:
    """The plan, telling of a pod that could not be replaced."""
    conditions = [
        {**one, "message": shortened(why)} if one["type"] == "Progressing" else one for one in plan.status["conditions"]
    ]
    return replace(plan, status={**plan.status, "conditions": conditions})


def needed(resource: Object, settings: Settings) -> list[Key]:
    """Everything that the cluster will want to have, whatever else is known of it; nothing of an invalid one."""
    try:
        cluster = read_cluster(resource)
    except ClusterFileError:
        return []
    anywhere = dict.fromkeys(cluster.broker_names, "")
    return [key_of(thing) for thing in desired(cluster, Owner.of(resource), settings, anywhere, frozenset())]


def _steady(thing: Object, observed: Observed) -> Object:
    key = key_of(thing)
    if key != ("StatefulSet", names.brokers_name(observed.owner.name)):
        return thing
    return brokers.for_those_that_run(thing, observed.objects.get(key))


_OF_BROKERS = ("ConfigMap", "StatefulSet", "PodDisruptionBudget")


def _makes_pods(kind: str, name: str, owner: Owner) -> bool:
    """What a new pod is made of, or reads: while it is not there no pod is made new."""
    return kind in ("ConfigMap", "StatefulSet") and name != names.servers_name(owner.name)


def _since(observed: Observed, rollout: Rollout) -> Object:
    """When the rollout began that is under way; it outlasts whatever else a condition has to say meanwhile."""
    before = observed.status.get(SINCE)
    if rollout.state == "none" or (rollout.state == "unseen" and before is None):
        return {}
    return {SINCE: before or time_text(observed.now)}


def _details(cluster: KubernetesCluster, observed: Observed, listed: Sequence[Object]) -> Object:
    """The status without its conditions."""
    spec, owner = cluster.spec, observed.owner
    ready = ready_brokers(cluster, observed)
    members = observed.pods_of(names.ZOOKEEPER)
    listed_brokers = []
    for broker in cluster.broker_names:
        entry: Object = {"name": broker, "ready": broker in ready}
        if (page := observed.pages.get(broker)) is not None:
            entry |= {"clients": page.clients, "coordinators": len(page.owned)}
        listed_brokers.append(entry)
    return {
        "replicas": len(observed.pods_of(names.BROKER)),
        "readyBrokers": len(ready),
        "ready": f"{len(ready)}/{spec.brokers.replicas}",
        "selector": names.as_text(names.selector(owner.name, names.BROKER)),
        "servers": list(listed),
        "brokers": listed_brokers,
        "zookeeper": {
            "replicas": 0 if spec.zookeeper.external is not None else spec.zookeeper.replicas,
            "ready": sum(is_ready(pod) for pod in members),
        },
    }


def _plan(
    observed: Observed,
    found: Sequence[Verdict],
    details: Object,
    told: Sequence[Event] = (),
) -> Plan:
    before = observed.status.get("conditions", [])
    generation = observed.resource["metadata"].get("generation", 1)
    conditions = [written(verdict, before, generation, observed.now) for verdict in found]
    status = {"observedGeneration": generation, **details, "conditions": conditions}
    return Plan(status=status, events=(*told, *_events(found, before)))


def _events(found: Sequence[Verdict], before: Sequence[Object]) -> list[Event]:
    """Of what turned good or bad since the status was written last. Reasons that merely follow one another are none."""
    known = {condition.get("type"): condition for condition in before}
    told = []
    for verdict in found:
        old = known.get(verdict.type, {})
        turned, another = old.get("status") != verdict.status, old.get("reason") != verdict.reason
        if verdict.type == "Ready" and turned and verdict.status == "True":
            told.append(Event("Normal", "Ready", verdict.message))
        elif verdict.type == "Ready" and turned and old.get("status") == "True":
            told.append(Event("Warning", "NotReady", verdict.message))
        elif verdict.reason == "UnknownFields" and another:
            told.append(Event("Warning", "UnknownFields", verdict.message))
        elif verdict.type == "Degraded" and verdict.status == "True" and another:
            told.append(Event("Warning", verdict.reason, verdict.message))
        elif verdict.type == "Progressing" and verdict.reason == "Paused" and another:
            told.append(Event("Normal", "Paused", verdict.message))
        elif verdict.type == "Progressing" and verdict.reason == STOPPED and another:
            told.append(Event("Warning", STOPPED, verdict.message))
    return told


def _of_rollout(before: str | None, now: Object, rollout: Rollout) -> list[Event]:
    if now and before is None:
        return [Event("Normal", "RolloutStarted", rollout.message)]
    if not now and before is not None:
        return [Event("Normal", "RolloutFinished", "every pod is as asked for, and the cluster is well")]
    return []


def _restored(observed: Observed, apply: Sequence[Object]) -> list[Event]:
    """Of an object that was there for this very spec and is there no more."""
    status, metadata = observed.status, observed.resource["metadata"]
    if status.get("observedGeneration") != metadata.get("generation", 1) or not observed.objects:
        return []
    if any(condition.get("reason") in ("Creating", "WaitingForAddresses") for condition in status["conditions"]):
        return []
    gone: list[Key] = [key for key in map(key_of, apply) if key not in observed.objects and key not in observed.untaken]
    return [Event("Normal", "Restored", f"{kind} {name} was gone and is made again") for kind, name in gone]
