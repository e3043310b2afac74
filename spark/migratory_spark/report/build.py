"""The SLA report: what happened in a window of time, per broker, around each incident, and whether it was as promised.

`build_report` is the whole job; `sla_report` is the same as plain data, ready for JSON. What the parts mean is in
`document.py` and docs/reference/sla.md. Samples are read once and gone through twice: for the exporters' timeline
(`exporter_timeline.py`) and for the totals (`totals.py`). Collected data is bounded by series, rows and buckets.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from migratory_resources.objectives import Objective, check_objectives
from pyspark.sql import DataFrame, SparkSession

from migratory_spark import metrics, times
from migratory_spark.aggregate import exporter_timeline, observations, totals
from migratory_spark.aggregate.coverage import ALLOWED_INTERVALS, Exporters
from migratory_spark.aggregate.gauges import Reading, by_broker
from migratory_spark.aggregate.incidents import Found, find, silences
from migratory_spark.aggregate.observations import Observations, histograms_that_differ
from migratory_spark.aggregate.series_catalog import Catalogue, Facts, catalogue, facts
from migratory_spark.aggregate.time_grid import Cells
from migratory_spark.document import Coverage, Report, Result, Samples, Target, Window
from migratory_spark.judge import time_slices
from migratory_spark.judge.event_counts import ROLES, Count, occurrences
from migratory_spark.judge.objective_windows import Scope, scope
from migratory_spark.judge.time_slices import SliceCounts
from migratory_spark.judge.verdicts import judge, overall
from migratory_spark.read.samples import Source, files, table
from migratory_spark.read.series_pack import Wanted
from migratory_spark.read.series_store import FEW, Kept, keep
from migratory_spark.report import incident_impact, sections
from migratory_spark.report.notes import notes
from migratory_spark.times import iso, row_seconds, units

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


def sla_report(
    session: SparkSession,
    samples: Path | DataFrame | Source,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[Incident] = (),
    window_seconds: float | None = None,
    zone: str = "UTC",
    replica_labels: Sequence[str] = (),
    cluster: str | None = None,
    few: int = FEW,
) -> dict[str, Any]:
    """As `build_report`, as JSON reads it back: dicts, lists, and no NaN."""
    report = build_report(
        session, samples, start, end, objectives, incidents, window_seconds, zone, replica_labels, cluster, few
    )
    return as_plain(report)


def as_plain(report: Report) -> dict[str, Any]:
    """Raises ValueError for a NaN."""
    # By json rather than msgspec, which would write a NaN as null.
    plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(report), allow_nan=False))
    return plain


def build_report(
    session: SparkSession,
    samples: Path | DataFrame | Source,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[Incident] = (),
    window_seconds: float | None = None,
    zone: str = "UTC",
    replica_labels: Sequence[str] = (),
    cluster: str | None = None,
    few: int = FEW,
) -> Report:
    """Reads samples (a folder of Parquet files, or a table of one of the shapes in `samples.py`), judges [start, end).

    `start` and `end` are wall-clock seconds, `window_seconds` the length of the tables' rows (chosen when None),
    `zone` the time zone of the calendar's hours and days, `replica_labels` those that tell servers apart which
    scrape the same targets, `cluster` the only one whose series count. Up to `few` samples are added up in this
    process. Samples are looked at from an hour before the earliest window on.

    Raises `samples.NoSamples` where nothing was recorded and ValueError, whose text says what to do, for a window that
    is empty, an unknown zone, objectives that contradict each other, too many rows, a table that holds no samples.
    """
    start_ms, end_ms = round(start * 1000), round(end * 1000)
    if end_ms <= start_ms:
        raise ValueError(f"the window ends at {end}, which is not a millisecond after its start at {start}")
    check_objectives(objectives)
    tz = times.zone(zone)
    rows = sections.Rows(start_ms, end_ms, window_seconds or row_seconds(end - start))
    scopes = [scope(objective, start_ms, end_ms, rows.edges[1:], zone) for objective in objectives]
    first_ms = min([start_ms, *(each.start for each in scopes)])
    # Before Spark begins: too many rows or slices are told at once.
    fixed = {first_ms, *rows.edges, *units(start_ms, end_ms, tz)[1], *(edge for each in scopes for edge in each.edges)}
    Cells.at(fixed)
    for objective, each in zip(objectives, scopes, strict=True):
        if objective.slices is not None:
            time_slices.edges(objective, each.start, each.end)
    kept = keep(session, _source(session, samples), _wanted(first_ms, end_ms, replica_labels, cluster), few)
    try:
        known = catalogue(kept.about, first_ms)
        watched = kept.each(exporter_timeline.Watch.of(known, [(start_ms, end_ms), (first_ms, end_ms)]), watched=True)
        here, whole = exporter_timeline.exporters(watched, 0), exporter_timeline.exporters(watched, 1)
        told = [
            Found(each.kind, each.broker, round(each.at * 1000), round(each.at * 1000), round(each.until * 1000))
            for each in incidents
        ]
        happened = [*exporter_timeline.happened(watched, start_ms), *silences(here, start_ms, end_ms)]
        there = facts(kept.about)
        served = min((one.first for one in here.of("clients", "publishers")), default=None)
        found = find(happened, told, there.clients, served)
        cells = Cells.at({*fixed, *incident_impact.edges(found, start_ms, end_ms)})
        seen, readings, counted, restarts = _added(kept, known, cells, objectives, scopes)
    finally:
        kept.close()
    results = [
        _judged(objective, each, slice_counts, seen, whole)
        for objective, each, slice_counts in zip(objectives, scopes, counted, strict=True)
    ]
    stale_ms = max([ALLOWED_INTERVALS * broker.interval for broker in here.of("brokers")], default=0.0)
    coverage = _coverage(here, start_ms, end_ms)
    counts = _samples(there, seen, restarts)
    return Report(
        # Asked for one of which nothing is known, the answer is about that one all the same.
        cluster=",".join(there.clusters) if cluster is None else cluster,
        window=Window(start=iso(start_ms), end=iso(end_ms), seconds=round(end - start, 3), zone=zone),
        coverage=coverage,
        samples=counts,
        notes=notes(coverage, counts, seen, rows.whole, there, known.undated(start_ms)),
        delivery=sections.delivery(seen, rows.whole),
        availability=sections.availability(seen, rows),
        latency_ms=sections.latency(seen, rows),
        estimated_latency_ms=sections.measured(
            seen,
            metrics.LATENCY,
            1000.0,
            rows.whole,
            lambda group: group.clock == "estimated" and group.phase == "live",
        ),
        replay_latency_ms=sections.measured(seen, metrics.LATENCY, 1000.0, rows.whole, sections.replayed),
        resume_seconds=sections.measured(seen, metrics.RESUME, 1.0, rows.whole),
        publish_gap_seconds=sections.measured(seen, metrics.PUBLISH_GAP, 1.0, rows.whole),
        publish_ms=sections.measured(seen, metrics.PUBLISH, 1000.0, rows.whole),
        windows=sections.windows(seen, rows),
        calendar=sections.calendar(seen, rows, tz),
        connections=sections.connections(seen, readings, rows),
        incidents=incident_impact.incidents(found, seen, readings, rows.whole, stale_ms),
        objectives=results,
        verdict=overall(result.verdict for result in results),
    )


def _source(session: SparkSession, samples: Path | DataFrame | Source) -> Source:
    if isinstance(samples, Path):
        return files(session, samples)
    return samples if isinstance(samples, Source) else table(samples)


def _wanted(first_ms: int, end_ms: int, replica_labels: Sequence[str], cluster: str | None) -> Wanted:
    return Wanted(frozenset(metrics.all_metrics()), first_ms - LOOKBACK_MS, end_ms, tuple(replica_labels), cluster)


def _added(
    kept: Kept, known: Catalogue, cells: Cells, objectives: Sequence[Objective], scopes: Sequence[Scope]
) -> tuple[Observations, dict[str, dict[int, Reading]], list[SliceCounts | None], int]:
    """All sums: by cells, of gauges, by the slices of objectives that have such, and how many restarts there were."""
    tally, lines = observations.to_add(known, cells)
    sliced = [
        None if objective.slices is None else time_slices.to_add(known, objective, each.start, each.end)
        for objective, each in zip(objectives, scopes, strict=True)
    ]
    tallies = [tally, *(one for asked in sliced if asked is not None for one in asked.tallies)]
    clients = [
        entry.about.labels.get("broker", "") if entry.about.metric == metrics.CLIENTS else None
        for entry in known.entries
    ]
    brokers = sorted({broker for broker in clients if broker is not None})
    gauge = np.array([-1 if broker is None else brokers.index(broker) for broker in clients], dtype=np.int64)
    added = totals.together(kept.each(totals.Add(known.guide, tuple(tallies), gauge)))
    sums = iter(added.sums)
    seen = observations.observed(known, cells, lines, next(sums))
    counted = [
        None if asked is None else time_slices.counted(objective, Cells.at(each.edges), list(islice(sums, 3)), asked)
        for objective, each, asked in zip(objectives, scopes, sliced, strict=True)
    ]
    return seen, by_broker(brokers, added.readings), counted, added.restarts


def _judged(
    objective: Objective, within: Scope, sliced: SliceCounts | None, seen: Observations, whole: Exporters
) -> Result:
    role = ROLES[objective.type]
    covered = whole.covered(within.start, within.end, role)
    count: Count = occurrences(objective, seen, covered.interval) if sliced is None else sliced
    burns = {length: whole.covered(within.end - length, within.end, role) for length in within.burns}
    return judge(objective, within, count, covered, burns)


def _coverage(here: Exporters, start: int, end: int) -> Coverage:
    covered = here.covered(start, end, "clients", "publishers")
    targets: dict[str, Target] = {}
    for one in here.of("clients", "publishers"):
        ended = end - one.last > one.allowed
        target = Target(
            name=one.name,
            first=iso(one.first),
            last=iso(one.last),
            scrapes=one.scrapes,
            interval_seconds=round(one.interval / 1000, 3),
            longest_gap_seconds=round(one.longest / 1000, 3),
            restarts=len(one.restarts),
            ended_early=ended,
            uncertain_seconds=round((one.interval or end - one.last) / 1000 * (len(one.restarts) + ended), 3),
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


def _samples(there: Facts, seen: Observations, restarts: int) -> Samples:
    return Samples(
        series=there.series,
        samples=there.samples,
        repeated=there.samples - there.kept,
        stale=there.stale,
        nan=there.nan,
        restarts=restarts,
        older=seen.older,
        different_buckets=histograms_that_differ(seen),
    )
