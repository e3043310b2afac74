"""The broker's metrics in Prometheus' format, for /metrics. docs/reference/metrics.md lists them; each has the labels
`cluster` and `broker`, except those of prometheus_client itself, `process_*`.

Counting costs the cores nothing: they keep plain numbers, which are read when /metrics is requested. Rarer events
arrive as `Observe`, and are added here to counters and to the histogram of takeovers. Memory is that of all processes
of the broker.
"""

from __future__ import annotations

import os
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import Any, Literal

from prometheus_client import CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from migratory_broker.core.edge.rates import KINDS
from migratory_broker.core.logic.events import Observe
from migratory_broker.runtime.tls import Certificate, Purpose

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

TAKEOVER_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 4.0, 8.0, 16.0, 32.0)
"""Upper bounds, in seconds, of the buckets of `migratory_takeover_seconds`. The target of a takeover is 2 s
(`LogicConfig.progress_timeout`)."""

CLOSED_REASONS = (
    "client", "bye", "lost", "heartbeat", "handshake", "refused", "draining", "fenced", "stopping", "slow_consumer",
    "incoming", "backlog", "bad_message", "protocol", "too_large", "unauthenticated", "token_expired", "unknown_key",
    "revoked", "request", "io_process",
)  # fmt: skip
"""The labels of `migratory_closed_total`, exported at zero from the start: PromQL's `rate` ignores the rise with which
a series begins."""

PEER_REASONS = ("hello", "incarnation", "malformed", "group", "epoch", "sender", "snapshot", "committed", "votes")
"""The labels of `migratory_peer_messages_refused_total`, exported at zero from the start."""

REFUSAL_LIMITS = (
    "subscriptions_per_client", "subscriptions_total", "publishes_per_client", "publishes_total", "handshakes_total",
    "input_total", "descriptors", "address_connections", "address_rate",
)  # fmt: skip
"""The labels of `migratory_refusals_total`, exported at zero from the start. Limits at which a client is closed with a
close code are in `CLOSED_REASONS`."""

HTTP_REQUESTS = ("stream", "poll", "publish")
"""The kinds of HTTP requests that become connections, exported at zero from the start."""

RATE_LIMITS = tuple(f"{scope}_{kind}" for scope in ("client", "identity", "address") for kind in KINDS)
"""The labels of `migratory_rate_limited_total`, exported at zero from the start."""

Kind = Literal["gauge", "counter", "histogram"]

