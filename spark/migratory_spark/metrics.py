"""Names of the metrics that a report reads (docs/reference/metrics.md), and what follows from a name: the role of its
exporter, whether it is a counter, and whether its value is a start time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

LATENCY = "migratory_delivery_latency_seconds"
RESUME = "migratory_resume_seconds"
PUBLISH_GAP = "migratory_publish_gap_seconds"
PUBLISH = "migratory_publish_seconds"
SQUARES = {LATENCY: "migratory_delivery_latency_seconds_squared_total"}
"""By histogram, the counter of squares that makes its standard deviation exact."""
SQUARED = {counter: histogram for histogram, counter in SQUARES.items()}
"""By counter of squares, its histogram."""
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
"""Counters that brokers export. The last two are read only to notice a broker's restart, at which they fall."""
COUNTERS = (EXPECTED, RECEIVED, LOST, DUPLICATES, REORDERED, GAPS, RECONNECTS, PUBLISH_ERRORS, *BROKER_COUNTERS)

CLIENTS = "migratory_clients"
GAUGES = (CLIENTS,)

PROCESS_START = "process_start_time_seconds"
"""The start time of a target's process. It reveals a fast restart, after which a counter may already be higher than
before."""

CLIENT_METRICS = (RECEIVED, EXPECTED, f"{LATENCY}_count", RECONNECTS)
PUBLISHER_METRICS = (f"{PUBLISH}_count", PUBLISH_ERRORS)
"""Metrics that clients, publishers and load generators export. Without a scrape of them nothing is known."""

LABELS = ("cluster", "job", "instance", "broker", "clock", "phase", "reason", "receipt", "le")
"""Labels by which series of one metric differ. All others are added by the scraper."""

SHARED = ("up", PROCESS_START)
"""Metrics without the label `cluster`, which the scraper or the process exports."""

Role = Literal["clients", "publishers", "brokers"]

HISTOGRAM_PARTS = ("_bucket", "_sum", "_count")
"""Endings of the series of a histogram in the classic form."""
_PARTS = ("_total", *HISTOGRAM_PARTS)


def role_of(metric: str) -> Role | None:
    """Return the role of an exporter that exports `metric`: clients, publishers or brokers. Return None for a metric
    from which no role follows."""
    if metric in CLIENT_METRICS:
        return "clients"
    if metric in PUBLISHER_METRICS:
        return "publishers"
    return "brokers" if metric in (CLIENTS, *BROKER_COUNTERS) else None


def shows_start(metric: str) -> bool:
    """Return whether the values of a metric of this name are the times at which a counter (`_created`) or a process
    started."""
    return metric.endswith("_created") or metric == PROCESS_START


def family(metric: str) -> str:
    """Return the metric's name without its ending `_total`, `_bucket`, `_count` or `_sum`, or the whole name if it has
    none of them. With `_created` appended it is the name of the series that has the start time."""
    for ending in _PARTS:
        if metric.endswith(ending):
            return metric.removesuffix(ending)
    return metric


def counters() -> list[str]:
    """Return the names of all metrics that a report reads and that only rise, including the parts of histograms."""
    parts = [f"{histogram}{part}" for histogram in HISTOGRAMS for part in HISTOGRAM_PARTS]
    return [*COUNTERS, *SQUARES.values(), *parts]


def with_native(names: Iterable[str]) -> set[str]:
    """Return the names, and those of the native histograms of which they are parts in the classic form."""
    every = set(names)
    return every | {histogram for histogram in HISTOGRAMS if every & {f"{histogram}{part}" for part in HISTOGRAM_PARTS}}


def created() -> list[str]:
    """Return the sorted names of the metrics (`_created`) whose values are the start times of the counters that a
    report reads."""
    return sorted({f"{family(metric)}_created" for metric in counters()})


def is_counter(metric: str) -> bool:
    """Return whether the name is that of a metric whose values only rise: it ends in `_total`, `_bucket`, `_count` or
    `_sum`."""
    return metric.endswith(_PARTS)


def all_metrics() -> list[str]:
    """Return the name of every metric that a report selects from the samples: counters, gauges and start times."""
    return [*counters(), *GAUGES, *created(), PROCESS_START]
