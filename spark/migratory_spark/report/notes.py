"""Writes the notes of a report: the uncertainties of its figures, one sentence each."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from migratory_spark import metrics
from migratory_spark.aggregate.observations import Observations
from migratory_spark.aggregate.series_catalog import SampleStatistics
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.document import SampleCounts, WindowCoverage
from migratory_spark.times import iso

_MAX_NAMED = 5
"""Exporters that are named, the first ones; the others are counted."""


def notes(
    coverage: WindowCoverage,
    samples: SampleCounts,
    observations: Observations,
    interval: Interval,
    statistics: SampleStatistics,
    unknown_starts: Sequence[tuple[str, int]],
) -> list[str]:
    """Return the notes of a report; none if nothing is uncertain.

    :param interval: the report's window, in ms since 1970.
    :param unknown_starts: name and first scrape (ms since 1970) of exporters that may have counted before the window.
    """
    return [
        *_targets(coverage),
        *_unknown_starts(unknown_starts),
        *_samples(samples, statistics),
        *_histograms(samples, observations, interval),
        *_resumes(observations, interval),
    ]


def _unknown_starts(unknown_starts: Sequence[tuple[str, int]]) -> Iterator[str]:
    """Yield a note for each of the first exporters without a start time, and one with the number of the others."""
    for name, first in unknown_starts[:_MAX_NAMED]:
        yield (
            f"{name or 'an exporter without a name'} was scraped first at {iso(first)} and exports no start time: "
            "everything that it had counted by then is included"
        )
    if len(unknown_starts) > _MAX_NAMED:
        yield f"{len(unknown_starts) - _MAX_NAMED} more exporters export no start time"


def _targets(coverage: WindowCoverage) -> Iterator[str]:
    """Yield notes on exporters that ended before the window did (the first ones, and the number of the others), and on
    each that restarted."""
    ended = [target for target in coverage.targets if target.ended_early]
    for target in ended[:_MAX_NAMED]:
        if not target.interval_seconds:
            yield (
                f"{target.name or 'an exporter without a name'} was scraped once, at {target.last}: its counts "
                "after that are unknown"
            )
            continue
        yield (
            f"{target.name or 'an exporter without a name'} was scraped last at {target.last}: its counts in up "
            f"to {target.interval_seconds:g} s after that are unknown"
        )
    if len(ended) > _MAX_NAMED:
        yield f"{len(ended) - _MAX_NAMED} more exporters ended before the window did"
    for target in coverage.targets:
        if target.restarts:
            yield (
                f"{target.name or 'an exporter without a name'} restarted {_times(target.restarts)}: its counts "
                f"between its last scrape and the restart, up to {target.interval_seconds:g} s each time, are unknown"
            )


def _samples(samples: SampleCounts, statistics: SampleStatistics) -> Iterator[str]:
    """Yield notes on several clusters, several servers, values that are no samples, exporters that are counted several
    times, and counters that are older than the window."""
    if len(statistics.clusters) > 1:
        yield f"samples of {len(statistics.clusters)} clusters are added up together; --cluster names one"
    if statistics.several_servers:
        yield (
            f"several servers export the same series: one is used at a time, {samples.repeated} samples of others "
            "are left out"
        )
    if samples.nan:
        yield f"{samples.nan} samples are not a number, or negative ones of a counter, and are left out"
    if statistics.differing_labels:
        yield (
            f"series of one exporter differ by {', '.join(statistics.differing_labels)} alone: several servers scrape "
            "it, and its counts are included several times; name the servers' label with --replica-label"
        )
    if samples.older:
        yield (
            f"{samples.older} series are older than the window and were not scraped before it: their counts up to "
            "the first scrape are left out"
        )


def _histograms(samples: SampleCounts, observations: Observations, interval: Interval) -> Iterator[str]:
    """Yield notes on histograms with different buckets, and on observations in no bucket or above the highest bound."""
    for histogram in metrics.HISTOGRAMS:
        distribution = observations.distribution(histogram, interval=interval)
        if outside := observations.outside_buckets(histogram, interval=interval):
            yield f"{outside} values of {histogram} are in no bucket: quantiles, mean and deviation leave them out"
        shared = len(distribution.common.bounds)
        if not distribution.count or histogram not in samples.different_buckets:
            continue
        how = f"merged on the {shared} bounds that all of them have" if shared else "no bound is common to all of them"
        yield f"exporters of {histogram} have different buckets: {how}"
    for histogram in metrics.HISTOGRAMS:
        common = observations.distribution(histogram, interval=interval).common
        if not common.bounds:
            continue
        above = round(common.count - float(common.cumulative[-1]))
        if above:
            yield f"{above} values of {histogram} are above its highest bound, {common.bounds[-1]:g} s"


def _resumes(observations: Observations, interval: Interval) -> Iterator[str]:
    """Yield a note if fewer resumes were measured than links were lost."""
    losses, resumed = (
        observations.count(metrics.RECONNECTS, interval=interval),
        observations.count(f"{metrics.RESUME}_count", interval=interval),
    )
    if resumed < losses and observations.was_scraped(metrics.RESUME):
        unmeasured = "the other clients had not resumed yet, or lost the next link before they had"
        yield f"{losses} links were lost and {resumed} resumes measured: {unmeasured}"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
