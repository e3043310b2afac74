"""Observations: totals by group of series and interval in numpy arrays, and queries on them. Judging and the report
read these.

From here on sizes depend on brokers, intervals and buckets, not on traffic or on the length of the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import numpy.typing as npt

from migratory_spark.aggregate.distributions import BucketCounts, Distribution
from migratory_spark.aggregate.series_catalog import NO_LAYOUT, SeriesCatalog, SeriesGroup
from migratory_spark.aggregate.time_grid import Interval, TimeGrid
from migratory_spark.aggregate.totals import Totals, TotalsPlan
from migratory_spark.metrics import HISTOGRAMS, SQUARES

GroupFilter = Callable[[SeriesGroup], bool]


def any_group(_: SeriesGroup) -> bool:
    """Return True: the filter that selects every group of series."""
    return True


@dataclass(slots=True)
class Observations:
    """All totals of a report, or of one combination of labels in a breakdown: how much the counters of each group of
    series rose in each interval of `grid`.

    `totals` has an array for each group, with a value by interval. For a group of histogram buckets it is a table with
    a row by interval and a column by bound (`bounds`, by the group's layout). `older` is the number of series whose
    first value is left out. `scraped` has the times from the first to the last sample, by metric.
    """

    grid: TimeGrid
    bounds: dict[int, tuple[float, ...]]
    """Sorted bounds by layout. The last one is infinite, unless an exporter left it out."""
    totals: dict[SeriesGroup, npt.NDArray[np.float64]]
    older: int = 0
    """Series whose first value is left out, because they are older than the window."""
    scraped: Mapping[str, Sequence[Interval]] = field(default_factory=dict)
    """By metric, the disjoint, sorted intervals between the first and the last sample of its series."""
    _by_metric: dict[str, list[SeriesGroup]] = field(init=False)

    def __post_init__(self) -> None:
        self._by_metric = {}
        for group in self.totals:
            self._by_metric.setdefault(group.metric, []).append(group)

    def groups(self, metric: str, where: GroupFilter = any_group) -> list[SeriesGroup]:
        """Return the groups of a metric that the filter selects; none if the metric was not scraped. Buckets of a
        histogram are a metric of their own (`…_bucket`)."""
        return [group for group in self._by_metric.get(metric, ()) if where(group)]

    def was_scraped(self, metric: str, interval: Interval | None = None) -> bool:
        """Return whether a series of the counter or histogram `metric` was scraped in the interval: the time from its
        first to its last sample overlaps the interval. Its value may have stayed at zero. Without an interval, return
        whether the metric has totals at all."""
        names = [name for name in (metric, f"{metric}_count") if name in self._by_metric]
        if interval is None:
            return bool(names)
        # Observations that tests build by hand have no times of scrapes: they count as scraped.
        return any(
            name not in self.scraped
            or any(first <= interval[1] and last > interval[0] for first, last in self.scraped[name])
            for name in names
        )

    def scraped_share(self, metric: str, interval: Interval, validity_ms: float) -> float:
        """Return the share (0 to 1) of the interval that lies between the first and the last sample of a series of the
        counter `metric`, extended by `validity_ms` on both sides. Return 0 if no series was scraped in the interval,
        else 1 for an empty interval."""
        if not self.was_scraped(metric, interval):
            return 0.0
        after, covered = float(interval[0]), 0.0
        for first, last in self.scraped.get(metric, [interval]):
            begin, end = max(first - validity_ms, after), min(last + validity_ms, interval[1])
            covered, after = covered + max(0.0, end - begin), max(after, end)
        return covered / (interval[1] - interval[0]) if interval[1] > interval[0] else 1.0

    def total(self, metric: str, where: GroupFilter = any_group, interval: Interval | None = None) -> float:
        """Return how much the metric rose in the interval, or without one in all of the time: the sum over the groups
        that the filter selects. It is 0 without a group. Raises ValueError unless the interval's ends are edges of the
        grid."""
        columns = self._columns(interval)
        return math.fsum(float(self.totals[group][columns].sum()) for group in self.groups(metric, where))

    def count(self, metric: str, where: GroupFilter = any_group, interval: Interval | None = None) -> int:
        """Return `total`, rounded to a whole number, for metrics that count whole numbers. Raises ValueError unless the
        interval's ends are edges of the grid."""
        return round(self.total(metric, where, interval))

    def distribution(
        self, histogram: str, where: GroupFilter = any_group, interval: Interval | None = None
    ) -> Distribution:
        """Return the distribution of a histogram's observations in the interval, or without one in all of the time.
        Raises ValueError unless the interval's ends are edges of the grid.

        :param histogram: the metric's name without `_bucket`.
        :param where: selects groups. Exporters whose buckets have no layout are left out, also of the sum and the sum
            of squares. `outside_buckets` is the number of their observations.
        """
        columns = self._columns(interval)
        by_layout: dict[int, npt.NDArray[np.float64]] = {}
        for group in self.groups(f"{histogram}_bucket", where):
            if group.layout != NO_LAYOUT:
                counts = self.totals[group][columns].sum(axis=0)
                by_layout[group.layout] = by_layout[group.layout] + counts if group.layout in by_layout else counts
        return Distribution(
            tuple(BucketCounts.from_increases(self.bounds[layout], counts)
                  for layout, counts in sorted(by_layout.items())),
            self._sum_in_buckets(histogram, f"{histogram}_sum", where, interval),
            self._sum_in_buckets(histogram, SQUARES[histogram], where, interval) if histogram in SQUARES else None,
        )  # fmt: skip

    def outside_buckets(self, histogram: str, where: GroupFilter = any_group, interval: Interval | None = None) -> int:
        """Return the number of a histogram's observations in the interval that its exporters counted, and that are in
        no bucket of a layout: `distribution` leaves them out. An exporter, or a relabeling rule that dropped series,
        left out the infinite bucket. Raises ValueError unless the interval's ends are edges of the grid."""
        columns = self._columns(interval)
        # By group, so that an exporter without `_count` does not hide observations of one without buckets.
        outside = 0
        for group in self.groups(f"{histogram}_count", where):
            buckets = self.totals.get(replace(group, metric=f"{histogram}_bucket"))
            inside = 0.0 if buckets is None or group.layout == NO_LAYOUT else float(buckets[columns].sum(axis=0).max())
            outside += max(0, round(float(self.totals[group][columns].sum()) - inside))
        return outside

    def _sum_in_buckets(
        self, histogram: str, counter: str, where: GroupFilter, interval: Interval | None
    ) -> float | None:
        """Return the total of `counter`, the sum of a histogram's observations or of their squares, of the exporters
        whose buckets have a layout. Return None if one of them has no such counter."""

        def in_buckets(group: SeriesGroup) -> bool:
            return group.layout != NO_LAYOUT and where(group)

        needed = {replace(group, metric=counter) for group in self.groups(f"{histogram}_bucket", in_buckets)}
        return self.total(counter, in_buckets, interval) if needed <= self.totals.keys() else None

    def layouts(self, histogram: str) -> set[int]:
        """Return the numbers of the layouts (sets of bucket bounds) of the exporters of `histogram`. NO_LAYOUT among
        them stands for buckets that belong to no layout."""
        return {group.layout for group in self.groups(f"{histogram}_bucket")}

    def brokers(self, metric: str) -> list[str]:
        """Return the sorted values of the label `broker` in the series of a metric or histogram, without the empty
        one."""
        names = {group.broker for name in (metric, f"{metric}_bucket") for group in self.groups(name)}
        return sorted(names - {""})

    def _columns(self, interval: Interval | None) -> slice:
        """Return the slice of the interval's columns, or of all without one. Raises ValueError unless its ends are
        edges."""
        return slice(None) if interval is None else self.grid.within(*interval)


GroupRows = dict[SeriesGroup, tuple[int, int]]
"""Table rows of each group: the first one and their number, one for each bound of a bucket."""


def plan_totals(catalog: SeriesCatalog, grid: TimeGrid) -> tuple[TotalsPlan, GroupRows]:
    """Return the plan of the totals that a report needs, and the table rows of each group.

    The plan covers every counter that a report reads and whose samples overlap the time of the grid: a row for each
    group, or for each bound of a group of buckets.
    """
    scraped = [entry for entry in catalog.counters if entry.was_scraped(grid.edges[0], grid.edges[-1])]
    group_rows: GroupRows = {}
    count = 0
    for group in sorted({entry.group for entry in scraped}):
        wide = len(catalog.layouts[group.layout]) if group.has_bounds else 1
        group_rows[group] = count, wide
        count += wide
    row_of = {
        entry.stats.series: group_rows[entry.group][0]
        + (catalog.layouts[entry.group.layout].index(entry.bound or 0.0) if entry.group.has_bounds else 0)
        for entry in scraped
    }
    rows = [row_of.get(entry.stats.series, -1) for entry in catalog.entries]
    return TotalsPlan(np.array(grid.edges, dtype=np.int64), np.array(rows, dtype=np.int64)), group_rows


def build_observations(catalog: SeriesCatalog, grid: TimeGrid, group_rows: GroupRows, totals: Totals) -> Observations:
    """Return the observations from the totals that `plan_totals` planned.

    :param group_rows: the table rows of each group, from `plan_totals` with the same catalog and grid.
    :param totals: the sums of all partitions.
    """
    values = totals.values
    by_group: dict[SeriesGroup, npt.NDArray[np.float64]] = {}
    for group, (first, wide) in group_rows.items():
        inside = slice(*np.searchsorted(totals.keys, (first * len(grid), (first + wide) * len(grid))).tolist())
        table = np.zeros((wide, len(grid)))
        table[np.divmod(totals.keys[inside] - first * len(grid), len(grid))] = values[inside]
        by_group[group] = np.ascontiguousarray(table.T) if group.has_bounds else table[0]
    older = sum(entry.predates_window for entry in catalog.counters if entry.was_scraped(grid.edges[0], grid.edges[-1]))
    return Observations(grid, dict(enumerate(catalog.layouts)), by_group, older, _scraped_intervals(catalog))


def _scraped_intervals(catalog: SeriesCatalog) -> dict[str, list[Interval]]:
    """Return, by metric, the disjoint and sorted intervals (ms since 1970) from the first to the last sample of its
    series; intervals that overlap are one."""
    by_metric: dict[str, list[Interval]] = {}
    for stats in sorted((entry.stats for entry in catalog.counters), key=lambda stats: stats.first or 0):
        if stats.first is None or stats.last is None:
            continue
        intervals = by_metric.setdefault(stats.metric, [])
        if intervals and stats.first <= intervals[-1][1]:
            intervals[-1] = intervals[-1][0], max(intervals[-1][1], stats.last)
        else:
            intervals.append((stats.first, stats.last))
    return by_metric


def histograms_with_different_buckets(observations: Observations) -> list[str]:
    """Return the names of the histograms that have buckets of more than one layout, or of one layout and none."""
    return [
        name
        for name in HISTOGRAMS
        if len({observations.bounds.get(layout) for layout in observations.layouts(name)}) > 1
    ]
