"""The SLA report: what happened in a window of time, per broker, around each incident, and whether it was as promised.

`build_report` is the whole job; `sla_report` is the same as plain data, ready for JSON. What the parts mean is in
`document.py` and docs/sla.md. The samples are gone through three times at most: for the catalogue of series, for their
timeline (kept, in Spark, without labels), and for the sums; all that is collected is bounded by brokers, rows and
buckets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
from migratory_resources.objectives import Objective, check
from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from migratory_spark import aftermath, names, periods, sections
from migratory_spark.catalogue import Facts, catalogue, counted, facts
from migratory_spark.cells import Cells
from migratory_spark.counting import ROLES, Count, occurrences
from migratory_spark.coverage import ALLOWED_INTERVALS, Exporters, exporters
from migratory_spark.document import Coverage, Report, Result, Samples, Target, Window
from migratory_spark.gauges import by_broker
from migratory_spark.incidents import Found, episodes, find, silences
from migratory_spark.increases import timeline
from migratory_spark.notes import notes
from migratory_spark.observations import Observations, histograms_that_differ, observe
from migratory_spark.periods import iso, row_seconds, units
from migratory_spark.samples import identified, read_parquet
from migratory_spark.scopes import Scope, scope
from migratory_spark.slices import count_slices
from migratory_spark.verdicts import judge, overall

LOOKBACK_MS = 3_600_000
"""How long before a window the value of a counter may have been scraped last to count as its value at the start."""


@dataclass(slots=True, frozen=True)
class Incident:
    """Something that happened to the cluster, told by who made it happen, in seconds of wall-clock time. `until` is
    when it was over: the last client resumed, the last publisher was served again."""

    kind: str
    broker: str
    at: float
    until: float


@dataclass(slots=True, frozen=True)
class _Read:
    """The samples of a report, in Spark: their timeline, the catalogue and what it is made of, kept there until the
    report is made."""

    line: DataFrame
    table: DataFrame
    told: DataFrame
    facts: Facts
    kept: int
    """Samples left once each time of a series counts once."""
    restarts: int


def sla_report(
    session: SparkSession,
    samples: Path | DataFrame,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[Incident] = (),
    window_seconds: float | None = None,
    zone: str = "UTC",
    replica_labels: Sequence[str] = (),
) -> dict[str, Any]:
    """As `build_report`, as JSON reads it back: dicts, lists, and no NaN."""
    report = build_report(session, samples, start, end, objectives, incidents, window_seconds, zone, replica_labels)
    # By json rather than msgspec, which would write a NaN as null.
    plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(report), allow_nan=False))
    return plain


def build_report(
    session: SparkSession,
    samples: Path | DataFrame,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[Incident] = (),
    window_seconds: float | None = None,
    zone: str = "UTC",
    replica_labels: Sequence[str] = (),
) -> Report:
    """Reads samples (a folder of Parquet files, or a table with the columns of `samples.SCHEMA`), judges [start, end).

    `start` and `end` are wall-clock seconds, `window_seconds` the length of the tables' rows (chosen when None),
    `zone` the time zone of the calendar's hours and days, `replica_labels` those that tell servers apart which
    scrape the same targets. Samples are looked at from an hour before the earliest window on.

    Raises `samples.NoSamples` where nothing was recorded and ValueError, whose text says what to do, for a window that
    is empty, an unknown zone, objectives that contradict each other, too many rows, a table that holds no samples.
    """
    if end <= start:
        raise ValueError(f"the window ends at {end} before it starts at {start}")
    check(objectives)
    tz = periods.zone(zone)
    start_ms, end_ms = round(start * 1000), round(end * 1000)
    rows = sections.Rows(start_ms, end_ms, window_seconds or row_seconds(end - start))
    scopes = [scope(objective, start_ms, end_ms, rows.edges[1:], zone) for objective in objectives]
    first_ms = min([start_ms, *(each.start for each in scopes)])
    # Before Spark begins: too many rows are told at once.
    fixed = {first_ms, *rows.edges, *units(start_ms, end_ms, tz)[1], *(edge for each in scopes for edge in each.edges)}
    Cells.at(fixed)
    table = read_parquet(session, samples) if isinstance(samples, Path) else samples
    read = _read(table, first_ms, end_ms, replica_labels)
    try:
        here = exporters(read.line, read.table, start_ms, end_ms)
        whole = here if first_ms == start_ms else exporters(read.line, read.table, first_ms, end_ms)
        told = [
            Found(each.kind, each.broker, round(each.at * 1000), round(each.at * 1000), round(each.until * 1000))
            for each in incidents
        ]
        happened = [*episodes(read.line, read.table, start_ms, end_ms), *silences(here, start_ms, end_ms)]
        found = find(happened, told, read.facts.clients)
        cells = Cells.at({*fixed, *aftermath.edges(found, start_ms, end_ms)})
        seen = observe(read.line, read.table, cells, start_ms)
        readings = by_broker(read.line, read.table, names.CLIENTS, cells)
        results = [
            _judged(objective, each, read, seen, whole) for objective, each in zip(objectives, scopes, strict=True)
        ]
    finally:
        for kept in (read.line, read.table, read.told):
            kept.unpersist()
    stale_ms = max([ALLOWED_INTERVALS * broker.interval for broker in here.of("brokers")], default=0.0)
    coverage = _coverage(here, start_ms, end_ms)
    return Report(
        cluster=",".join(read.facts.clusters),
        window=Window(start=iso(start_ms), end=iso(end_ms), seconds=round(end - start, 3), zone=zone),
        coverage=coverage,
        samples=_samples(read, seen),
        notes=notes(coverage, _samples(read, seen), seen, rows.whole, read.facts),
        delivery=sections.delivery(seen, rows.whole),
        availability=sections.availability(seen, rows),
        latency_ms=sections.latency(seen, rows),
        estimated_latency_ms=sections.measured(
            seen, names.LATENCY, 1000.0, rows.whole, lambda group: group.clock == "estimated" and group.phase == "live"
        ),
        replay_latency_ms=sections.measured(seen, names.LATENCY, 1000.0, rows.whole, sections.replayed),
        resume_seconds=sections.measured(seen, names.RESUME, 1.0, rows.whole),
        publish_gap_seconds=sections.measured(seen, names.PUBLISH_GAP, 1.0, rows.whole),
        publish_ms=sections.measured(seen, names.PUBLISH, 1000.0, rows.whole),
        windows=sections.windows(seen, rows),
        calendar=sections.calendar(seen, rows, tz),
        connections=sections.connections(seen, readings, rows),
        incidents=aftermath.incidents(found, seen, readings, rows.whole, stale_ms),
        objectives=results,
        verdict=overall(result.verdict for result in results),
    )


def _read(samples: DataFrame, first_ms: int, end_ms: int, replica_labels: Sequence[str]) -> _Read:
    known = identified(samples, replica_labels).where(
        F.col("metric").isin(*names.all_metrics())
        & (F.col("timestamp") > first_ms - LOOKBACK_MS)
        & (F.col("timestamp") <= end_ms)
    )
    told = counted(known).persist()
    found = facts(told)
    table = catalogue(told, first_ms, found).persist()
    line = timeline(known, table, known if found.told else None, found.several)
    # Without a place in memory it goes to disk: the report must not depend on how much is scraped.
    line = line.persist(StorageLevel.MEMORY_AND_DISK)
    totals = line.agg(F.count("*"), F.coalesce(F.count_if("restart"), F.lit(0))).first()
    assert totals is not None  # an aggregate without grouping always answers
    return _Read(line, table, told, found, totals[0], totals[1])


def _judged(objective: Objective, within: Scope, read: _Read, seen: Observations, whole: Exporters) -> Result:
    role = ROLES[objective.type]
    covered = whole.covered(within.start, within.end, role)
    count: Count
    if objective.slices is not None:
        count = count_slices(read.line, read.table, objective, seen.bounds, Cells.at(within.edges))
    else:
        count = occurrences(objective, seen, covered.interval)
    burns = {length: whole.covered(within.end - length, within.end, role) for length in within.burns}
    return judge(objective, within, count, covered, burns)


def _coverage(here: Exporters, start: int, end: int) -> Coverage:
    covered = here.covered(start, end, "clients", "publishers")
    targets: dict[str, Target] = {}
    for one in here.of("clients", "publishers"):
        target = Target(
            name=one.name,
            first=iso(one.first),
            last=iso(one.last),
            scrapes=one.scrapes,
            interval_seconds=round(one.interval / 1000, 3),
            longest_gap_seconds=round(one.longest / 1000, 3),
            restarts=len(one.restarts),
            ended_early=end - one.last > one.allowed,
            uncertain_seconds=round(one.interval / 1000 * (len(one.restarts) + (end - one.last > one.allowed)), 3),
        )
        # One that is client and publisher is named once, by the role that was scraped more often.
        if one.name not in targets or targets[one.name].scrapes < one.scrapes:
            targets[one.name] = target
    return Coverage(
        share=round(covered.share, 4),
        scrape_interval_seconds=None if covered.interval is None else round(covered.interval / 1000, 3),
        longest_gap_seconds=round(covered.longest / 1000, 3),
        scrapes=covered.scrapes,
        targets=[targets[name] for name in sorted(targets)],
    )


def _samples(read: _Read, seen: Observations) -> Samples:
    return Samples(
        series=read.facts.series,
        samples=read.facts.samples,
        repeated=read.facts.samples - read.kept,
        stale=read.facts.stale,
        nan=read.facts.nan,
        restarts=read.restarts,
        older=seen.older,
        different_buckets=histograms_that_differ(seen),
    )
