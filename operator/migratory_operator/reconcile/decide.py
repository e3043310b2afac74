"""The decision about a cluster: from its observed state to the objects to apply and delete, the pods to replace, and
the status; pure.

Level-based: it considers the whole state and not what happened, so the next reconciliation repairs whatever was missed,
undone or done by somebody else. It uses neither clock nor API.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from migratory_resources.cluster.kubernetes import KubernetesCluster
from migratory_resources.validation.custom_resources import read_cluster, unknown_cluster_fields
from migratory_resources.validation.problems import ClusterFileError

from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner
from migratory_operator.objects import brokers, desired, exposure, zookeeper
from migratory_operator.reconcile.claims import claim_changes, growing_claims, growth_error, is_founded
from migratory_operator.reconcile.conditions import (
    ALL_READY,
    INVALID_SPEC,
    NO_PROBLEM,
    PAUSED,
    ROLLOUT_STOPPED,
    ClusterProgress,
    blocked_conditions,
    cluster_conditions,
    is_being_created,
)
from migratory_operator.reconcile.differences import differs, foreign_fields
from migratory_operator.reconcile.ensemble import EnsembleStep, next_ensemble_step
from migratory_operator.reconcile.health import data_loss_problem, ready_brokers, zookeeper_data
from migratory_operator.reconcile.observed import ObjectKey, ObservedCluster, key_of
from migratory_operator.reconcile.pods import is_ready
from migratory_operator.reconcile.rollout import UNKNOWN_ROLLOUT, Replacement, Rollout, next_rollout_step
from migratory_operator.reconcile.scaling import next_scale_step
from migratory_operator.reconcile.zookeeper_path import default_zookeeper_path, zookeeper_path
from migratory_operator.settings import OperatorSettings
from migratory_operator.status import (
    ConditionValue,
    KubernetesEvent,
    condition_object,
    format_time,
    truncate_message,
)

ROLLOUT_SINCE = "rolloutSince"
"""The field of the status with the time at which the rollout in progress began."""
_REQUEUE_FOR_ADDRESSES = 0.5
_REQUEUE_FOR_PODS = 2.0
_REQUEUE_UNTIL_READY = 5.0
"""Seconds until the next reconciliation. The brokers' own status changes without an event of Kubernetes."""


@dataclass(frozen=True)
class ClusterPlan:
    """The changes to make for a cluster, and its new status. An empty status means that none is written."""

    apply: tuple[Object, ...] = ()
    delete: tuple[Object, ...] = ()
    replace: tuple[Replacement, ...] = ()
    status: Object = field(default_factory=dict)
    events: tuple[KubernetesEvent, ...] = ()
    requeue_after: float = 0.0
    """Seconds until the next reconciliation even if nothing that is watched changes; 0 for none."""


