"""Rules between fields of a cluster. Each broken rule gives a path, the value there and what is allowed instead.

`crd.rules` has these rules in CEL for the API server, except those about the beginning of names in weights, about
contradictory objectives, and about files of one machine.
"""

from __future__ import annotations

from collections.abc import Iterator

from migratory_resources.cluster.identity import secrets_of
from migratory_resources.cluster.kubernetes import ExposeSpec, KubernetesCluster, PodResources
from migratory_resources.cluster.spec import MigratoryCluster
from migratory_resources.cluster.tls import FileSource
from migratory_resources.objectives import find_contradictions
from migratory_resources.quantities import format_duration, format_size, parse_amount
from migratory_resources.validation.pods import check_pod
from migratory_resources.validation.problems import FieldProblem
from migratory_resources.validation.repairs import RepairedCluster

TAKEOVER_SECONDS = 2.0
"""Seconds allowed for a takeover (`progressTimeout`). A candidate that has not finished then tries again."""
BACKOFF_SECONDS = 30.0
"""The longest time in seconds that a client waits before it reconnects."""
RESENDING_SECONDS = 60.0
"""Seconds for which a client sends an unacknowledged publication again (`Settings.publish_timeout`)."""


def check_rules(repaired: RepairedCluster[MigratoryCluster]) -> list[FieldProblem]:
    """Return a problem for each broken rule, by subject: copies, weights, times, sizes, security, certificates,
    objectives, what only Kubernetes has. A rule is not checked if it involves a value that a repair has replaced."""
    checks = (_copies, _weights, _times, _sizes, _security, _certificates, _objectives, _kubernetes)
    return [problem for check in checks for problem in check(repaired)]


def _are_intact(repaired: RepairedCluster[MigratoryCluster], *paths: str) -> bool:
    """Return whether no repair has replaced anything at these paths, which are below `spec` and have dots between
    names."""
    return all(repaired.is_intact("spec", *path.split(".")) for path in paths)


