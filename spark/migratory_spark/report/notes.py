"""What a reader of a report's figures should know, one sentence each: what is uncertain, and by how much."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from migratory_spark import metrics
from migratory_spark.aggregate.observations import Observations
from migratory_spark.aggregate.series_catalog import Facts
from migratory_spark.aggregate.time_grid import Interval
from migratory_spark.document import Coverage, Samples
from migratory_spark.times import iso

_MOST_NAMED = 5


def notes(
    coverage: Coverage,
    samples: Samples,
    seen: Observations,
    span: Interval,
    known: Facts,
    undated: Sequence[tuple[str, int]],
) -> list[str]:
    """`undated`: exporters of which nobody knows since when they had counted at their first scrape."""
    return [
        *_targets(coverage),
        *_undated(undated),
        *_samples(samples, known),
        *_histograms(samples, seen, span),
        *_resumes(seen, span),
    ]


def _undated(undated: Sequence[tuple[str, int]]) -> Iterator[str]:
    for name, first in undated[:_MOST_NAMED]:
        yield (
            f"{name or 'an exporter without a name'} was scraped first at {iso(first)}, and nothing tells when it "
            "began: all that it had counted by then is in the sums"
        )
    if len(undated) > _MOST_NAMED:
        yield f"of {len(undated) - _MOST_NAMED} more exporters nothing tells when they began"


def _targets(coverage: Coverage) -> Iterator[str]:
    ended = [target for target in coverage.targets if target.ended_early]
    for target in ended[:_MOST_NAMED]:
        if not target.interval_seconds:
            yield (
                f"{target.name or 'an exporter without a name'} was scraped once, at {target.last}: what it counted "
                "after that is not known"
            )
            continue
        yield (
            f"{target.name or 'an exporter without a name'} was scraped last at {target.last}: what it counted in "
            f"up to {target.interval_seconds:g} s after that is not known"
        )
    if len(ended) > _MOST_NAMED:
        yield f"{len(ended) - _MOST_NAMED} more exporters ended before the window did"
    for target in coverage.targets:
        if target.restarts:
            yield (
                f"{target.name or 'an exporter without a name'} restarted {_times(target.restarts)}: what it counted "
                f"between its last scrape and the restart, up to {target.interval_seconds:g} s each time, is not known"
            )


def _samples(samples: Samples, known: Facts) -> Iterator[str]:
    if len(known.clusters) > 1:
        yield f"samples of {len(known.clusters)} clusters are added up together; --cluster names one"
    if known.several:
        yield (
            f"several servers told of the same series: one is believed at a time, {samples.repeated} samples of others "
            "are left out"
        )
    if samples.nan:
        yield f"{samples.nan} samples are not a number, or negative ones of a counter, and are left out"
    if known.apart:
        yield (
            f"series of one exporter differ by {', '.join(known.apart)} alone, as where several servers scrape it: "
            "what it counted is in the sums as often; --replica-label names what tells servers apart"
        )
    if samples.older:
        yield (
            f"{samples.older} series are older than the window and were not scraped before it: what they counted up to "
            "their first scrape is left out"
        )


def _histograms(samples: Samples, seen: Observations, span: Interval) -> Iterator[str]:
    for histogram in metrics.HISTOGRAMS:
        distribution = seen.distribution(histogram, span=span)
        if (lost := seen.count(f"{histogram}_count", span=span) - round(distribution.count)) > 0:
            yield f"{lost} values of {histogram} are in no bucket: quantiles leave them out"
        shared = len(distribution.common.bounds)
        if not distribution.count or histogram not in samples.different_buckets:
            continue
        how = f"merged on the {shared} bounds that all of them have" if shared else "no bound is common to all of them"
        yield f"exporters of {histogram} have different buckets: {how}"
    for histogram in metrics.HISTOGRAMS:
        common = seen.distribution(histogram, span=span).common
        if not common.bounds:
            continue
        above = round(common.count - float(common.cumulative[-1]))
        if above:
            yield f"{above} values of {histogram} are above its highest bound, {common.bounds[-1]:g} s"


def _resumes(seen: Observations, span: Interval) -> Iterator[str]:
    lost, resumed = seen.count(metrics.RECONNECTS, span=span), seen.count(f"{metrics.RESUME}_count", span=span)
    if resumed < lost and seen.has(metrics.RESUME):
        yield f"{lost} links were lost and {resumed} resumes measured: the others had nothing to resume, or had not yet"


def _times(count: int) -> str:
    return "once" if count == 1 else f"{count} times"