FAMILIES: dict[str, tuple[Kind, str, str]] = {
    "migratory_clients": ("gauge", "", "Connected clients."),
    "migratory_io_process_clients": ("gauge", "process", "Connections of each I/O process."),
    "migratory_io_process_deaths_total": (
        "counter",
        "",
        "I/O processes that died, and their clients' connections with them.",
    ),
    "migratory_memory_bytes": (
        "gauge",
        "",
        "Memory of all processes of this broker, shared pages by their share (PSS).",
    ),
    "migratory_loop_stalls_total": ("counter", "", "Ticks that came more than half a second late."),
    "migratory_loop_longest_stall_seconds": ("gauge", "", "Longest delay of a tick since the start."),
    "migratory_connection_capacity": ("gauge", "", "Connections that the limit of descriptors allows now."),
    "migratory_connections_refused_total": ("counter", "", "Connections refused because no descriptor was left."),
    "migratory_subscriptions": ("gauge", "", "Subscriptions of the connected clients."),
    "migratory_topics": ("gauge", "", "Topics known to this broker."),
    "migratory_cache_bytes": ("gauge", "", "Payload bytes in the cache."),
    "migratory_queue_bytes": ("gauge", "", "Bytes that wait for clients that read too slowly."),
    "migratory_client_bytes": ("gauge", "kind", "Memory that the clients of this broker take."),
    "migratory_client_bytes_limit": ("gauge", "kind", "Memory that the clients of this broker may take."),
    "migratory_refusals_total": ("counter", "limit", "What clients were refused, by the limit that they reached."),
    "migratory_rate_limited_total": ("counter", "limit", "Times that a client had to wait for a rate, by its limit."),
    "migratory_published_total": ("counter", "", "Publications taken from clients of this broker."),
    "migratory_committed_total": ("counter", "", "Publications committed, as seen by this broker."),
    "migratory_delivered_total": ("counter", "", "Publications written, once for each subscriber."),
    "migratory_sent_bytes_total": ("counter", "", "Bytes written to clients."),
    "migratory_http_requests_total": ("counter", "kind", "Requests of clients over HTTP that became connections."),
    "migratory_closed_total": ("counter", "reason", "Connections closed by this broker."),
    "migratory_not_allowed_total": ("counter", "operation", "Operations on topics that a client was not allowed."),
    "migratory_credential_sources_failing": (
        "gauge",
        "",
        "Files and URLs of keys and revocations whose present content cannot be used.",
    ),
    "migratory_moves_asked_total": ("counter", "", "Clients that this broker asked to move, for balance."),
    "migratory_groups": ("gauge", "role", "Topic groups by this broker's part in them."),
    "migratory_peer_messages_refused_total": ("counter", "reason", "Links ended because of what their peer sent."),
    "migratory_administration_refused_total": (
        "counter",
        "",
        "Requests to the administration without a token, or for a host or from a web page that is not allowed.",
    ),
    "migratory_requests_refused_total": (
        "counter",
        "reason",
        "Requests of clients refused for their Origin or Host.",
    ),
    "migratory_tls_handshakes_waiting": ("gauge", "", "TLS handshakes of clients that wait for their turn."),
    "migratory_tls_refused_total": ("counter", "purpose", "TLS handshakes that failed."),
    "migratory_certificates_rejected_total": ("counter", "purpose", "Failed attempts to use changed certificates."),
    "migratory_certificate_expiry_timestamp_seconds": ("gauge", "purpose", "When the certificate in use expires."),
    "migratory_topics_removed_total": ("counter", "", "Idle topics removed by this broker as coordinator."),
    "migratory_takeovers_total": ("counter", "", "Takeovers finished by this broker."),
    "migratory_takeover_seconds": ("histogram", "", "From a takeover's begin to its activation."),
    "migratory_replication_lag": ("gauge", "", "Publications numbered here and not committed yet."),
    "migratory_fenced": ("gauge", "", "1 while this broker is cut off and has sent its clients away."),
    "migratory_member": ("gauge", "", "1 while this broker is a synced member of every group."),
    "migratory_waiting_groups": ("gauge", "", "Groups whose takeover waits for brokers that are away."),
    "migratory_history_resets_total": ("counter", "", "New histories begun because the old one was lost."),
    "migratory_zookeeper_data_losses_total": ("counter", "", "Times that ZooKeeper's data was lost or rolled back."),
    "migratory_zookeeper_denied_total": ("counter", "", "Requests to which ZooKeeper denied access."),
    "migratory_cache_short": ("gauge", "", "Publications younger than minAge that had to go for maxBytes."),
}
"""The metrics by name: kind, label besides the common ones, help text. docs/reference/metrics.md is the contract."""

Value = float | Mapping[str, float]
"""A metric's value: a number, or one number for each value of its label."""


