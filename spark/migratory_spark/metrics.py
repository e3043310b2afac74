"""The metrics that a report reads, by their names in samples, and what each is read for (docs/metrics.md)."""

from __future__ import annotations

from typing import Literal

LATENCY = "migratory_delivery_latency_seconds"
RESUME = "migratory_resume_seconds"
PUBLISH_GAP = "migratory_publish_gap_seconds"
PUBLISH = "migratory_publish_seconds"
SQUARES = {LATENCY: "migratory_delivery_latency_seconds_squared_total"}
"""Counters that make a histogram's deviation exact."""
HISTOGRAMS = (LATENCY, RESUME, PUBLISH_GAP, PUBLISH)

EXPECTED = "migratory_expected_total"
RECEIVED = "migratory_received_total"
LOST = "migratory_lost_total"
DUPLICATES = "migratory_duplicates_total"
REORDERED = "migratory_reordered_total"
GAPS = "migratory_gaps_total"
RECONNECTS = "migratory_reconnects_total"
PUBLISH_ERRORS = "migratory_publish_errors_total"
TAKEOVERS = "migratory_takeovers_total"
PUBLISHED = "migratory_published_total"
SENT_BYTES = "migratory_sent_bytes_total"
BROKER_COUNTERS = (TAKEOVERS, PUBLISHED, SENT_BYTES)
"""Told by brokers. The last two fall when a broker restarts."""
COUNTERS = (EXPECTED, RECEIVED, LOST, DUPLICATES, REORDERED, GAPS, RECONNECTS, PUBLISH_ERRORS, *BROKER_COUNTERS)

CLIENTS = "migratory_clients"
GAUGES = (CLIENTS,)

PROCESS_START = "process_start_time_seconds"
"""When a target's process began: it tells a fast restart, after which a counter may already be higher than before."""

CLIENT_METRICS = (RECEIVED, EXPECTED, f"{LATENCY}_count", RECONNECTS)
PUBLISHER_METRICS = (f"{PUBLISH}_count", PUBLISH_ERRORS)
"""Told by clients, publishers and load generators: without a scrape of these nothing is known."""

LABELS = ("cluster", "job", "instance", "broker", "clock", "phase", "reason", "receipt", "le")
"""Those by which series of one metric differ; any other is the scraper's."""

SHARED = ("up", PROCESS_START)
"""Metrics without the label `cluster`: they are the scraper's, or the process's."""

Role = Literal["clients", "publishers", "brokers"]

_PARTS = ("_total", "_bucket", "_count", "_sum")


def role(metric: str) -> Role | None:
    """As what a target is scraped that tells this metric; None for metrics that do not show it."""
    if metric in CLIENT_METRICS:
        return "clients"
    if metric in PUBLISHER_METRICS:
        return "publishers"
    return "brokers" if metric in (CLIENTS, *BROKER_COUNTERS) else None


def tells_a_beginning(metric: str) -> bool:
    return metric.endswith("_created") or metric == PROCESS_START


def family(metric: str) -> str:
    """The name that `_created` is put behind: that of a counter without `_total`, that of a histogram without its
    parts."""
    for ending in _PARTS:
        if metric.endswith(ending):
            return metric.removesuffix(ending)
    return metric


def counters() -> list[str]:
    """All series that only rise, parts of histograms included."""
    parts = [f"{histogram}{part}" for histogram in HISTOGRAMS for part in ("_bucket", "_sum", "_count")]
    return [*COUNTERS, *SQUARES.values(), *parts]


def created() -> list[str]:
    """Series that tell when a counter began."""
    return sorted({f"{family(metric)}_created" for metric in counters()})


def is_counter(metric: str) -> bool:
    return metric.endswith(_PARTS)


def all_metrics() -> list[str]:
    return [*counters(), *GAUGES, *created(), PROCESS_START]
