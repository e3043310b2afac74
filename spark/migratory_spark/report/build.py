"""Builds the SLA report: deliveries, latency and incidents in a window of time, by broker, and the verdicts on
objectives.

`build_report` runs the whole pipeline; `as_plain` makes its result plain data, ready for JSON. `document.py` and
docs/reference/sla.md explain the parts of a report. Samples are read once. For each start of a window (of the report or
of an objective) they are passed over twice: for the exporters' timeline (`exporter_timeline.py`) and for the totals
(`totals.py`). Collected data is bounded by series, rows and buckets.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from migratory_resources.objectives import Objective, check_objectives
from pyspark.sql import DataFrame, SparkSession

from migratory_spark import metrics, times
from migratory_spark.aggregate.breakdown import Combination, plan_breakdown
from migratory_spark.aggregate.coverage import ALLOWED_INTERVALS, ScrapedExporters
from migratory_spark.aggregate.exporter_timeline import (
    TimelinePass,
    counted_steps,
    exporters_within,
)
from migratory_spark.aggregate.gauges import BrokerReadings, readings_by_broker
from migratory_spark.aggregate.incidents import DetectedIncident, broker_steps, find_incidents
from migratory_spark.aggregate.observations import (
    Observations,
    build_observations,
    histograms_with_different_buckets,
    plan_totals,
)
from migratory_spark.aggregate.series_catalog import SampleStatistics, SeriesCatalog, build_catalog, sample_statistics
from migratory_spark.aggregate.time_grid import TimeGrid, check_count
from migratory_spark.aggregate.totals import AggregatePass, combine_results
from migratory_spark.document import (
    BrokenDownObjective,
    ObjectiveResult,
    ReportTarget,
    ReportWindow,
    SampleCounts,
    SlaReport,
    WindowCoverage,
)
from migratory_spark.judge.event_counts import ROLES, EventCounter, event_counter
from migratory_spark.judge.objective_windows import JudgedWindow, judged_window
from migratory_spark.judge.time_slices import SliceCounts, count_slices, plan_slices, slice_edges
from migratory_spark.judge.verdicts import judge, overall_verdict
from migratory_spark.read.sample_reader import DEFAULT_LIMITS, ReadLimits, SampleReader
from migratory_spark.read.samples import SampleSource, parquet_source, table_source
from migratory_spark.read.series_pack import Ints, SampleQuery
from migratory_spark.read.series_store import SeriesStore
from migratory_spark.report import incident_impact, sections
from migratory_spark.report.notes import notes
from migratory_spark.times import calendar_units, iso, row_seconds

LOOKBACK_MS = 3_600_000
"""Milliseconds before a window's start: the last sample of a counter in this time is the counter's value at the
start."""


JudgedObjective = tuple[Objective, JudgedWindow]


@dataclass(slots=True, frozen=True)
class WindowPlan:
    """The moments and windows of a report, planned before samples are read; times in ms since 1970.

    `rows` are the rows of its tables. `judged` has each objective with its window, and `calendar` the starts of the
    calendar's hours or days. For each different start of a window there is a store of samples with totals of its own,
    so that an objective's counts are those of a report over its window alone.
    """

    start_ms: int
    end_ms: int
    rows: sections.ReportRows
    judged: tuple[JudgedObjective, ...]
    calendar: tuple[int, ...]

    @property
    def starts(self) -> list[int]:
        """The different starts of windows (ms since 1970): that of the report, and then the others in the order of
        time."""
        others = {window.start for _, window in self.judged} - {self.start_ms}
        return [self.start_ms, *sorted(others)]

    @property
    def first_ms(self) -> int:
        """The start of the earliest window, in ms since 1970."""
        return min(self.starts)

    def judged_since(self, start_ms: int) -> list[JudgedObjective]:
        """Return the objectives whose windows begin at `start_ms`, with their windows."""
        return [(objective, window) for objective, window in self.judged if window.start == start_ms]

    @property
    def slice_edges(self) -> Ints:
        """The moments (ms since 1970) between which events must be counted for objectives that count slices of time;
        none without such an objective."""
        edges = [slice_edges(objective, window.start, window.end)
                 for objective, window in self.judged if objective.slices is not None]  # fmt: skip
        return np.concatenate([np.zeros(0, dtype=np.int64), *edges])

    def edges(self, start_ms: int) -> set[int]:
        """Return the moments (ms since 1970) between which events must be counted in windows that begin at `start_ms`:
        those of objectives and, at the start of the report's window, of rows and calendar. Those of slices and
        incidents are not among them."""
        edges = {edge for _, window in self.judged_since(start_ms) for edge in window.edges}
        return edges | {*self.rows.edges, *self.calendar} if start_ms == self.start_ms else edges


def plan_report(
    start: float, end: float, objectives: Sequence[Objective], window_seconds: float | None, zone: str
) -> WindowPlan:
    """Return the plan of a report, from the arguments of `build_report` (`start` and `end` in seconds since 1970).

    Raises ValueError for a window shorter than 1 ms, objectives that contradict each other, an unknown time zone, and
    too many rows, days or slices. Their numbers are checked before rows, days and slices are computed.
    """
    start_ms, end_ms = round(start * 1000), round(end * 1000)
    if end_ms <= start_ms:
        raise ValueError(f"the window ends at {end}, which is not a millisecond after its start at {start}")
    check_objectives(objectives)
    tz = times.zone(zone)
    check_count((end_ms - start_ms) // (24 * times.HOUR_MS))
    rows = sections.ReportRows(start_ms, end_ms, window_seconds or row_seconds(end - start))
    windows = [judged_window(objective, start_ms, end_ms, rows.edges[1:], zone) for objective in objectives]
    calendar = calendar_units(start_ms, end_ms, tz)[1]
    plan = WindowPlan(start_ms, end_ms, rows, tuple(zip(objectives, windows, strict=True)), tuple(calendar))
    for begins in plan.starts:
        TimeGrid.from_moments(plan.edges(begins))
    for objective, window in plan.judged:
        if objective.slices is not None:
            slice_edges(objective, window.start, window.end)
    return plan


@dataclass(slots=True, frozen=True)
class KnownIncident:
    """An incident that the caller caused or knows of.

    `kind` is shown in the report as it is. `at` and `until` are seconds since 1970. `until` is the time at which the
    incident was over: the last client resumed, the last publisher was served again.
    """

    kind: str
    broker: str
    at: float
    until: float


def as_plain(report: SlaReport) -> dict[str, Any]:
    """Return a report as JSON would read it back: dicts, lists, text and numbers. Raises ValueError for a NaN or an
    infinite number."""
    # By json rather than msgspec, which would write a NaN as null.
    plain: dict[str, Any] = json.loads(json.dumps(msgspec.to_builtins(report), allow_nan=False))
    return plain


def build_report(
    session: SparkSession,
    samples: Path | DataFrame | SampleSource,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[KnownIncident] = (),
    window_seconds: float | None = None,
    zone: str = "UTC",
    replica_labels: Sequence[str] = (),
    cluster: str | None = None,
    by: Sequence[str] = (),
    limits: ReadLimits = DEFAULT_LIMITS,
) -> SlaReport:
    """Read samples, aggregate them, judge the objectives in the window (start, end], and return the report. The report
    is never marked provisional; `make_report` does that.

    Samples are read from an hour before the earliest window on, of the report or of an objective.

    :param samples: a folder of Parquet files, a table of one of the shapes in `samples.py`, or a source.
    :param start: start of the window in seconds since 1970; `end` likewise.
    :param incidents: incidents that the caller knows of.
    :param window_seconds: length of the tables' rows; None chooses one by which there are at most 240 rows.
    :param zone: time zone of the calendar's hours and days.
    :param replica_labels: labels by which only servers that scrape the same exporters differ.
    :param cluster: the only cluster whose series count; None for all.
    :param by: labels of the breakdown; none for a report without one.
    :param limits: how many samples are read in one step, and held by this process. The report does not depend on it.
    :raises NoSamples: a folder has no Parquet files. Files or a table without samples of the window are no error; then
        the verdict is insufficient.
    :raises ValueError: the window is empty, the zone unknown, objectives contradict each other, there are too many
        rows, slices, totals or combinations of the labels `by`, no series has one of these labels, or a table does not
        have the columns of samples. The message says what to do.
    :raises PySparkException, Py4JError: Spark failed, or could not read a file or a server.
    """
    plan = plan_report(start, end, objectives, window_seconds, zone)
    start_ms, end_ms, rows = plan.start_ms, plan.end_ms, plan.rows
    query = _sample_query(plan.first_ms, end_ms, replica_labels, cluster)
    reader = SampleReader(
        session, _sample_source(session, samples), query, [moment - LOOKBACK_MS for moment in plan.starts], limits
    )
    try:
        first_stores = reader.read_timeline()
        catalogs = [build_catalog(store.stats, begins) for store, begins in zip(first_stores, plan.starts, strict=True)]
        timelines = [
            store.run(TimelinePass.from_catalog(catalog, [(begins, end_ms)]), timeline_only=True)
            for store, catalog, begins in zip(first_stores, catalogs, plan.starts, strict=True)
        ]
        timeline, max_clients = timelines[0], sample_statistics(first_stores[0].stats).max_clients
        in_window = exporters_within(timeline, 0)
        known_incidents = [
            DetectedIncident(
                incident.kind, incident.broker, round(incident.at * 1000), round(incident.at * 1000),
                round(incident.until * 1000),
            )
            for incident in incidents
        ]  # fmt: skip
        steps = [*counted_steps(timeline, start_ms), *broker_steps(in_window, start_ms, end_ms)]
        first_client_at = min(
            (exporter.first for exporter in in_window.with_role("clients", "publishers")), default=None
        )
        detected = find_incidents(steps, known_incidents, max_clients, first_client_at)
        edges = {begins: plan.edges(begins) for begins in plan.starts}
        edges[start_ms] |= set(incident_impact.edges(detected, start_ms, end_ms))
        stores = reader.read_all(np.append(plan.slice_edges, [edge for each in edges.values() for edge in each]))
        if stores is not first_stores:
            catalogs = [build_catalog(store.stats, begins) for store, begins in zip(stores, plan.starts, strict=True)]
        results: dict[str, ObjectiveResult] = {}
        broken_down: dict[Combination, list[BrokenDownObjective]] = {}
        all_aggregates = []
        for begins, store, catalog, of_window in zip(plan.starts, stores, catalogs, timelines, strict=True):
            judged, exporters = plan.judged_since(begins), exporters_within(of_window, 0)
            aggregates = _aggregate(store, catalog, edges[begins], judged, by)
            all_aggregates.append(aggregates)
            results |= _judge_all(judged, aggregates, exporters)
            for combination, of_part in _judge_parts(judged, aggregates, exporters).items():
                broken_down.setdefault(combination, []).extend(of_part)
        statistics = sample_statistics(stores[0].stats)
    finally:
        reader.close()
    catalog, aggregates = catalogs[0], all_aggregates[0]
    observations, readings = aggregates.observations, aggregates.readings
    reading_validity_ms = max(
        [ALLOWED_INTERVALS * broker.interval for broker in in_window.with_role("brokers")], default=0.0
    )
    coverage = _coverage(in_window, start_ms, end_ms)
    counts = _sample_counts(statistics, observations, aggregates.restarts)
    in_order = [results[objective.name] for objective in objectives]
    return SlaReport(
        # A report of one cluster names it, even if nothing is known of it.
        cluster=",".join(statistics.clusters) if cluster is None else cluster,
        window=ReportWindow(start=iso(start_ms), end=iso(end_ms), seconds=round(end - start, 3), zone=zone),
        coverage=coverage,
        samples=counts,
        notes=notes(
            coverage, counts, observations, rows.whole, statistics, catalog.exporters_of_unknown_start(start_ms)
        ),
        delivery=sections.delivery(observations, rows.whole),
        availability=sections.availability(
            observations, rows, *incident_impact.background_failures(detected, observations, rows.whole)
        ),
        latency_ms=sections.latency(observations, rows),
        estimated_latency_ms=sections.measured(
            observations, metrics.LATENCY, sections.MILLISECONDS, rows.whole, sections.estimated
        ),
        replay_latency_ms=sections.measured(
            observations, metrics.LATENCY, sections.MILLISECONDS, rows.whole, sections.replayed
        ),
        resume_seconds=sections.measured(observations, metrics.RESUME, 1.0, rows.whole),
        publish_gap_seconds=sections.measured(observations, metrics.PUBLISH_GAP, 1.0, rows.whole),
        publish_ms=sections.measured(observations, metrics.PUBLISH, sections.MILLISECONDS, rows.whole),
        windows=sections.windows(observations, rows),
        calendar=sections.calendar(observations, rows, times.zone(zone)),
        connections=sections.connections(observations, readings, rows),
        incidents=incident_impact.incidents(detected, observations, readings, rows.whole, reading_validity_ms),
        objectives=in_order,
        verdict=overall_verdict(result.verdict for result in in_order),
        breakdown=sections.breakdown(by, aggregates.parts, broken_down, rows.whole) if by else None,
    )


def _sample_source(session: SparkSession, samples: Path | DataFrame | SampleSource) -> SampleSource:
    """Return the source for the argument `samples` of `build_report`. Raises NoSamples and BadSamples."""
    if isinstance(samples, Path):
        return parquet_source(session, samples)
    return samples if isinstance(samples, SampleSource) else table_source(samples)


def _sample_query(first_ms: int, end_ms: int, replica_labels: Sequence[str], cluster: str | None) -> SampleQuery:
    """Return the selection of all samples that a report reads: from LOOKBACK_MS before its earliest window on, which
    begins at `first_ms`."""
    names = frozenset(metrics.all_metrics())
    return SampleQuery(names, first_ms - LOOKBACK_MS, end_ms, tuple(replica_labels), cluster)


@dataclass(slots=True, frozen=True)
class _Aggregates:
    """The sums of one store: totals by interval, readings of gauges, the counts of slices by the name of each objective
    that counts slices, the number of restarts of counters, and the totals in the whole window for each combination of
    the breakdown's labels."""

    observations: Observations
    readings: BrokerReadings
    slices: dict[str, SliceCounts]
    restarts: int
    parts: dict[Combination, Observations]


