"""`rules.py` once more, as CEL: what must fit between fields is judged by the API server before the operator sees it.

Also what only an API server can know: which fields must not change. Each rule names its field in the error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from migratory_resources.crd_fields import Schema, millis, rule, size
from migratory_resources.kubernetes import (
    Expose,
    KubernetesBrokers,
    KubernetesSpec,
    KubernetesZooKeeper,
    Resources,
    Storage,
)
from migratory_resources.model import LONGEST_NAME, Cache, Limits, Topics
from migratory_resources.objectives import Objective, Window
from migratory_resources.quantities import format_duration
from migratory_resources.reporting import KubernetesSla
from migratory_resources.rules import BACKOFF_SECONDS, RESENDING_SECONDS, TAKEOVER_SECONDS


def _unchanged(field: str, optional: bool = False) -> Schema:
    cel = f"self.{field} == oldSelf.{field}"
    if optional:
        both = f"has(self.{field}) == has(oldSelf.{field})"
        cel = f"{both} && (!has(self.{field}) || {cel})"
    return rule(cel, "is fixed once the cluster exists", field)


def _outlasts(path: str, seconds: float, what: str) -> Schema:
    """A time that must be longer than a session and a takeover with `seconds` more."""
    extra = TAKEOVER_SECONDS + seconds
    cel = f"{millis(f'self.{path}')} >= {millis('self.zookeeper.sessionTimeout')} + {round(extra * 1000)}"
    return rule(cel, f"must be sessionTimeout + {format_duration(extra)} (a takeover and {what}) or more", path)


def _within(amount: str) -> Schema:
    least, most = f"self.requests.{amount}", f"self.limits.{amount}"
    cel = f"!has({least}) || !has({most}) || {size(least)}.compareTo({size(most)}) <= 0"
    return rule(cel, f"must be requests.{amount} or more", f"limits.{amount}")


SPEC_RULES: Mapping[type[BaseModel], Sequence[Schema]] = {
    Topics: [_unchanged("groups")],
    Cache: [rule(f"{millis('self.maxAge')} >= {millis('self.minAge')}", "must be minAge or more", "maxAge")],
    Limits: [
        rule(f"{size('self.queuePerClient')}.compareTo({size('self.maxPayload')}) >= 0", "must be maxPayload or more",
             "queuePerClient"),
        rule(f"{size('self.queueTotal')}.compareTo({size('self.queuePerClient')}) >= 0",
             "must be queuePerClient or more", "queueTotal"),
    ],
    Expose: [
        rule("has(self.host) == (self.type == 'NodePort')", "host is needed with type NodePort, and only there"),
        rule("has(self.urlTemplate) == (self.type == 'Template')",
             "urlTemplate is needed with type Template, and only there"),
    ],
    KubernetesBrokers: [
        rule("self.weights.size() < self.replicas || self.weights.exists(name, self.weights[name] > 0)",
             "one broker at least needs a weight above 0", "weights"),
    ],
    Resources: [_within("cpu"), _within("memory")],
    Storage: [
        _unchanged("size"),
        _unchanged("ephemeral"),
        _unchanged("className", optional=True),
    ],
    KubernetesZooKeeper: [_unchanged("replicas"), _unchanged("external", optional=True)],
    KubernetesSpec: [
        rule("self.brokers.replicas >= 2 * self.delivery.minCopies - 1",
             "must be 2 x delivery.minCopies - 1 or more", "brokers.replicas"),
        rule(f"{size('self.limits.queueTotal')}.asInteger() >= self.brokers.ioProcesses * "
             f"{size('self.limits.queuePerClient')}.asInteger()",
             "must be brokers.ioProcesses x limits.queuePerClient or more", "limits.queueTotal"),
        _outlasts("topics.cache.minAge", BACKOFF_SECONDS, "a client's longest wait"),
        _outlasts("delivery.duplicateWindow", RESENDING_SECONDS, "how long a client sends again"),
        rule(f"{size('self.topics.cache.maxBytes')}.compareTo({size('self.limits.maxPayload')}) >= 0",
             "must be limits.maxPayload or more", "topics.cache.maxBytes"),
        rule(f"self.sla.objectives.all(one, !has(one.slices) || has(one.window) || {millis('one.slices.length')} <= "
             f"{millis('self.sla.window')})",
             "slices.length must be sla.window or less", "sla.objectives"),
    ],
    KubernetesSla: [rule("!has(self.schedule) || has(self.prometheus)", "a schedule needs prometheus", "prometheus")],
    Objective: [
        rule("self.type != 'latency' || has(self.threshold) != has(self.slices)",
             "type latency needs either threshold or slices"),
        rule("self.type in ['latency', 'availability'] || !has(self.slices)",
             "slices are for types latency and availability only"),
        rule("self.type == 'latency' || has(self.threshold) == (self.type in ['resume', 'publish'])",
             "types resume and publish need a threshold, delivery and availability have none"),
        rule("self.type == 'latency' || !has(self.clock)", "a clock is for type latency only"),
        rule("!has(self.slices) || (self.type == 'latency' ? has(self.slices.percentile) && has(self.slices.threshold) "
             "&& !has(self.slices.share) : has(self.slices.share) && !has(self.slices.percentile) && "
             "!has(self.slices.threshold))",
             "slices need a percentile and a threshold for type latency, a share for type availability"),
    ],
    Window: [
        rule("has(self.rolling) != has(self.calendar)", "either rolling or calendar"),
        rule("!has(self.zone) || has(self.calendar)", "a zone only with calendar"),
    ],
}  # fmt: skip

CLUSTER_RULES: Sequence[Schema] = [
    rule(
        f"size(self.metadata.name) <= {LONGEST_NAME} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f'metadata.name: allowed: 1 to {LONGEST_NAME} of a-z, 0-9 and "-", beginning with a letter (names of pods and '
        "their labels are made of it, within 63 characters)",
    ),
]
"""Of the resource as a whole: the only place where CEL sees its name. That weights name this cluster's brokers is for
the operator to judge: names of unknown length cost more than a rule may."""
