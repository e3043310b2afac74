"""A report compared with an independent computation over the same samples: plain Python, one series after the other,
without Spark.

The samples contain everything that makes counting hard: exporters that restart, or start and end within the window,
stale markers, duplicate samples, and samples in any order. Then one sample is changed, and the verdict changes.
"""

from __future__ import annotations

import math
import random
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Iterable
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from migratory_resources.objectives import Objective
from migratory_spark.read.sample_reader import ReadLimits
from migratory_spark.read.series_store import MAX_LOCAL_SAMPLES
from migratory_spark.report.build import as_plain, build_report
from pyspark.sql import SparkSession

pytestmark = [pytest.mark.real, pytest.mark.timeout(600)]
Sample = tuple[str, dict[str, str], int, float]
Write = Callable[[list[Sample]], Path]

START, SECONDS = 1_800_000_000, 120
BEFORE = 30
"""Seconds before the window for which there are samples too."""
BOUNDS = [0.005, 0.01, 0.05, 0.25, 1.0, math.inf]
LATENCY = "migratory_delivery_latency_seconds"
OBJECTIVES = [
    Objective.model_validate({"name": "fast", "type": "latency", "threshold": "250ms", "target": "99"}),
    Objective.model_validate({"name": "complete", "type": "delivery", "target": "100"}),
    Objective.model_validate(
        {"name": "steady", "type": "latency", "target": "10",
         "slices": {"length": "10s", "percentile": "99.5", "threshold": "250ms"}}
    ),
    Objective.model_validate(
        {"name": "recent", "type": "latency", "threshold": "250ms", "target": "99", "window": {"rolling": "60s"}}
    ),
]  # fmt: skip


class Worker:
    """One simulated exporter and its counters for the brokers b0 to b2, from which samples are made."""

    def __init__(self, name: str, first: int, last: int, restarts: Iterable[int], source: random.Random) -> None:
        self.name, self.first, self.last, self.restarts, self.source = name, first, last, set(restarts), source
        self.counters: dict[tuple[str, frozenset[tuple[str, str]]], float] = defaultdict(float)

    def second(self, moment: int) -> list[Sample]:
        if not self.first <= moment <= self.last:
            return []
        if moment in self.restarts:
            self.counters.clear()
        self.work()
        at = (START + moment) * 1000 + 17
        return [
            (metric, dict(labels) | {"job": "load", "instance": self.name}, at, value)
            for (metric, labels), value in self.counters.items()
        ]

    def work(self) -> None:
        for broker in ("b0", "b1", "b2"):
            values = self.source.choices(
                (0.004, 0.008, 0.03, 0.2, 0.6), (30, 40, 20, 9.5, 0.5), k=self.source.randint(8, 14)
            )
            for bound in BOUNDS:
                self.add(f"{LATENCY}_bucket", sum(value <= bound for value in values), broker, le=bound)
            self.add(f"{LATENCY}_sum", sum(values), broker)
            self.add(f"{LATENCY}_squared_total", sum(value**2 for value in values), broker)
            self.add("migratory_received_total", len(values), broker, latency=False)
            self.add("migratory_expected_total", len(values), "", latency=False)
            for name in ("lost", "duplicates", "reordered"):
                self.add(f"migratory_{name}_total", 0, broker, latency=False)

    def add(self, metric: str, value: float, broker: str, le: float | None = None, latency: bool = True) -> None:
        labels = {"cluster": "c", "broker": broker}
        if latency:
            labels |= {"clock": "same", "phase": "live"}
        if le is not None:
            labels["le"] = "+Inf" if math.isinf(le) else str(le)
        self.counters[metric, frozenset(labels.items())] += value


@pytest.fixture(scope="module")
def samples() -> list[Sample]:
    source = random.Random("a report beside plain Python")
    workers = [
        Worker("w0", -BEFORE, SECONDS, (), source),
        Worker("w1", -BEFORE, SECONDS, (41, 77), source),
        Worker("w2", 13, SECONDS, (60,), source),
        Worker("w3", -BEFORE, 95, (), source),
    ]
    generated = [
        sample for moment in range(-BEFORE, SECONDS + 5) for worker in workers for sample in worker.second(moment)
    ]
    generated += [source.choice(generated) for _ in range(500)]
    generated += [(metric, labels, moment + 1, math.nan) for metric, labels, moment, _ in source.sample(generated, 50)]
    source.shuffle(generated)
    return generated


Key = tuple[str, frozenset[tuple[str, str]]]


def rises(samples: Iterable[Sample]) -> dict[Key, list[tuple[int, float]]]:
    """Return the (time in ms, increase) of each sample in the report's window, by series and by the rules of
    docs/reference/sla.md."""
    by_series: dict[Key, dict[int, float]] = defaultdict(dict)
    for metric, labels, moment, value in samples:
        if not math.isnan(value):
            times = by_series[metric, frozenset(labels.items())]
            times[moment] = max(value, times.get(moment, -math.inf))
    series_samples: dict[Key, list[tuple[int, float]]] = {}
    for key, times in by_series.items():
        before, risen = None, []
        for moment in sorted(times):
            value = times[moment]
            rise = value if before is None or value < before else value - before
            before = value
            if START * 1000 < moment <= (START + SECONDS) * 1000:
                risen.append((moment, rise))
        series_samples[key] = risen
    return series_samples