def _copies(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem if there are too few brokers for `minCopies`."""
    spec = repaired.cluster.spec
    copies = spec.delivery.min_copies
    required = 2 * copies - 1
    if spec.brokers.replicas < required and _are_intact(repaired, "brokers.replicas", "delivery.minCopies"):
        possible = (spec.brokers.replicas + 1) // 2
        alternative = f", or delivery.minCopies {possible}{' or less' if possible > 1 else ''}"
        yield FieldProblem(
            "spec.brokers.replicas",
            spec.brokers.replicas,
            f"{required} or more with delivery.minCopies {copies} (2 x minCopies - 1){alternative}",
        )


def _weights(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem for each weight of a broker that does not exist, and if all brokers have weight 0."""
    cluster = repaired.cluster
    weights = cluster.spec.brokers.weights
    if not (_are_intact(repaired, "brokers.replicas") and repaired.is_intact("metadata", "name")):
        return
    names = cluster.broker_names
    name_range = f"{names[0]} to {names[-1]}" if len(names) > 1 else names[0]
    for name in weights:
        if name not in names:
            yield FieldProblem("spec.brokers.weights", name, f"names of this cluster's brokers, {name_range}")
    if all(weights.get(name, 100) == 0 for name in names):
        yield FieldProblem("spec.brokers.weights", weights, "a weight above 0 for at least one broker")


def _times(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem if publications are cached, or duplicates recognised, for too short to outlast a takeover and a
    client's retries, or if `maxAge` is below `minAge`."""
    spec = repaired.cluster.spec
    session = spec.zookeeper.session_timeout
    minimum = session + TAKEOVER_SECONDS + BACKOFF_SECONDS
    allowed = (
        f"{format_duration(minimum)} or more: the session timeout ({format_duration(session)}), a takeover "
        f"({format_duration(TAKEOVER_SECONDS)}) and a client's longest backoff ({format_duration(BACKOFF_SECONDS)})"
    )
    cache = spec.topics.cache
    if cache.min_age < minimum and _are_intact(repaired, "topics.cache.minAge", "zookeeper.sessionTimeout"):
        yield FieldProblem("spec.topics.cache.minAge", format_duration(cache.min_age), allowed)
    if cache.max_age < cache.min_age and _are_intact(repaired, "topics.cache.maxAge", "topics.cache.minAge"):
        yield FieldProblem(
            "spec.topics.cache.maxAge",
            format_duration(cache.max_age),
            f"minAge ({format_duration(cache.min_age)}) or more",
        )
    minimum = session + TAKEOVER_SECONDS + RESENDING_SECONDS
    if spec.delivery.duplicate_window < minimum and _are_intact(
        repaired, "delivery.duplicateWindow", "zookeeper.sessionTimeout"
    ):
        yield FieldProblem(
            "spec.delivery.duplicateWindow",
            format_duration(spec.delivery.duplicate_window),
            f"{format_duration(minimum)} or more: the session timeout ({format_duration(session)}), a takeover "
            f"({format_duration(TAKEOVER_SECONDS)}) and a client's publish timeout "
            f"({format_duration(RESENDING_SECONDS)})",
        )


def _sizes(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem for each limit of bytes that is too small: a client's queue or the cache for one payload, all
    queues together for one client's queue, or for one in each I/O process, and the memory of a pod (see `_memory`)."""
    limits, cache = repaired.cluster.spec.limits, repaired.cluster.spec.topics.cache
    payload = f"limits.maxPayload ({format_size(limits.max_payload)}) or more"
    if limits.queue_per_client < limits.max_payload and _are_intact(
        repaired, "limits.queuePerClient", "limits.maxPayload"
    ):
        yield FieldProblem("spec.limits.queuePerClient", format_size(limits.queue_per_client), payload)
    if limits.queue_total < limits.queue_per_client and _are_intact(
        repaired, "limits.queueTotal", "limits.queuePerClient"
    ):
        yield FieldProblem(
            "spec.limits.queueTotal",
            format_size(limits.queue_total),
            f"limits.queuePerClient ({format_size(limits.queue_per_client)}) or more",
        )
    processes = repaired.cluster.spec.brokers.io_processes
    paths = "brokers.ioProcesses", "limits.queueTotal", "limits.queuePerClient"
    minimum = processes * limits.queue_per_client
    if limits.queue_per_client <= limits.queue_total < minimum and _are_intact(repaired, *paths):
        yield FieldProblem(
            "spec.limits.queueTotal",
            format_size(limits.queue_total),
            f"brokers.ioProcesses ({processes}) x limits.queuePerClient, {format_size(minimum)}, or more",
        )
    yield from _memory(repaired)
    if cache.max_bytes < limits.max_payload and _are_intact(repaired, "topics.cache.maxBytes", "limits.maxPayload"):
        yield FieldProblem("spec.topics.cache.maxBytes", format_size(cache.max_bytes), payload)


def _memory(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem if the memory limit of a broker's pod is below its cache and queues together."""
    cluster, field = repaired.cluster, "brokers.resources.limits.memory"
    if not isinstance(cluster, KubernetesCluster) or cluster.spec.brokers.resources.limits.memory is None:
        return
    cached, queued = cluster.spec.topics.cache.max_bytes, cluster.spec.limits.queue_total
    paths = field, "topics.cache.maxBytes", "limits.queueTotal"
    memory = cluster.spec.brokers.resources.limits.memory
    if _are_intact(repaired, *paths) and parse_amount(memory) < cached + queued:
        yield FieldProblem(
            f"spec.{field}",
            memory,
            f"topics.cache.maxBytes ({format_size(cached)}) + limits.queueTotal ({format_size(queued)}), "
            f"{format_size(cached + queued)}, or more; without a limit the operator sets one",
        )


def _security(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem for each contradiction between tokens, keys, revocations and rules."""
    security = repaired.cluster.spec.security
    tokens, path = security.tokens, "spec.security.tokens"
    if not _are_intact(repaired, "security"):
        return
    if security.rules and tokens is None and not security.anonymous:
        yield FieldProblem("spec.security.rules", len(security.rules), "rules with tokens, or with anonymous: true")
    if tokens is not None:
        if not (tokens.keys or tokens.static):
            yield FieldProblem(path, {}, "at least one entry in keys or in static")
        for index, source in enumerate(tokens.keys):
            if sum(place is not None for place in (source.file, source.secret, source.url)) != 1:
                yield FieldProblem(f"{path}.keys[{index}]", source.algorithms, "exactly one of file, secret and url")
            symmetric = {name.startswith("HS") for name in source.algorithms}
            if len(symmetric) != 1 or (symmetric == {True} and source.url is not None):
                yield FieldProblem(
                    f"{path}.keys[{index}].algorithms",
                    source.algorithms,
                    "at least one; HS algorithms in a source of their own, and not with url",
                )
        if tokens.revoked_file is not None and tokens.revoked_secret is not None:
            yield FieldProblem(f"{path}.revokedFile", tokens.revoked_file, "revokedFile or revokedSecret")
        if secrets_of(tokens) and not isinstance(repaired.cluster, KubernetesCluster):
            yield FieldProblem(path, "secret", "a file or a URL: one machine has no Secrets")
    for index, rule in enumerate(security.rules):
        if rule.anonymous and (rule.subjects or rule.claims):
            yield FieldProblem(f"spec.security.rules[{index}].anonymous", True, "a rule without subjects and claims")
        if not (rule.topics and rule.allow):
            yield FieldProblem(f"spec.security.rules[{index}]", {}, "at least one entry in topics and in allow")


def _certificates(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem if the certificates of links between brokers are in files and there is none of their
    authority."""
    peers, path = repaired.cluster.spec.security.tls.peers, "security.tls.peers"
    if isinstance(peers, FileSource) and peers.files.ca is None and _are_intact(repaired, path):
        yield FieldProblem(f"spec.{path}.files.ca", None, "the file of the authority that signs the brokers")


def _objectives(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield a problem for each objective that contradicts an earlier one, or has slices longer than the reports'
    window."""
    sla = repaired.cluster.spec.sla
    path = ("spec", "sla", "objectives")
    intact = [repaired.is_intact(*path, index) for index in range(len(sla.objectives))]
    # A duplicate name is reported whatever else is wrong there; targets are compared between intact objectives only.
    for field, compared in (
        ("name", [index for index in range(len(intact)) if repaired.is_intact(*path, index, "name")]),
        ("target", [index for index in range(len(intact)) if intact[index]]),
    ):
        for position, wrong_field, value, allowed in find_contradictions([sla.objectives[index] for index in compared]):
            if wrong_field == field:
                yield FieldProblem(f"spec.sla.objectives[{compared[position]}].{field}", value, allowed)
    for index, objective in enumerate(sla.objectives):
        if not (intact[index] and _are_intact(repaired, "sla.window")):
            continue
        if objective.slices is not None and objective.window is None and objective.slices.length > sla.window:
            yield FieldProblem(
                f"spec.sla.objectives[{index}].slices.length",
                format_duration(objective.slices.length),
                f"sla.window ({format_duration(sla.window)}) or less",
            )


def _kubernetes(repaired: RepairedCluster[MigratoryCluster]) -> Iterator[FieldProblem]:
    """Yield the broken rules of what only Kubernetes has: exposure, resources and pod templates. Yield nothing for a
    cluster of one machine."""
    cluster = repaired.cluster
    if not isinstance(cluster, KubernetesCluster):
        return
    spec = cluster.spec
    if _are_intact(repaired, "brokers.expose"):
        yield from _exposure(spec.brokers.expose)
    for part, resources in (("brokers", spec.brokers.resources), ("zookeeper", spec.zookeeper.resources)):
        if _are_intact(repaired, f"{part}.resources"):
            yield from _amounts(f"spec.{part}.resources", resources)
    templates = {
        "brokers.pod": spec.brokers.pod,
        "zookeeper.pod": spec.zookeeper.pod,
        "sla.spark.pod": spec.sla.spark.pod,
    }
    for path, template in templates.items():
        if _are_intact(repaired, path):
            yield from check_pod(f"spec.{path}", template)


def _exposure(expose: ExposeSpec) -> Iterator[FieldProblem]:
    """Yield a problem for each of `host` and `urlTemplate` that the type of exposure requires and lacks, or does not
    allow."""
    for field, value, type_ in (("host", expose.host, "NodePort"), ("urlTemplate", expose.url_template, "Template")):
        if (value is not None) != (expose.type == type_):
            allowed = f"a value with type {type_}, and no value with any other type"
            yield FieldProblem(f"spec.brokers.expose.{field}", value, allowed)


def _amounts(path: str, resources: PodResources) -> Iterator[FieldProblem]:
    """Yield a problem for each limit of CPU or memory that is below the request."""
    requests, limits = resources.requests, resources.limits
    for name, request, limit in (("cpu", requests.cpu, limits.cpu), ("memory", requests.memory, limits.memory)):
        if request is not None and limit is not None and parse_amount(request) > parse_amount(limit):
            yield FieldProblem(f"{path}.limits.{name}", limit, f"{request} or more, the value of requests.{name}")