class BrokerMetrics(Collector):
    """The metrics of a broker, collected when /metrics is requested: the numbers of `read`, with the sums of observed
    effects added. `read` returns the numbers that cores and runtime keep, by name of the metric (`metric_values`)."""

    def __init__(self, cluster: str, broker: str, read: Callable[[], Mapping[str, Value]]) -> None:
        self._common = [cluster, broker]
        self._read = read
        self._sums: dict[str, dict[str, float]] = {
            name: {} if label else {"": 0.0} for name, (kind, label, _) in FAMILIES.items() if kind == "counter"
        }
        self._sums["migratory_closed_total"] = dict.fromkeys(CLOSED_REASONS, 0.0)
        self._sums["migratory_peer_messages_refused_total"] = dict.fromkeys(PEER_REASONS, 0.0)
        self._sums["migratory_http_requests_total"] = dict.fromkeys(HTTP_REQUESTS, 0.0)
        self._sums["migratory_refusals_total"] = dict.fromkeys(REFUSAL_LIMITS, 0.0)
        self._sums["migratory_rate_limited_total"] = dict.fromkeys(RATE_LIMITS, 0.0)
        self._buckets = [0] * (len(TAKEOVER_BUCKETS) + 1)
        self._seconds = 0.0
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(self)
        # process_start_time_seconds tells since when the counters count; CPU, memory
        ProcessCollector(registry=self._registry)

    def observe(self, effect: Observe) -> None:
        """Add the effect's value to the counter that it names, at its label, or as a sample to the histogram. Raises
        KeyError for a metric that is not in `FAMILIES` or is a gauge."""
        if FAMILIES[effect.metric][0] == "histogram":
            self._buckets[bisect_left(TAKEOVER_BUCKETS, effect.value)] += 1
            self._seconds += effect.value
        else:
            sums = self._sums[effect.metric]
            sums[effect.label] = sums.get(effect.label, 0.0) + effect.value

    def page(self) -> tuple[int, str, bytes]:
        """Return the page of /metrics: status 200, content type, and all metrics in Prometheus' text format."""
        return 200, CONTENT_TYPE, generate_latest(self._registry)

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering this collector does not collect its metrics."""
        return []

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics of `FAMILIES` with their present values, for prometheus_client."""
        read = self._read()
        for name, (kind, label, text) in FAMILIES.items():
            labels = ["cluster", "broker", *([label] if label else [])]
            if kind == "histogram":
                yield self._histogram(name, text)
                continue
            family: CounterMetricFamily | GaugeMetricFamily
            if kind == "counter":
                family = CounterMetricFamily(name, text, labels=labels)
                values: dict[str, float] = dict(self._sums[name])
            else:
                family = GaugeMetricFamily(name, text, labels=labels)
                values = {}
            for key, value in _by_label(read.get(name)).items():
                values[key] = values.get(key, 0.0) + value
            for key, value in values.items():
                family.add_metric([*self._common, *([key] if label else [])], value)
            yield family

    def _histogram(self, name: str, text: str) -> HistogramMetricFamily:
        """Return the histogram of takeovers, with cumulative counts, as Prometheus needs them."""
        family = HistogramMetricFamily(name, text, labels=["cluster", "broker"])
        buckets = []
        total = 0
        for border, count in zip([*map(str, TAKEOVER_BUCKETS), "+Inf"], self._buckets, strict=True):
            total += count
            buckets.append((border, float(total)))
        family.add_metric(self._common, buckets, self._seconds)
        return family


def _by_label(value: Value | None) -> Mapping[str, float]:
    """Return a metric's numbers by label, a single number with the label "" and nothing for None."""
    if value is None:
        return {}
    return value if isinstance(value, Mapping) else {"": value}


_LOGIC = {
    "topics": "migratory_topics",
    "cache_bytes": "migratory_cache_bytes",
    "committed": "migratory_committed_total",
    "roles": "migratory_groups",
    "replication_lag": "migratory_replication_lag",
    "fenced": "migratory_fenced",
    "member": "migratory_member",
    "waiting_groups": "migratory_waiting_groups",
    "cache_short": "migratory_cache_short",
}
_EDGE = {
    "clients": "migratory_clients",
    "subscriptions": "migratory_subscriptions",
    "queue_bytes": "migratory_queue_bytes",
    "published": "migratory_published_total",
    "delivered": "migratory_delivered_total",
    "sent_bytes": "migratory_sent_bytes_total",
}

_CLIENT_BYTES = {"input": "input_bytes", "subscriptions": "subscription_bytes", "queues": "queue_bytes"}

EDGE_COUNTERS = tuple(key for key, name in _EDGE.items() if name.endswith("_total"))
"""Keys of an edge's status whose values only rise. The values must still be counted after the edge's process has
ended."""


