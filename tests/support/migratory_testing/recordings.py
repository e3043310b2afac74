"""Samples as the recorder writes them for a minute of load. They come from the load generator's own exporter, second by
second, without waiting for the minute.

Two brokers deliver 50 publications a second each, within 10 ms. `b1` dies after half of the time, and its 25 clients
resume at `b0` within a second; publishers wait for an acknowledgement for 1.4 s.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from migratory_loadtest.exporter import MeterCollector
from migratory_loadtest.meter import BEFORE, Meter
from migratory_local.metrics.recorder import SCHEMA

START, SECONDS = 1_767_225_600, 60
"""Start of the recording (2026-01-01T00:00:00Z) in seconds since 1970, and its length in seconds."""
BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.25, 1.0, 5.0)
DELIVERIES = 50 * SECONDS + 50 * (SECONDS // 2)


class Sample(NamedTuple):
    """One sample: metric, labels, time in ms since 1970, and value."""

    metric: str
    labels: dict[str, str]
    timestamp: int
    value: float


def recording(
    *,
    lost: int = 0,
    cluster: str = "quotes",
    start: int = START,
    latency: Callable[[int], float | None] = lambda second: 0.009,
) -> list[Sample]:
    """Return the samples of the minute, scraped each second and once before the first delivery.

    The last scrape counts `lost` deliveries as lost, as a verifier reports them. `latency` maps a second, counted from
    0, to the latency in seconds of its deliveries, or to None for a second without publications. `start` is in seconds
    since 1970.
    """
    meter = Meter(BOUNDS, settle=1.0)
    exporter = MeterCollector(meter, cluster, started_at=start - 1.0)
    found = [*_scrape(exporter, start)]
    for second in range(SECONDS):
        if (delay := latency(second)) is not None:
            for broker in ("b0", "b1") if second < SECONDS // 2 else ("b0",):
                meter.acknowledged(broker, 0.004, 50)
                for _ in range(50):
                    meter.delivered(BEFORE, broker, False, delay)
        if second == SECONDS // 2:
            meter.reconnects["b1", "broken"] += 120
            for _ in range(120):  # fewer could not show 99%
                meter.resumed("b0", 0.8)
            meter.publish_gaps([1.4] * 20)
        if second == SECONDS - 1:
            meter.lost["b0"] += lost
        found += _scrape(exporter, start + second + 1)
    return found


def write_parquet(samples: list[Sample], folder: Path, files: int = 1) -> Path:
    """Write the samples to this number of Parquet files, as the recorder does, and return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    size = -(-len(samples) // files)
    for number in range(files):
        part = samples[number * size : (number + 1) * size]
        columns = [
            [sample.metric for sample in part],
            [list(sample.labels.items()) for sample in part],
            [sample.timestamp for sample in part],
            [sample.value for sample in part],
        ]
        pq.write_table(pa.table(columns, schema=SCHEMA), folder / f"samples-{number:05d}.parquet")
    return folder


def openmetrics(samples: Iterable[Sample]) -> str:
    """Return the samples as text for `promtool tsdb create-blocks-from openmetrics`. All series are of the type
    unknown, whose names promtool keeps as they are."""
    lines: dict[str, list[str]] = {}
    for metric, labels, timestamp, value in samples:
        text = ",".join(f'{name}="{label}"' for name, label in labels.items())
        lines.setdefault(metric, []).append(f"{metric}{{{text}}} {value!r} {timestamp / 1000:.3f}")
    families = [f"# TYPE {metric} unknown\n" + "\n".join(found) for metric, found in lines.items()]
    return "\n".join(families) + "\n# EOF\n"


def _scrape(exporter: MeterCollector, moment: int) -> list[Sample]:
    """Return the samples of one scrape at `moment` (s). Labels without a value are left out, as Prometheus does."""
    target = {"job": "bench", "instance": "127.0.0.1:9100"}
    return [
        Sample(sample.name, given({**sample.labels, **target}), moment * 1000, float(sample.value))
        for family in exporter.collect()
        for sample in family.samples
    ]


def given(labels: dict[str, str]) -> dict[str, str]:
    """Return the labels without those that have an empty value."""
    return {name: value for name, value in labels.items() if value}