class Plain:
    """A second, independent computation of a report's figures, written for simplicity and not for speed."""

    def __init__(self, samples: list[Sample]) -> None:
        self.rises = rises(samples)

    def total(self, metric: str, slice_ends: tuple[int, int] | None = None, **labels: str) -> float:
        first, last = slice_ends or (0, 2**62)
        return math.fsum(
            rise
            for (name, has), risen in self.rises.items()
            if name == metric and set(labels.items()) <= has
            for moment, rise in risen
            if first < moment <= last
        )

    def within(self, le: str, slice_ends: tuple[int, int] | None = None, **labels: str) -> int:
        return round(self.total(f"{LATENCY}_bucket", slice_ends, le=le, **labels))

    def median(self) -> float:
        counts = [self.within("+Inf" if math.isinf(bound) else str(bound)) for bound in BOUNDS]
        place = bisect_left(counts, counts[-1] / 2)
        lower, below = (BOUNDS[place - 1], counts[place - 1]) if place else (0.0, 0)
        return lower + (BOUNDS[place] - lower) * (counts[-1] / 2 - below) / (counts[place] - below)

    def slices(self) -> tuple[int, int]:
        good = total = 0
        for first in range(START * 1000, (START + SECONDS) * 1000, 10_000):
            counted = self.within("+Inf", (first, first + 10_000))
            total += counted > 0
            good += counted > 0 and Fraction(self.within("0.25", (first, first + 10_000)), counted) >= Fraction(
                995, 1000
            )
        return good, total


@pytest.fixture(scope="module")
def plain(samples: list[Sample]) -> Plain:
    return Plain(samples)


def made(session: SparkSession, directory: Path, few: int = MAX_LOCAL_SAMPLES) -> dict[str, Any]:
    return as_plain(build_report(session, directory, START, START + SECONDS, OBJECTIVES, limits=ReadLimits(few, few)))


@pytest.mark.parametrize("few", [MAX_LOCAL_SAMPLES, 0])
def test_all_totals_equal_a_plain_python_reference(
    session: SparkSession, write: Write, samples: list[Sample], plain: Plain, few: int
) -> None:
    """The report's totals, means, objectives and verdict equal those of the plain computation, when one process adds
    them up and when Spark distributes the work."""
    report = made(session, write(samples), few)
    delivery, latency = report["delivery"], report["latency_ms"]
    for name in ("expected", "received", "lost", "duplicates", "reordered"):
        assert delivery[name] == round(plain.total(f"migratory_{name}_total")), name
    assert delivery["received"] > 10_000
    for broker in ("b0", "b1", "b2"):
        assert delivery["by_broker"][broker]["received"] == round(
            plain.total("migratory_received_total", broker=broker)
        )
        assert latency["by_broker"][broker]["count"] == plain.within("+Inf", broker=broker)
    count = plain.within("+Inf")
    mean = plain.total(f"{LATENCY}_sum") / count
    deviation = math.sqrt(plain.total(f"{LATENCY}_squared_total") / count - mean**2)
    assert latency["all"]["mean"] == round(mean * 1000, 3)
    assert latency["all"]["stdev"] == round(deviation * 1000, 3)
    assert latency["all"]["median"] == round(plain.median() * 1000, 3)
    assert sum(row["received"] for row in report["windows"]) == delivery["received"]
    assert sum(map(sum, latency["heat"]["counts"])) == count
    assert latency["cumulative"][-1] == [1000.0, count]
    fast, complete, steady, recent = report["objectives"]
    half = ((START + 60) * 1000, (START + 120) * 1000)
    assert (recent["good"], recent["total"]) == (plain.within("0.25", half), plain.within("+Inf", half))
    assert (fast["good"], fast["total"]) == (plain.within("0.25"), count)
    assert complete["total"] == delivery["expected"]
    assert (steady["good"], steady["total"]) == plain.slices()
    assert [point["total"] for point in fast["budget_over_time"]][-1] == count
    assert report["verdict"] == "met"

    # What can't be known is said: the restarts of two exporters, the end of a third.
    targets = {target["name"]: target for target in report["coverage"]["targets"]}
    assert [targets[f"load/w{number}"]["restarts"] for number in range(4)] == [0, 2, 1, 0]
    assert [name for name, target in targets.items() if target["ended_early"]] == ["load/w3"]
    assert any("load/w3 was scraped last at" in note for note in report["notes"])
    assert report["samples"]["repeated"] > 0


def test_one_changed_sample_changes_the_verdict(session: SparkSession, write: Write, samples: list[Sample]) -> None:
    inside = [sample for sample in samples if sample[2] <= (START + SECONDS) * 1000]
    last = max(moment for metric, _, moment, _ in inside if metric == "migratory_lost_total")
    chosen = ("migratory_lost_total", "w0", "b2", last)
    altered = [
        (metric, labels, moment, value + 1)
        if (metric, labels["instance"], labels["broker"], moment) == chosen
        else (metric, labels, moment, value)
        for metric, labels, moment, value in inside
    ]
    report = made(session, write(altered))
    assert report["delivery"]["lost"] == 1
    assert report["delivery"]["by_broker"]["b2"]["lost"] == 1
    assert [result["verdict"] for result in report["objectives"]] == ["met", "missed", "met", "met"]
    assert report["verdict"] == "missed"