def _aggregate(
    store: SeriesStore,
    catalog: SeriesCatalog,
    edges: Iterable[int],
    judged: Sequence[JudgedObjective],
    by: Sequence[str],
) -> _Aggregates:
    """Run the pass over all samples of a store that adds up totals, and return its sums. Raises TooManyTotals,
    TooManyIntervals and BadBreakdown.

    :param edges: the moments (ms since 1970) between which increases are added up.
    :param judged: the objectives whose windows begin with the store's.
    :param by: the labels of the breakdown; none for no breakdown.
    """
    grid = TimeGrid.from_moments(edges)
    plan, group_rows = plan_totals(catalog, grid)
    slice_plans = [
        (objective, window, plan_slices(catalog, objective, window.start, window.end))
        for objective, window in judged
        if objective.slices is not None
    ]
    breakdown = plan_breakdown(catalog, TimeGrid.from_moments((grid.edges[0], grid.edges[-1])), by) if by else None
    plans = [plan, *(each for _, _, slice_plan in slice_plans for each in slice_plan.plans)]
    if breakdown is not None:
        plans.append(breakdown.plan)
    broker_of = [
        entry.stats.labels.get("broker", "") if entry.stats.metric == metrics.CLIENTS else None
        for entry in catalog.entries
    ]
    brokers = sorted({broker for broker in broker_of if broker is not None})
    gauge = np.array([-1 if broker is None else brokers.index(broker) for broker in broker_of], dtype=np.int64)
    result = combine_results(store.run(AggregatePass(catalog.index, tuple(plans), gauge)))
    totals = iter(result.totals)
    observations = build_observations(catalog, grid, group_rows, next(totals))
    slices = {
        objective.name: count_slices(
            objective, TimeGrid.from_moments(window.edges), list(islice(totals, 3)), slice_plan
        )
        for objective, window, slice_plan in slice_plans
    }  # fmt: skip
    parts = {} if breakdown is None else breakdown.observations(next(totals))
    return _Aggregates(observations, readings_by_broker(brokers, result.readings), slices, result.restarts, parts)