def decide(observed: ObservedCluster, settings: OperatorSettings) -> ClusterPlan:
    """Return the changes to make now, and the new status.

    A cluster that is being deleted gets an empty plan. For a cluster with an invalid spec or the annotation that pauses
    the operator, the plan has only a status and Events.
    """
    if "deletionTimestamp" in observed.resource["metadata"]:
        # The garbage collector deletes the objects with their owner.
        return ClusterPlan()
    try:
        spec_cluster = read_cluster(observed.resource)
    except ClusterFileError as error:
        message = "; ".join(str(problem) for problem in error.problems)
        conditions = blocked_conditions(INVALID_SPEC, message)
        # Without the identity of the data, a loss of the data until the spec is valid again would go unnoticed.
        kept = {"zookeeper": observed.status["zookeeper"]} if "zookeeper" in observed.status else {}
        return _plan(observed, conditions, kept | _rollout_since(observed, UNKNOWN_ROLLOUT))
    ensemble = next_ensemble_step(spec_cluster, observed)
    owner, step = observed.owner, next_scale_step(ensemble.cluster, observed)
    cluster = step.cluster
    urls = exposure.urls(cluster, owner, observed.services())
    ready = frozenset(ready_brokers(cluster, observed))
    path = zookeeper_path(cluster, observed)
    # Without the default path in it, the configuration is that of an older operator, and replaces no broker.
    own_path = None if path == default_zookeeper_path(owner) else path
    built = desired(
        cluster, owner, settings, urls, ready, step.leaving, own_path, _membership(ensemble, cluster, observed)
    )
    wanted = [_keep_running(item, observed) for item in built if item["kind"] not in observed.missing_kinds]
    missing_urls = [broker for broker in cluster.broker_names if broker not in urls]
    apply = tuple(
        item
        for item in wanted
        if key_of(item) not in observed.conflicting and differs(item, observed.objects.get(key_of(item)))
    )
    claims = tuple(claim_changes(cluster, observed))
    changing = [
        f"{kind} {name}"
        for kind, name in map(key_of, apply)
        # One more apply would change it as little, and nothing must wait for that.
        if _affects_pods(kind, name, owner) and (kind, name) not in observed.ineffective
    ]
    since = observed.status.get(ROLLOUT_SINCE)
    rollout = UNKNOWN_ROLLOUT
    if not changing and not step.waits_for_config:
        rollout = next_rollout_step(cluster, observed, since is not None)
    is_removing = cluster.spec.brokers.replicas > spec_cluster.spec.brokers.replicas
    progress = ClusterProgress(
        desired_brokers=spec_cluster.spec.brokers.replicas,
        missing_urls=missing_urls,
        removal_blocker=step.blocked_by,
        changing=changing,
        rollout=rollout,
        is_planned_step=since is not None or rollout.state == "rolling" or is_removing or bool(ensemble.message),
        unknown_fields=unknown_cluster_fields(observed.resource),
        foreign=_foreign(wanted, observed),
        data_loss=data_loss_problem(observed, zookeeper_data(observed)),
        resizing=ensemble.message,
        growing=growing_claims(cluster, observed),
        growth_error=growth_error(cluster, observed),
    )
    conditions = cluster_conditions(cluster, observed, progress)
    details = _status_details(cluster, observed, exposure.server_entries(cluster, urls, ready), path)
    if observed.resource["metadata"].get("annotations", {}).get(names.PAUSED) == "true":
        message = f"the annotation {names.PAUSED} pauses the operator for this cluster"
        paused = ConditionValue("Progressing", "False", PAUSED, message)
        conditions = [paused if condition.type == "Progressing" else condition for condition in conditions]
        kept_since = _rollout_since(observed, rollout) if since is not None else {}
        return _plan(observed, conditions, details | kept_since, _rollout_events(since, kept_since, rollout))
    details |= (new_since := _rollout_since(observed, rollout))
    keep = {key_of(item) for item in wanted}
    if missing_urls:
        # Running brokers stay as they are until the addresses of all are known.
        keep |= {(kind, names.brokers_name(owner.name)) for kind in _BROKER_KINDS}
    delete = tuple(
        item
        for key, item in sorted(observed.objects.items())
        if key not in keep and owner.owns(item) and "deletionTimestamp" not in item["metadata"]
    )
    events = [*_restored_events(observed, apply), *_rollout_events(since, new_since, rollout)]
    plan = _plan(observed, conditions, details, events)
    is_settled = any(condition.type == "Ready" and condition.reason == ALL_READY for condition in conditions)
    requeue_after = 0.0 if is_settled else _REQUEUE_UNTIL_READY
    if is_removing or ensemble.message or rollout.state == "rolling":
        requeue_after = _REQUEUE_FOR_PODS
    if missing_urls and apply:
        requeue_after = _REQUEUE_FOR_ADDRESSES
    return replace(plan, apply=(*apply, *claims), delete=delete, replace=rollout.replace, requeue_after=requeue_after)


