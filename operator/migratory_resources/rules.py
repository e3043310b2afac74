"""Rules between fields of a cluster. Each gives a path, the value there and what is allowed instead."""

from __future__ import annotations

from collections.abc import Iterator

from migratory_resources.model import MigratoryCluster
from migratory_resources.objectives import contradictions
from migratory_resources.problems import Problem
from migratory_resources.quantities import format_duration, format_size

TAKEOVER_SECONDS = 2.0
"""`progressTimeout` of a takeover: a candidate that has not finished by then tries once more."""
BACKOFF_SECONDS = 30.0
"""The longest wait of a client before it connects again."""
BROKERS_FOR_QOS_1 = 3


def check_rules(cluster: MigratoryCluster) -> list[Problem]:
    """All broken rules, in the order of the fields."""
    return [*_copies(cluster), *_weights(cluster), *_times(cluster), *_sizes(cluster), *_objectives(cluster)]


def _copies(cluster: MigratoryCluster) -> Iterator[Problem]:
    spec = cluster.spec
    copies = spec.delivery.min_copies
    needed = 2 * copies - 1
    if spec.brokers.replicas < needed:
        lower = f", or delivery.minCopies {(spec.brokers.replicas + 1) // 2} or less" if copies > 1 else ""
        yield Problem(
            "spec.brokers.replicas",
            spec.brokers.replicas,
            f"{needed} or more with delivery.minCopies {copies} (2 x minCopies - 1){lower}",
        )


def _weights(cluster: MigratoryCluster) -> Iterator[Problem]:
    weights = cluster.spec.brokers.weights
    names = cluster.broker_names
    shown = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    for name in weights:
        if name not in names:
            yield Problem("spec.brokers.weights", name, f"names of this cluster's brokers, {shown}")
    if all(weights.get(name, 100) == 0 for name in names):
        yield Problem("spec.brokers.weights", weights, "a weight above 0 for one broker at least")


def _times(cluster: MigratoryCluster) -> Iterator[Problem]:
    spec = cluster.spec
    session = spec.zookeeper.session_timeout
    least = session + TAKEOVER_SECONDS + BACKOFF_SECONDS
    why = (
        f"{format_duration(least)} or more: a session ({format_duration(session)}), a takeover "
        f"({format_duration(TAKEOVER_SECONDS)}) and a client's longest wait ({format_duration(BACKOFF_SECONDS)})"
    )
    cache = spec.topics.cache
    if cache.min_age < least:
        yield Problem("spec.topics.cache.minAge", format_duration(cache.min_age), why)
    if cache.max_age < cache.min_age:
        yield Problem(
            "spec.topics.cache.maxAge",
            format_duration(cache.max_age),
            f"minAge ({format_duration(cache.min_age)}) or more",
        )
    if spec.delivery.duplicate_window < least:
        yield Problem("spec.delivery.duplicateWindow", format_duration(spec.delivery.duplicate_window), why)


def _sizes(cluster: MigratoryCluster) -> Iterator[Problem]:
    limits = cluster.spec.limits
    payload = f"limits.maxPayload ({format_size(limits.max_payload)}) or more"
    if limits.queue_per_client < limits.max_payload:
        yield Problem("spec.limits.queuePerClient", format_size(limits.queue_per_client), payload)
    if limits.queue_total < limits.queue_per_client:
        yield Problem(
            "spec.limits.queueTotal",
            format_size(limits.queue_total),
            f"limits.queuePerClient ({format_size(limits.queue_per_client)}) or more",
        )
    if cluster.spec.topics.cache.max_bytes < limits.max_payload:
        yield Problem("spec.topics.cache.maxBytes", format_size(cluster.spec.topics.cache.max_bytes), payload)


def _objectives(cluster: MigratoryCluster) -> Iterator[Problem]:
    sla = cluster.spec.sla
    for index, field, value, allowed in contradictions(sla.objectives):
        yield Problem(f"spec.sla.objectives[{index}].{field}", value, allowed)
    for index, objective in enumerate(sla.objectives):
        if objective.slices is not None and objective.window is None and objective.slices.length > sla.window:
            yield Problem(
                f"spec.sla.objectives[{index}].slices.length",
                format_duration(objective.slices.length),
                f"sla.window ({format_duration(sla.window)}) or less",
            )