def _judge_parts(
    judged: Sequence[JudgedObjective], aggregates: _Aggregates, exporters: ScrapedExporters
) -> dict[Combination, list[BrokenDownObjective]]:
    """Return, by combination of the breakdown's labels, the results of the objectives that count events. Each is judged
    by the scrape coverage of all exporters."""
    by_combination: dict[Combination, list[BrokenDownObjective]] = {}
    for combination, observations in aggregates.parts.items():
        results = by_combination.setdefault(combination, [])
        for objective, window in judged:
            if objective.slices is None:
                coverage = exporters.coverage(window.start, window.end, ROLES[objective.type])
                counter = event_counter(objective, observations, coverage.interval)
                result = judge(objective, replace(window, points=(), burns=()), counter, coverage, {})
                names = msgspec.structs.fields(BrokenDownObjective)
                results.append(BrokenDownObjective(**{each.name: getattr(result, each.name) for each in names}))
    return by_combination


def _judge_all(
    judged: Sequence[JudgedObjective], aggregates: _Aggregates, exporters: ScrapedExporters
) -> dict[str, ObjectiveResult]:
    """Return the results of the objectives `judged`, whose windows begin at the same time, by the objective's name."""
    results = {}
    for objective, window in judged:
        role = ROLES[objective.type]
        coverage = exporters.coverage(window.start, window.end, role)
        counter: EventCounter = aggregates.slices.get(objective.name) or event_counter(
            objective, aggregates.observations, coverage.interval
        )
        burn_coverage = {length: exporters.coverage(window.end - length, window.end, role) for length in window.burns}
        results[objective.name] = judge(objective, window, counter, coverage, burn_coverage)
    return results


