"""Rules between fields of a cluster. Each gives a path, the value there and what is allowed instead."""

from __future__ import annotations

from collections.abc import Iterator

from migratory_resources.model import MigratoryCluster
from migratory_resources.objectives import contradictions
from migratory_resources.problems import Problem
from migratory_resources.quantities import format_duration, format_size
from migratory_resources.repairs import Judged

TAKEOVER_SECONDS = 2.0
"""`progressTimeout` of a takeover: a candidate that has not finished by then tries once more."""
BACKOFF_SECONDS = 30.0
"""The longest wait of a client before it connects again."""
RESENDING_SECONDS = 60.0
"""So long a client sends a publication again that it has no answer for (`Settings.publish_timeout`)."""
BROKERS_FOR_QOS_1 = 3


def check_rules(judged: Judged[MigratoryCluster]) -> list[Problem]:
    """All broken rules, in the order of the fields, except those between fields of which one is wrong by itself."""
    return [*_copies(judged), *_weights(judged), *_times(judged), *_sizes(judged), *_objectives(judged)]


def _right(judged: Judged[MigratoryCluster], *paths: str) -> bool:
    return all(judged.right("spec", *path.split(".")) for path in paths)


def _copies(judged: Judged[MigratoryCluster]) -> Iterator[Problem]:
    spec = judged.cluster.spec
    copies = spec.delivery.min_copies
    needed = 2 * copies - 1
    if spec.brokers.replicas < needed and _right(judged, "brokers.replicas", "delivery.minCopies"):
        possible = (spec.brokers.replicas + 1) // 2
        lower = f", or delivery.minCopies {possible}{' or less' if possible > 1 else ''}"
        yield Problem(
            "spec.brokers.replicas",
            spec.brokers.replicas,
            f"{needed} or more with delivery.minCopies {copies} (2 x minCopies - 1){lower}",
        )


def _weights(judged: Judged[MigratoryCluster]) -> Iterator[Problem]:
    cluster = judged.cluster
    weights = cluster.spec.brokers.weights
    if not (_right(judged, "brokers.replicas") and judged.right("metadata", "name")):
        return
    names = cluster.broker_names
    shown = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    for name in weights:
        if name not in names:
            yield Problem("spec.brokers.weights", name, f"names of this cluster's brokers, {shown}")
    if all(weights.get(name, 100) == 0 for name in names):
        yield Problem("spec.brokers.weights", weights, "a weight above 0 for one broker at least")


def _times(judged: Judged[MigratoryCluster]) -> Iterator[Problem]:
    spec = judged.cluster.spec
    session = spec.zookeeper.session_timeout
    least = session + TAKEOVER_SECONDS + BACKOFF_SECONDS
    why = (
        f"{format_duration(least)} or more: a session ({format_duration(session)}), a takeover "
        f"({format_duration(TAKEOVER_SECONDS)}) and a client's longest wait ({format_duration(BACKOFF_SECONDS)})"
    )
    cache = spec.topics.cache
    if cache.min_age < least and _right(judged, "topics.cache.minAge", "zookeeper.sessionTimeout"):
        yield Problem("spec.topics.cache.minAge", format_duration(cache.min_age), why)
    if cache.max_age < cache.min_age and _right(judged, "topics.cache.maxAge", "topics.cache.minAge"):
        yield Problem(
            "spec.topics.cache.maxAge",
            format_duration(cache.max_age),
            f"minAge ({format_duration(cache.min_age)}) or more",
        )
    least = session + TAKEOVER_SECONDS + RESENDING_SECONDS
    if spec.delivery.duplicate_window < least and _right(
        judged, "delivery.duplicateWindow", "zookeeper.sessionTimeout"
    ):
        yield Problem(
            "spec.delivery.duplicateWindow",
            format_duration(spec.delivery.duplicate_window),
            f"{format_duration(least)} or more: a session ({format_duration(session)}), a takeover "
            f"({format_duration(TAKEOVER_SECONDS)}) and how long a client sends again "
            f"({format_duration(RESENDING_SECONDS)})",
        )


def _sizes(judged: Judged[MigratoryCluster]) -> Iterator[Problem]:
    limits, cache = judged.cluster.spec.limits, judged.cluster.spec.topics.cache
    payload = f"limits.maxPayload ({format_size(limits.max_payload)}) or more"
    if limits.queue_per_client < limits.max_payload and _right(judged, "limits.queuePerClient", "limits.maxPayload"):
        yield Problem("spec.limits.queuePerClient", format_size(limits.queue_per_client), payload)
    if limits.queue_total < limits.queue_per_client and _right(judged, "limits.queueTotal", "limits.queuePerClient"):
        yield Problem(
            "spec.limits.queueTotal",
            format_size(limits.queue_total),
            f"limits.queuePerClient ({format_size(limits.queue_per_client)}) or more",
        )
    processes = judged.cluster.spec.brokers.io_processes
    each = "brokers.ioProcesses", "limits.queueTotal", "limits.queuePerClient"
    if limits.queue_per_client <= limits.queue_total < processes * limits.queue_per_client and _right(judged, *each):
        yield Problem(
            "spec.limits.queueTotal",
            format_size(limits.queue_total),
            f"brokers.ioProcesses ({processes}) x limits.queuePerClient, "
            f"{format_size(processes * limits.queue_per_client)}, or more",
        )
    if cache.max_bytes < limits.max_payload and _right(judged, "topics.cache.maxBytes", "limits.maxPayload"):
        yield Problem("spec.topics.cache.maxBytes", format_size(cache.max_bytes), payload)


def _objectives(judged: Judged[MigratoryCluster]) -> Iterator[Problem]:
    sla = judged.cluster.spec.sla
    path = ("spec", "sla", "objectives")
    right = [judged.right(*path, index) for index in range(len(sla.objectives))]
    # A name stands twice, whatever else is wrong there; what is promised is known of whole objectives only.
    for field, told in (
        ("name", [index for index in range(len(right)) if judged.right(*path, index, "name")]),
        ("target", [index for index in range(len(right)) if right[index]]),
    ):
        for place, found, value, allowed in contradictions([sla.objectives[index] for index in told]):
            if found == field:
                yield Problem(f"spec.sla.objectives[{told[place]}].{field}", value, allowed)
    for index, objective in enumerate(sla.objectives):
        if not (right[index] and _right(judged, "sla.window")):
            continue
        if objective.slices is not None and objective.window is None and objective.slices.length > sla.window:
            yield Problem(
                f"spec.sla.objectives[{index}].slices.length",
                format_duration(objective.slices.length),
                f"sla.window ({format_duration(sla.window)}) or less",
            )
