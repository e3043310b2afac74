"""The rules between fields in CEL, which the API server checks. Most rules name the field in the error.

They are those of `validation.rules` for Kubernetes but two: that names in weights begin with the cluster's name, and
that objectives for the same events have the same target. Of the rules of `validation.pods` they are those about the
operator's own names. Only the API server can check that immutable fields stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from pydantic import BaseModel

from migratory_resources.cluster.identity import KeysSpec, RuleSpec, TokensSpec
from migratory_resources.cluster.kubernetes import (
    ExposeSpec,
    KubernetesBrokersSpec,
    KubernetesClusterSpec,
    KubernetesSlaSpec,
    KubernetesZooKeeperSpec,
    PodResources,
    StorageSpec,
)
from migratory_resources.cluster.spec import (
    MAX_BROKERS,
    MAX_NAME_LENGTH,
    CacheSpec,
    LimitsSpec,
    SecuritySpec,
    TopicsSpec,
)
from migratory_resources.crd.field_schemas import Schema, millis, rule, size
from migratory_resources.objectives import Objective, WindowSpec
from migratory_resources.pods import RESERVED_LABELS, BrokerPod, PodTemplate, ReportPod, ServerPod, ZooKeeperPod
from migratory_resources.quantities import format_duration
from migratory_resources.validation.rules import BACKOFF_SECONDS, RESENDING_SECONDS, TAKEOVER_SECONDS


def _immutable(field: str, optional: bool = False) -> Schema:
    """Return the rule that a field keeps its value. With `optional` the field may be absent, and then must stay
    absent."""
    cel = f"self.{field} == oldSelf.{field}"
    if optional:
        both = f"has(self.{field}) == has(oldSelf.{field})"
        cel = f"{both} && (!has(self.{field}) || {cel})"
    return rule(cel, "is immutable: delete and create the cluster to change it", field)


def _outlasts_takeover(path: str, seconds: float, reason: str) -> Schema:
    """Return the rule that the duration at `path` is at least the session timeout, the time of a takeover and `seconds`
    together; `reason` explains these seconds."""
    extra = TAKEOVER_SECONDS + seconds
    cel = f"{millis(f'self.{path}')} >= {millis('self.zookeeper.sessionTimeout')} + {round(extra * 1000)}"
    return rule(cel, f"must be sessionTimeout + {format_duration(extra)} (a takeover and {reason}) or more", path)


def _within_limit(amount: str) -> Schema:
    """Return the rule that a pod's request of CPU or memory (`amount`) does not exceed its limit."""
    request, limit = f"self.requests.{amount}", f"self.limits.{amount}"
    cel = f"!has({request}) || !has({limit}) || {size(request)}.compareTo({size(limit)}) <= 0"
    return rule(cel, f"must be requests.{amount} or more", f"limits.{amount}")


def _is_broker_name(name: str) -> str:
    """Return the CEL expression that the text `name` ends as the name of one of the cluster's brokers does. It has a
    literal for each ordinal, because the API server takes any computed text for the longest possible one, and rejects
    the rule for its cost."""
    return " || ".join(
        f"self.replicas > {number} && {name}.endsWith('-broker-{number}')" for number in range(MAX_BROKERS)
    )


def _reserved(pod: type[PodTemplate]) -> list[Schema]:
    """Return the rules that a pod template of this class uses no name of the operator for environment variables,
    volumes and containers."""
    reserved = pod.RESERVED
    fields = {
        "env": (reserved.env, reserved.env_prefixes),
        "volumes": (reserved.volumes, reserved.volume_prefixes),
        **({"containers": (reserved.containers, ())} if issubclass(pod, ServerPod) else {}),
        "initContainers": (reserved.containers, ()),
    }
    rules = []
    for field, (names, prefixes) in fields.items():
        words = [f"one.name == '{name}'" for name in names]
        words += [f"one.name.startsWith('{prefix}')" for prefix in prefixes]
        taken = ", ".join([*names, *(f"{prefix}..." for prefix in prefixes)])
        rules.append(
            rule(f"!self.{field}.exists(one, {' || '.join(words)})", f"the operator uses these names: {taken}", field)
        )
    return rules