def with_blocked_replacement(plan: ClusterPlan, message: str) -> ClusterPlan:
    """Return the plan with `message`, cut to 1,000 characters, as the message of the condition Progressing, for a pod
    that could not be replaced."""
    conditions = [
        {**condition, "message": truncate_message(message)} if condition["type"] == "Progressing" else condition
        for condition in plan.status["conditions"]
    ]
    return replace(plan, status={**plan.status, "conditions": conditions})


def required_keys(resource: Object, settings: OperatorSettings) -> list[ObjectKey]:
    """Return kind and name of every object that the cluster may need, also of those that are built only when all URLs
    are known; none if the cluster's spec is invalid."""
    try:
        cluster = read_cluster(resource)
    except ClusterFileError:
        return []
    any_urls = dict.fromkeys(cluster.broker_names, "")
    return [key_of(item) for item in desired(cluster, ResourceOwner.of(resource), settings, any_urls, frozenset())]


def _keep_running(item: Object, observed: ObservedCluster) -> Object:
    """Return the object unchanged, except for the two StatefulSets. That of the brokers gets the configuration hash of
    the live pods if the configuration is no reason to replace them, that of ZooKeeper's members the live size in the
    claim template."""
    key = key_of(item)
    if key == ("StatefulSet", names.zookeeper_name(observed.owner.name)):
        return zookeeper.keep_claim_size(item, observed.objects.get(key))
    if key != ("StatefulSet", names.brokers_name(observed.owner.name)):
        return item
    return brokers.keep_config_hash(item, observed.objects.get(key))


def _membership(
    ensemble: EnsembleStep, cluster: KubernetesCluster, observed: ObservedCluster
) -> zookeeper.MemberInstructions:
    """Return what ZooKeeper's members are told about their ensemble."""
    change = ensemble.reconfiguration
    asked = None if change is None else (change.version, change.members)
    return zookeeper.MemberInstructions(ensemble.voters, asked, is_founded(cluster, observed))


def _foreign(wanted: Sequence[Object], observed: ObservedCluster) -> list[str]:
    """Return the foreign fields in the specs of the cluster's objects, as `kind name: path`."""
    return [
        f"{item['kind']} {item['metadata']['name']}: {found.path}"
        for item in wanted
        if (live := observed.objects.get(key_of(item))) is not None
        for found in foreign_fields(item, live)
    ]


_BROKER_KINDS = ("ConfigMap", "StatefulSet", "PodDisruptionBudget")
"""Kinds of the brokers' objects that are built only when all URLs are known."""


def _affects_pods(kind: str, name: str, owner: ResourceOwner) -> bool:
    """Return whether the object is a StatefulSet or a ConfigMap that pods read. Pods are replaced only after such an
    object has been applied."""
    return kind in ("ConfigMap", "StatefulSet") and name != names.servers_name(owner.name)


def _rollout_since(observed: ObservedCluster, rollout: Rollout) -> Object:
    """Return the status field with the time at which the rollout in progress began, now if it begins now; {} if none is
    in progress. While the rollout's state is unknown, the field stays as it is.

    The time is no part of the condition Progressing, which may have other reasons during a rollout.
    """
    since = observed.status.get(ROLLOUT_SINCE)
    if rollout.state == "none" or (rollout.state == "unknown" and since is None):
        return {}
    return {ROLLOUT_SINCE: since or format_time(observed.now)}


def _status_details(
    cluster: KubernetesCluster, observed: ObservedCluster, server_entries: Sequence[Object], path: str | None
) -> Object:
    """Return the status without its conditions and generation.

    :param server_entries: the field `servers`.
    :param path: the cluster's node in an external ensemble; None without one.
    """
    spec, owner = cluster.spec, observed.owner
    ready = ready_brokers(cluster, observed)
    members = observed.pods_of(names.ZOOKEEPER)
    broker_entries = []
    for broker in cluster.broker_names:
        entry: Object = {"name": broker, "ready": broker in ready}
        if (page := observed.pages.get(broker)) is not None:
            entry |= {"clients": page.clients, "coordinators": len(page.owned)}
        broker_entries.append(entry)
    return {
        "replicas": len(observed.pods_of(names.BROKER)),
        "readyBrokers": len(ready),
        "ready": f"{len(ready)}/{spec.brokers.replicas}",
        "selector": names.selector_text(names.selector(owner.name, names.BROKER)),
        "servers": list(server_entries),
        "brokers": broker_entries,
        "zookeeper": {
            "replicas": 0 if spec.zookeeper.external is not None else spec.zookeeper.replicas,
            "ready": sum(is_ready(pod) for pod in members),
            **({} if path is None else {"path": path}),
            **zookeeper_data(observed),
        },
    }