def metric_values(
    logic: Mapping[str, Any],
    edge: Mapping[str, Any] | None,
    *,
    memory: int = 0,
    longest_stall: float = 0.0,
    capacity: int = 0,
    refused: int = 0,
    peer_refusals: Mapping[str, int] = MappingProxyType({}),
    credential_sources_failing: int = 0,
    handshake_bytes: int = 0,
    tls_handshakes_waiting: int = 0,
    byte_limits: Mapping[str, int] = MappingProxyType({}),
    refusals: Mapping[str, int] = MappingProxyType({}),
    certificates: Mapping[Purpose, Certificate] = MappingProxyType({}),
    requests_refused: Mapping[str, int] = MappingProxyType({}),
    administration_refused: int = 0,
    zookeeper_denials: int = 0,
) -> dict[str, Value]:
    """Return the values that the broker keeps, by name of the metric, for `BrokerMetrics`, which adds what came as
    `Observe`. `logic` is the status of the logic, `edge` the sum of the `status()` of all edges.

    `edge` None, for a broker that has no edge yet, counts as no clients. `memory` is in bytes, `longest_stall` in
    seconds, `capacity` and `refused` in connections, `peer_refusals` in ended links by reason. `handshake_bytes` and
    `byte_limits` (by kind) are in bytes; `refusals`, by limit, are those that no core observes. `certificates` are
    those in use. `tls_handshakes_waiting` is in handshakes. `requests_refused` (by reason), `administration_refused`
    and `zookeeper_denials` are in requests, `credential_sources_failing` in files and URLs.
    """
    values: dict[str, Value] = {
        "migratory_memory_bytes": float(memory),
        "migratory_loop_longest_stall_seconds": longest_stall,
        "migratory_connection_capacity": float(capacity),
        "migratory_connections_refused_total": float(refused),
        "migratory_peer_messages_refused_total": {reason: float(count) for reason, count in peer_refusals.items()},
        "migratory_zookeeper_denied_total": float(zookeeper_denials),
        "migratory_credential_sources_failing": float(credential_sources_failing),
        "migratory_client_bytes": {
            "handshakes": float(handshake_bytes),
            "publications": float(logic["pending_bytes"]),
            **{kind: float(edge[key]) if edge is not None else 0.0 for kind, key in _CLIENT_BYTES.items()},
        },
        "migratory_client_bytes_limit": {kind: float(limit) for kind, limit in (byte_limits or {}).items()},
        "migratory_refusals_total": {limit: float(count) for limit, count in (refusals or {}).items()},
        "migratory_requests_refused_total": {reason: float(count) for reason, count in requests_refused.items()},
        "migratory_administration_refused_total": float(administration_refused),
        "migratory_tls_handshakes_waiting": float(tls_handshakes_waiting),
        "migratory_tls_refused_total": {name: float(each.refused) for name, each in certificates.items()},
        "migratory_certificates_rejected_total": {name: float(each.failures) for name, each in certificates.items()},
        "migratory_certificate_expiry_timestamp_seconds": {
            name: each.expires_at for name, each in certificates.items()
        },
    }
    if edge is not None:
        values["migratory_io_process_clients"] = edge.get("by_process", {})
    for source, names in ((logic, _LOGIC), (edge if edge is not None else dict.fromkeys(_EDGE, 0), _EDGE)):
        for key, name in names.items():
            value = source[key]
            values[name] = (
                {label: float(count) for label, count in value.items()} if isinstance(value, Mapping) else float(value)
            )
    return values


MEMORY_MAX_AGE = 10.0
"""Seconds for which a reading of a process's memory is reused: for a large process a reading takes the kernel
milliseconds."""


def pss(pid: int) -> int:
    """Return the bytes of memory of a process, its part of shared pages included (PSS); 0 where that cannot be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # the process is gone, or this is not Linux
    return 0


class MemoryReader:
    """The memory of processes, each of which is read at most once in `MEMORY_MAX_AGE` seconds."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._read: dict[int, tuple[float, int]] = {}

    def pss(self, pid: int) -> int:
        """Return the bytes of memory of a process as the function `pss` does, at most `MEMORY_MAX_AGE` seconds old."""
        now = self._clock()
        if pid not in self._read or now - self._read[pid][0] >= MEMORY_MAX_AGE:
            # forget processes that are gone
            self._read = {other: cached for other, cached in self._read.items() if now - cached[0] < MEMORY_MAX_AGE}
            self._read[pid] = (now, pss(pid))
        return self._read[pid][1]

    def total(self, others: Iterable[int] = ()) -> int:
        """Return the bytes of memory of this process and the processes `others`, given by id, each at most
        `MEMORY_MAX_AGE` seconds old."""
        return sum(self.pss(pid) for pid in {os.getpid(), *others})