def _coverage(exporters: ScrapedExporters, start: int, end: int) -> WindowCoverage:
    """Return the scrape coverage of the window from `start` to `end` (ms since 1970) by the exporters of clients and
    publishers, with an entry for each exporter."""
    coverage = exporters.coverage(start, end, "clients", "publishers")
    targets: dict[str, ReportTarget] = {}
    for exporter in exporters.with_role("clients", "publishers"):
        ended_early = end - exporter.last > exporter.allowed_gap
        unscraped_seconds = (exporter.interval or end - exporter.last) / 1000
        target = ReportTarget(
            name=exporter.name,
            first=iso(exporter.first),
            last=iso(exporter.last),
            scrapes=exporter.scrapes,
            interval_seconds=round(exporter.interval / 1000, 3),
            longest_gap_seconds=round(exporter.longest / 1000, 3),
            restarts=len(exporter.restarts),
            ended_early=ended_early,
            uncertain_seconds=round(unscraped_seconds * (len(exporter.restarts) + ended_early), 3),
        )
        # A target that is client and publisher is listed once, by the role that was scraped more often.
        if exporter.name not in targets or targets[exporter.name].scrapes < exporter.scrapes:
            targets[exporter.name] = target
    return WindowCoverage(
        share=round(coverage.share, 4),
        scrape_interval_seconds=None if coverage.interval is None else round(coverage.interval / 1000, 3),
        longest_gap_seconds=round(coverage.longest / 1000, 3),
        scrapes=coverage.scrapes,
        targets=[targets[name] for name in sorted(targets)],
    )


def _sample_counts(statistics: SampleStatistics, observations: Observations, restarts: int) -> SampleCounts:
    """Return the report's numbers of samples and series."""
    return SampleCounts(
        series=statistics.series,
        samples=statistics.samples,
        repeated=statistics.samples - statistics.unique,
        stale=statistics.stale,
        nan=statistics.nan,
        restarts=restarts,
        older=observations.older,
        different_buckets=histograms_with_different_buckets(observations),
    )