SPEC_RULES: Mapping[type[BaseModel], Sequence[Schema]] = {
    TopicsSpec: [_immutable("groups")],
    SecuritySpec: [
        rule("self.rules.size() == 0 || has(self.tokens) || self.anonymous",
             "rules need tokens, or anonymous: true", "rules"),
    ],
    TokensSpec: [
        rule("self.keys.size() + self.static.size() > 0", "at least one entry in keys or in static"),
        rule("!has(self.revokedFile) || !has(self.revokedSecret)", "revokedFile or revokedSecret", "revokedFile"),
    ],
    KeysSpec: [
        rule("[has(self.file), has(self.secret), has(self.url)].filter(one, one).size() == 1",
             "exactly one of file, secret and url"),
        rule("self.algorithms.size() > 0 && (self.algorithms.all(one, !one.startsWith('HS')) || "
             "(!has(self.url) && self.algorithms.all(one, one.startsWith('HS'))))",
             "at least one; HS algorithms in a source of their own, and not with url", "algorithms"),
    ],
    RuleSpec: [
        rule("!self.anonymous || (self.subjects.size() == 0 && self.claims.size() == 0)",
             "not with subjects or claims", "anonymous"),
        rule("self.topics.size() > 0 && self.allow.size() > 0", "at least one entry in topics and in allow"),
    ],
    CacheSpec: [rule(f"{millis('self.maxAge')} >= {millis('self.minAge')}", "must be minAge or more", "maxAge")],
    LimitsSpec: [
        rule(f"{size('self.queuePerClient')}.compareTo({size('self.maxPayload')}) >= 0", "must be maxPayload or more",
             "queuePerClient"),
        rule(f"{size('self.queueTotal')}.compareTo({size('self.queuePerClient')}) >= 0",
             "must be queuePerClient or more", "queueTotal"),
    ],
    ExposeSpec: [
        rule("has(self.host) == (self.type == 'NodePort')",
             "host is required with type NodePort, and not allowed with other types"),
        rule("has(self.urlTemplate) == (self.type == 'Template')",
             "urlTemplate is required with type Template, and not allowed with other types"),
    ],
    KubernetesBrokersSpec: [
        # Without a broker the number of brokers is what is wrong.
        rule("self.replicas < 1 || self.weights.size() < self.replicas || "
             "self.weights.exists(name, self.weights[name] > 0)",
             "at least one broker needs a weight above 0", "weights"),
        rule(f"self.replicas < 1 || self.weights.all(name, {_is_broker_name('name')})",
             "names must be those of this cluster's brokers, NAME-broker-0 to NAME-broker-(replicas - 1)", "weights"),
    ],
    PodResources: [_within_limit("cpu"), _within_limit("memory")],
    PodTemplate: [
        rule(" && ".join(f"!('{key}' in self.labels)" for key in RESERVED_LABELS),
             "the operator and Kubernetes set these labels: " + ", ".join(RESERVED_LABELS), "labels"),
    ],
    BrokerPod: _reserved(BrokerPod),
    ZooKeeperPod: _reserved(ZooKeeperPod),
    ReportPod: _reserved(ReportPod),
    StorageSpec: [
        rule(f"{size('self.size')}.compareTo({size('oldSelf.size')}) >= 0",
             "must be the present size or more: delete and create the cluster for a smaller one", "size"),
        _immutable("ephemeral"),
        _immutable("className", optional=True),
    ],
    KubernetesZooKeeperSpec: [
        _immutable("external", optional=True),
        _immutable("chroot", optional=True),
        rule("!has(self.chroot) || has(self.external)", "chroot requires external", "chroot"),
    ],
    KubernetesClusterSpec: [
        rule("self.brokers.replicas >= 2 * self.delivery.minCopies - 1",
             "must be 2 x delivery.minCopies - 1 or more", "brokers.replicas"),
        rule(f"{size('self.limits.queueTotal')}.asInteger() >= self.brokers.ioProcesses * "
             f"{size('self.limits.queuePerClient')}.asInteger()",
             "must be brokers.ioProcesses x limits.queuePerClient or more", "limits.queueTotal"),
        rule(f"!has(self.brokers.resources.limits.memory) || {size('self.brokers.resources.limits.memory')}.compareTo("
             f"{size('self.topics.cache.maxBytes')}.add({size('self.limits.queueTotal')})) >= 0",
             "must be topics.cache.maxBytes + limits.queueTotal or more; without a limit the operator sets one",
             "brokers.resources.limits.memory"),
        rule("has(self.zookeeper.external) || has(self.security.tls.zookeeper) == has(oldSelf.security.tls.zookeeper)",
             "is immutable: delete and create the cluster to change it, unless it has zookeeper.external",
             "security.tls.zookeeper"),
        _outlasts_takeover("topics.cache.minAge", BACKOFF_SECONDS, "a client's longest backoff"),
        _outlasts_takeover("delivery.duplicateWindow", RESENDING_SECONDS, "a client's publish timeout"),
        rule(f"{size('self.topics.cache.maxBytes')}.compareTo({size('self.limits.maxPayload')}) >= 0",
             "must be limits.maxPayload or more", "topics.cache.maxBytes"),
        rule(f"self.sla.objectives.all(one, !has(one.slices) || has(one.window) || {millis('one.slices.length')} <= "
             f"{millis('self.sla.window')})",
             "slices.length must be sla.window or less", "sla.objectives"),
    ],
    KubernetesSlaSpec: [
        rule("!has(self.schedule) || has(self.prometheus)", "schedule requires prometheus", "prometheus"),
    ],
    Objective: [
        rule("self.type != 'latency' || has(self.threshold) != has(self.slices)",
             "type latency needs either threshold or slices"),
        rule("self.type in ['latency', 'availability'] || !has(self.slices)",
             "slices are allowed for types latency and availability only"),
        rule("self.type == 'latency' || has(self.threshold) == (self.type in ['resume', 'publish'])",
             "types resume and publish need a threshold, types delivery and availability must not have one"),
        rule("self.type == 'latency' || !has(self.clock)", "clock is allowed for type latency only"),
        rule("!has(self.slices) || (self.type == 'latency' ? has(self.slices.percentile) && has(self.slices.threshold) "
             "&& !has(self.slices.share) : has(self.slices.share) && !has(self.slices.percentile) && "
             "!has(self.slices.threshold))",
             "slices need a percentile and a threshold for type latency, a share for type availability"),
    ],
    WindowSpec: [
        rule("has(self.rolling) != has(self.calendar)", "either rolling or calendar"),
        rule("!has(self.zone) || has(self.calendar)", "zone is allowed with calendar only"),
    ],
}  # fmt: skip

CLUSTER_RULES: Sequence[Schema] = [
    rule(
        f"size(self.metadata.name) <= {MAX_NAME_LENGTH} && self.metadata.name.matches('^[a-z]([-a-z0-9]*[a-z0-9])?$')",
        f'metadata.name: allowed: 1 to {MAX_NAME_LENGTH} of a-z, 0-9 and "-", beginning with a letter (the names and '
        "labels of pods contain it, within 63 characters)",
    ),
]
"""Rules of the resource as a whole, the only place where CEL sees its name.

The operator checks that names in weights begin with the cluster's: a text of unbounded length exceeds the cost of a
rule, and only the ordinal at its end can be checked."""