def _plan(
    observed: ObservedCluster,
    conditions: Sequence[ConditionValue],
    details: Object,
    events: Sequence[KubernetesEvent] = (),
) -> ClusterPlan:
    """Return a plan that changes nothing but the status, with Events about changed conditions added.

    :param details: the fields of the status beside its conditions and generation.
    :param events: other Events, which come first.
    """
    previous = observed.status.get("conditions", [])
    generation = observed.resource["metadata"].get("generation", 1)
    written = [condition_object(condition, previous, generation, observed.now) for condition in conditions]
    status = {"observedGeneration": generation, **details, "conditions": written}
    return ClusterPlan(status=status, events=(*events, *_condition_events(conditions, previous)))


def _condition_events(conditions: Sequence[ConditionValue], previous: Sequence[Object]) -> list[KubernetesEvent]:
    """Return an Event for each of these changes: Ready became True or is no longer True, Degraded is True for a new
    reason, the spec has fields that the operator does not know, there are foreign fields, the operator was paused, the
    rollout stopped."""
    previous_by_type = {condition.get("type"): condition for condition in previous}
    events = []
    for new in conditions:
        old = previous_by_type.get(new.type, {})
        status_changed, reason_changed = old.get("status") != new.status, old.get("reason") != new.reason
        if new.type == "Ready" and status_changed and new.status == "True":
            events.append(KubernetesEvent("Normal", "Ready", new.message))
        elif new.type == "Ready" and status_changed and old.get("status") == "True":
            events.append(KubernetesEvent("Warning", "NotReady", new.message))
        elif new.type == "Degraded" and reason_changed and (new.status == "True" or new.reason != NO_PROBLEM):
            events.append(KubernetesEvent("Warning", new.reason, new.message))
        elif new.type == "Progressing" and new.reason == PAUSED and reason_changed:
            events.append(KubernetesEvent("Normal", PAUSED, new.message))
        elif new.type == "Progressing" and new.reason == ROLLOUT_STOPPED and reason_changed:
            events.append(KubernetesEvent("Warning", ROLLOUT_STOPPED, new.message))
    return events


def _rollout_events(old_since: str | None, new_since: Object, rollout: Rollout) -> list[KubernetesEvent]:
    """Return an Event if a rollout began or finished, as the status field about it appears or goes.

    :param old_since: the time in the present status at which a rollout began; None if none is in progress.
    :param new_since: the field of the new status; {} if none is in progress then.
    """
    if new_since and old_since is None:
        return [KubernetesEvent("Normal", "RolloutStarted", rollout.message)]
    if not new_since and old_since is not None:
        return [KubernetesEvent("Normal", "RolloutFinished", "all pods are up to date and the cluster is healthy")]
    return []


def _restored_events(observed: ObservedCluster, apply: Sequence[Object]) -> list[KubernetesEvent]:
    """Return an Event for each object that will be created again because somebody deleted it.

    Return none for a new generation of the spec, or while missing objects may never have existed: then they are new,
    and not restored.
    """
    status, metadata = observed.status, observed.resource["metadata"]
    if status.get("observedGeneration") != metadata.get("generation", 1):
        return []
    if is_being_created(observed):
        return []
    deleted: list[ObjectKey] = [
        key for key in map(key_of, apply) if key not in observed.objects and key not in observed.rejected
    ]
    return [
        KubernetesEvent("Normal", "Restored", f"{kind} {name} was deleted and is created again")
        for kind, name in deleted
    ]
