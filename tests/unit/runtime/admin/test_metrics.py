"""The metrics page: the names and labels of docs/reference/metrics.md, as an independent parser reads them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import migratory_broker
import psutil
import pytest
from migratory_broker.core.logic.events import Observe
from migratory_broker.runtime.admin.metrics import (
    FAMILIES,
    REFUSAL_LIMITS,
    TAKEOVER_BUCKETS,
    BrokerMetrics,
    metric_values,
)
from prometheus_client.parser import text_string_to_metric_families

LOGIC = {
    "topics": 3,
    "cache_bytes": 420,
    "committed": 9,
    "roles": {"coordinator": 2, "member": 6},
    "replication_lag": 1,
    "fenced": False,
    "member": True,
    "waiting_groups": 0,
    "cache_short": False,
    "pending_bytes": 50,
}
EDGE = {
    "clients": 5, "subscriptions": 7, "queue_bytes": 30, "input_bytes": 20, "subscription_bytes": 10, "published": 11,
    "delivered": 70, "sent_bytes": 900,
}  # fmt: skip


def samples(metrics: BrokerMetrics) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    status, content_type, body = metrics.page()
    assert status == 200
    assert content_type.startswith("text/plain")
    values = {}
    for family in text_string_to_metric_families(body.decode()):
        for sample in family.samples:
            labels = dict(sample.labels)
            # those of the process have the names, and the labels, that every exporter has
            if not sample.name.startswith("process_"):
                assert labels.pop("cluster") == "quotes"
                assert labels.pop("broker") == "b0"
            values[sample.name, tuple(sorted(labels.items()))] = sample.value
    return values


def page(edge: Any = EDGE) -> BrokerMetrics:
    limits = {"handshakes": 100, "input": 200, "subscriptions": 300, "queues": 400, "publications": 500}
    return BrokerMetrics(
        "quotes",
        "b0",
        lambda: metric_values(
            LOGIC, edge, handshake_bytes=40, byte_limits=limits, refusals={"descriptors": 2, "address_rate": 3}
        ),
    )


def test_the_page_has_every_family_with_the_values_of_the_cores() -> None:
    values = samples(page())
    names = {name for name, _ in values}
    for name, (kind, label, _) in FAMILIES.items():
        if kind == "histogram":
            assert {f"{name}_bucket", f"{name}_sum", f"{name}_count"} <= names
        elif not label:
            assert (name, ()) in values
    assert values["migratory_clients", ()] == 5
    assert values["migratory_delivered_total", ()] == 70
    assert values["migratory_published_total", ()] == 11
    assert values["migratory_groups", (("role", "coordinator"),)] == 2
    assert values["migratory_member", ()] == 1
    assert values["migratory_fenced", ()] == 0


def test_the_page_has_the_memory_of_clients_by_kind_and_its_limits() -> None:
    metrics = page()
    metrics.observe(Observe("migratory_refusals_total", label="subscriptions_total"))
    values = samples(metrics)
    kinds = ("handshakes", "input", "subscriptions", "queues", "publications")
    assert [values["migratory_client_bytes", (("kind", kind),)] for kind in kinds] == [40, 20, 10, 30, 50]
    assert [values["migratory_client_bytes_limit", (("kind", kind),)] for kind in kinds] == [100, 200, 300, 400, 500]
    refusals = {labels[0][1]: value for (name, labels), value in values.items() if name == "migratory_refusals_total"}
    assert {limit: count for limit, count in refusals.items() if count} == {
        "descriptors": 2, "address_rate": 3, "subscriptions_total": 1,
    }  # fmt: skip
    assert set(refusals) == set(REFUSAL_LIMITS)
    before = samples(page(None))
    assert [before["migratory_client_bytes", (("kind", kind),)] for kind in kinds] == [40, 0, 0, 0, 50]


def test_the_page_has_the_start_time_of_the_process() -> None:
    began = psutil.Process().create_time()
    assert samples(page())["process_start_time_seconds", ()] == pytest.approx(began, abs=1.0)


def test_metrics_count_no_clients_before_there_is_an_edge() -> None:
    assert samples(page(None))["migratory_clients", ()] == 0


def test_metrics_sum_observed_samples() -> None:
    metrics = page()
    for metric, value, label in (
        ("migratory_takeovers_total", 1.0, ""),
        ("migratory_takeovers_total", 1.0, ""),
        ("migratory_closed_total", 1.0, "slow_consumer"),
        ("migratory_closed_total", 1.0, "draining"),
        ("migratory_closed_total", 1.0, "draining"),
    ):
        metrics.observe(Observe(metric, value, label))
    values = samples(metrics)
    assert values["migratory_takeovers_total", ()] == 2
    assert values["migratory_closed_total", (("reason", "slow_consumer"),)] == 1
    assert values["migratory_closed_total", (("reason", "draining"),)] == 2
    assert values["migratory_history_resets_total", ()] == 0
    assert values["migratory_closed_total", (("reason", "lost"),)] == 0


def test_a_duration_is_counted_in_the_bucket_whose_bound_is_at_or_above_it() -> None:
    metrics = page()
    for value in (0.01, 0.0100001, 2.0, 99.0):
        metrics.observe(Observe("migratory_takeover_seconds", value))
    values = samples(metrics)
    assert values["migratory_takeover_seconds_bucket", (("le", "0.01"),)] == 1
    assert values["migratory_takeover_seconds_bucket", (("le", "0.025"),)] == 2
    assert values["migratory_takeover_seconds_bucket", (("le", "2.0"),)] == 3
    assert values["migratory_takeover_seconds_bucket", (("le", str(TAKEOVER_BUCKETS[-1])),)] == 3
    assert values["migratory_takeover_seconds_bucket", (("le", "+Inf"),)] == 4
    assert values["migratory_takeover_seconds_count", ()] == 4
    assert values["migratory_takeover_seconds_sum", ()] == pytest.approx(101.0200001)


def test_observe_raises_key_error_for_an_unknown_metric() -> None:
    with pytest.raises(KeyError):
        page().observe(Observe("migratory_surprises_total"))


def test_every_metric_the_broker_observes_is_in_the_contract() -> None:
    """Each metric that the broker's code observes is accepted by its metrics. Regression: observing a gauge, which
    is read from the status instead, ended every broker."""
    sources = Path(migratory_broker.__file__).parent.rglob("*.py")
    names = {name for source in sources for name in re.findall(r'[oO]bserve\("(\w+)"', source.read_text())}
    assert {"migratory_takeovers_total", "migratory_closed_total"} <= names
    metrics = BrokerMetrics("c", "b", dict)
    for name in names:
        metrics.observe(Observe(name, 1.0, "x"))
