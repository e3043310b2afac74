"""Breakdown of totals by labels: which series belong to which combination of the labels' values, and the observations
of each combination.

A breakdown has totals of a whole window only. Rows of time for every combination would be too many, and an objective is
judged over its window.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from migratory_spark import metrics
from migratory_spark.aggregate.observations import GroupRows, Observations, build_observations, plan_totals
from migratory_spark.aggregate.series_catalog import SeriesCatalog
from migratory_spark.aggregate.time_grid import TimeGrid
from migratory_spark.aggregate.totals import Totals, TotalsPlan

MAX_COMBINATIONS = 1000
"""The largest number of combinations of values in a breakdown: a page with more cannot be read."""

Combination = tuple[str, ...]
"""A value for each label of a breakdown; "" where a series does not have the label."""


class BadBreakdown(ValueError):
    """Raised for labels that no series has, or that have more than MAX_COMBINATIONS combinations of values. The message
    says what to ask for instead."""


@dataclass(slots=True, frozen=True)
class BreakdownPlan:
    """The plan of a breakdown's totals over the time of `grid`. `parts` has, for each combination, the catalog of its
    series, the table rows of their groups, and the first row and the number of rows that the combination has in
    `plan`."""

    grid: TimeGrid
    plan: TotalsPlan
    parts: dict[Combination, tuple[SeriesCatalog, GroupRows, int, int]]

    def observations(self, totals: Totals) -> dict[Combination, Observations]:
        """Return the observations of each combination from the totals that were computed by `plan`, of all partitions
        together."""
        return {
            combination: build_observations(catalog, self.grid, rows, _of_rows(totals, first, count, len(self.grid)))
            for combination, (catalog, rows, first, count) in self.parts.items()
        }


def plan_breakdown(catalog: SeriesCatalog, grid: TimeGrid, labels: Sequence[str]) -> BreakdownPlan:
    """Return the plan of a breakdown by `labels` of the counters of clients and publishers that were scraped in the
    time of `grid`. Raises BadBreakdown if none of these series has one of the labels, or if there are too many
    combinations; without any such series the breakdown is empty."""
    positions: dict[Combination, list[int]] = {}
    known = frozenset(metrics.counters()) - frozenset(metrics.BROKER_COUNTERS)
    names: set[str] = set()
    for position, entry in enumerate(catalog.entries):
        if entry.stats.metric in known and entry.was_scraped(grid.edges[0], grid.edges[-1]):
            names |= entry.stats.labels.keys()
            combination = tuple(entry.stats.labels.get(label, "") for label in labels)
            positions.setdefault(combination, []).append(position)
    _check(labels, names, len(positions))
    rows = np.full(len(catalog.entries), -1, dtype=np.int64)
    parts = {}
    next_row = 0
    for combination in sorted(positions):
        entries = tuple(catalog.entries[position] for position in positions[combination])
        part = replace(catalog, entries=entries)
        plan, group_rows = plan_totals(part, grid)
        rows[positions[combination]] = np.where(plan.rows >= 0, plan.rows + next_row, -1)
        count = sum(wide for _, wide in group_rows.values())
        parts[combination] = part, group_rows, next_row, count
        next_row += count
    return BreakdownPlan(grid, TotalsPlan(np.array(grid.edges, dtype=np.int64), rows), parts)


def _check(labels: Sequence[str], names: set[str], combinations: int) -> None:
    """Raise BadBreakdown if one of the labels is not in `names`, the labels of the series, or if there are too many
    combinations. Without any names no label is missing."""
    missing = [label for label in labels if label not in names]
    if missing and names:
        raise BadBreakdown(f"no series has the label {missing[0]!r}; there are {', '.join(sorted(names - {'le'}))}")
    if combinations > MAX_COMBINATIONS:
        raise BadBreakdown(
            f"{', '.join(labels)} have {combinations:,} combinations of values, more than {MAX_COMBINATIONS:,}: name "
            "fewer labels, or labels with fewer values"
        )


def _of_rows(totals: Totals, first: int, count: int, columns: int) -> Totals:
    """Return the sums in `count` rows of a table from row `first` on, as those of a table that begins there and has the
    same number of columns."""
    inside = slice(*np.searchsorted(totals.keys, (first * columns, (first + count) * columns)).tolist())
    return Totals(totals.keys[inside] - first * columns, totals.whole[inside], totals.fraction[inside])
