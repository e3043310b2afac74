"""Totals over random exporters, compared with a reference that goes sample by sample, without Spark.

Exporters restart fast or slowly, miss scrapes, start late and end early, with and without start times. Samples come
twice and out of order, and windows begin and end anywhere.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator
from typing import NamedTuple

import pytest
from migratory_testing.reports import Sample, objective, plain_report

SKEW_MS = 5000


class Scrape(NamedTuple):
    at: int
    value: float
    began: float
    """Start time of the process in seconds. An exporter may not export it."""


class Exporter(NamedTuple):
    name: str
    tells: bool
    scrapes: list[Scrape]


def drawn(source: random.Random, name: str, start: int, end: int) -> Exporter:
    step = source.choice([500, 1000, 1500, 5000])
    at = start + source.randrange(-20, 5) * step + source.randrange(step)
    stop = end + 3 * step if source.random() < 0.6 else end - source.randrange(20) * step
    value, began = 0.0, at / 1000 - source.choice([1, 60])
    scrapes: list[Scrape] = []
    while at < stop:
        if scrapes and source.random() < 0.05:
            value, began = 0.0, at / 1000
        value += source.choice([0, 0, 1, 3, 10])
        if source.random() > 0.08:
            scrapes.append(Scrape(at, value, began))
        at += step + source.randrange(-50, 50)
    return Exporter(name, source.random() < 0.5, scrapes)


def samples(source: random.Random, exporter: Exporter) -> Iterator[Sample]:
    target = {"job": "load", "instance": exporter.name}
    labels = {"cluster": "c", "broker": "b0", **target}
    for scrape in exporter.scrapes:
        sample: Sample = ("migratory_received_total", labels, scrape.at, scrape.value)
        yield from [sample] * source.choice([1] * 9 + [2])
        if source.random() < 0.05:
            yield sample[0], labels, scrape.at + 1, math.nan
        if exporter.tells:
            yield "process_start_time_seconds", target, scrape.at, scrape.began


def rises(exporter: Exporter, start: int) -> Iterator[tuple[int, float]]:
    """Yield the time in ms of each scrape and the increase that it shows, by the rules of docs/reference/sla.md, one
    sample after the other."""
    before: Scrape | None = None
    top = 0.0
    for scrape in exporter.scrapes:
        if before is None:
            older = exporter.tells and scrape.at > start and scrape.began * 1000 + SKEW_MS < start
            yield scrape.at, 0.0 if older else scrape.value
            top = scrape.value
        else:
            again = scrape.began != before.began if exporter.tells else scrape.value < before.value
            yield scrape.at, scrape.value if again else max(0.0, scrape.value - top)
            top = scrape.value if again else max(top, scrape.value)
        before = scrape


@pytest.mark.parametrize("seed", range(25))
def test_totals_equal_a_sample_by_sample_reference(seed: int) -> None:
    source = random.Random(f"random samples {seed}")
    start = source.randrange(1_000_000, 5_000_000)
    end = start + source.randrange(5_000, 200_000)
    exporters = [drawn(source, f"w{number}", start, end) for number in range(source.randint(1, 3))]
    rows = [sample for exporter in exporters for sample in samples(source, exporter)]
    source.shuffle(rows)
    truth = sum(
        rise for exporter in exporters for moment, rise in rises(exporter, start) if start < moment <= end
    )  # fmt: skip
    report = plain_report(rows, start / 1000, end / 1000, window_seconds=source.choice([None, 0.7, 3.0]))
    assert (report["delivery"]["received"] or 0) == truth
    assert sum(row["received"] for row in report["windows"]) == truth
    assert sum(row["received"] for row in report["calendar"]["rows"]) == truth


HOUR_MS = 3_600_000


def long_lived(source: random.Random, name: str, now: int) -> Exporter:
    """Return an exporter of the last days before `now`, scraped every five minutes with pauses of hours. It restarts
    now and then."""
    at = now - source.randrange(60) * HOUR_MS - source.randrange(HOUR_MS)
    value, began = float(source.choice([0, 50])), at / 1000 - source.choice([1, 6000, 300_000])
    scrapes: list[Scrape] = []
    while at < now:
        if scrapes and source.random() < 0.01:
            value, began = 0.0, at / 1000
        value += source.choice([0, 1, 3, 10])
        scrapes.append(Scrape(at, value, began))
        at += 300_000 + (source.randrange(5 * HOUR_MS) if source.random() < 0.02 else 0)
    return Exporter(name, source.random() < 0.8, scrapes)


def publications(exporter: Exporter) -> Iterator[Sample]:
    """Yield the exporter's counts as publications: nine of ten acknowledged, measured in buckets that change once."""
    target = {"job": "load", "instance": exporter.name}
    labels = {"cluster": "c", "broker": "b0", **target}
    for number, (at, value, began) in enumerate(exporter.scrapes):
        yield "migratory_publish_seconds_count", labels, at, 9 * value
        yield "migratory_publish_errors_total", {**labels, "reason": "timeout"}, at, value
        yield "migratory_publish_gap_seconds_count", labels, at, value
        for le in ("0.1", "0.5", "+Inf") if number > len(exporter.scrapes) // 2 else ("0.5", "+Inf"):
            yield "migratory_publish_gap_seconds_bucket", {**labels, "le": le}, at, value
        if exporter.tells:
            yield "process_start_time_seconds", target, at, began


@pytest.mark.parametrize("seed", range(12))
def test_an_objective_is_judged_as_in_a_report_over_its_window_alone(seed: int) -> None:
    """An objective with a window of its own has the counts of a report over that window, and changes nothing else in
    the report: counters that are older than one window need not be older than another, and buckets that changed in one
    did not in another."""
    source = random.Random(f"windows {seed}")
    now = 1_700_000_000_000
    rows = [row for number in range(4) for row in publications(long_lived(source, f"w{number}", now))]
    source.shuffle(rows)
    served = {"type": "availability", "target": "90"}
    quick = {"type": "publish", "threshold": "100ms", "target": "90"}
    own = [objective(name="served", **served), objective(name="quick", **quick)]
    longer = [
        objective(name="served-long", **served, window={"rolling": "20h"}),
        objective(name="quick-long", **quick, window={"rolling": "50h"}),
    ]
    start, end = now / 1000 - 7200, now / 1000
    alone = plain_report(rows, start, end, own)
    together = plain_report(rows, start, end, [*own, *longer])
    results = {result["name"]: result for result in together.pop("objectives")}
    assert [results.pop("served"), results.pop("quick")] == alone.pop("objectives")
    for result, hours in ((results["served-long"], 20), (results["quick-long"], 50)):
        whole = plain_report(rows, end - hours * 3600, end, own)["objectives"]
        (same,) = (each for each in whole if each["type"] == result["type"])
        for key in ("good", "total", "compliance", "budget_left", "verdict", "reason"):
            assert result[key] == same[key], key
        assert result["burn"] == same["burn"]
        assert result["window"]["coverage"] == same["window"]["coverage"]
    del alone["verdict"], together["verdict"]
    assert together == alone
