"""Counts the good, bad and silent slices of time, for objectives that count slices of time instead of events.

`plan_slices` plans the sums of good and of all events in each slice; the pass that adds up all other totals computes
them. `count_slices` then compares each slice's share of good events with the share that the objective demands.
verdicts.py gives the verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from migratory_resources.objectives import Objective

from migratory_spark import metrics
from migratory_spark.aggregate.series_catalog import NO_LAYOUT, SeriesCatalog
from migratory_spark.aggregate.time_grid import Interval, TimeGrid
from migratory_spark.aggregate.totals import MAX_TOTALS, TooManyTotals, Totals, TotalsPlan
from migratory_spark.judge.event_counts import EventCounts, judged_deliveries
from migratory_spark.read.series_pack import Ints

MAX_BAD_SLICES = 100
"""Bad slices that a report lists, the first ones."""


@dataclass(slots=True, frozen=True)
class SliceCounts:
    """Good and total slices by interval of `grid`. A slice belongs to the interval in which it ends. Called with an
    interval, it counts the slices that end there.

    `silent` slices had no event and are neither good nor bad. `bad` are the starts of the first MAX_BAD_SLICES bad
    ones, in ms since 1970. `exact` is True if the threshold is a bound of every histogram. `note` says what else is
    uncertain, "" if nothing is. `possible` of the bad slices may be good.
    """

    grid: TimeGrid
    good: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    silent: int
    bad: tuple[int, ...]
    exact: bool
    possible: npt.NDArray[np.int64] | None = None
    note: str = ""

    def __call__(self, interval: Interval) -> EventCounts:
        """Return the counts of slices that end in the interval; nothing can be counted if none had an event. Raises
        ValueError unless the interval's ends are edges of the grid."""
        inside = self.grid.within(*interval)
        total = int(self.total[inside].sum())
        if not total:
            return EventCounts(None, None, "no slice had an event")
        threshold = "the threshold is not a bound of every histogram: its whole bucket counts as above"
        note = "; ".join(filter(None, (threshold * (not self.exact), self.note)))
        possible = 0 if self.possible is None else int(self.possible[inside].sum())
        return EventCounts(int(self.good[inside].sum()), total, note, possible=possible)


def slice_edges(objective: Objective, start_ms: int, end_ms: int) -> Ints:
    """Return the starts of a window's slices, and the window's end, in ms since 1970. The last slice may be shorter.
    Raises TooManyTotals if there are more than MAX_TOTALS slices."""
    slices = objective.slices
    assert slices is not None
    length = round(slices.length * 1000)
    if -(-(end_ms - start_ms) // length) > MAX_TOTALS:
        raise TooManyTotals(f"more than {MAX_TOTALS:,} slices in {objective.name}: ask for longer ones")
    return np.append(np.arange(start_ms, end_ms, length, dtype=np.int64), end_ms)


@dataclass(slots=True, frozen=True)
class SlicePlan:
    """The plans of the sums from which an objective's slices are counted.

    `plans` are those of good events, of all events, and of events that may be good, each with an interval for each
    slice. `edges` are the slices' boundaries in ms since 1970. `exact` is True if the threshold is a bound of every
    histogram. `note` says what else is uncertain, "" if nothing is.
    """

    plans: tuple[TotalsPlan, TotalsPlan, TotalsPlan]
    edges: Ints
    exact: bool
    note: str = ""


def plan_slices(catalog: SeriesCatalog, objective: Objective, start_ms: int, end_ms: int) -> SlicePlan:
    """Return the plan for an objective that counts slices, over the time from `start_ms` to `end_ms`. Raises
    TooManyTotals if there are more than MAX_TOTALS slices."""
    edges = slice_edges(objective, start_ms, end_ms)
    exact, note = True, ""
    if objective.type == "latency":
        good, total, possible, exact = _latency_buckets(catalog, objective)
        # Deliveries in no bucket may have had any latency.
        outside = _in_no_bucket(catalog, objective)
        total, possible = np.logical_or(total, outside).tolist(), np.logical_or(possible, outside).tolist()
        note = "some deliveries are in no bucket and count as above" * any(outside)
    else:
        good, total, possible = _publications(catalog)
        note = "some exporters count only acknowledged or only failed publications" * (good != possible)
    plans = (
        TotalsPlan(edges, _one_row(good)), TotalsPlan(edges, _one_row(total)), TotalsPlan(edges, _one_row(possible)),
    )  # fmt: skip
    return SlicePlan(plans, edges, exact, note)


def count_slices(objective: Objective, grid: TimeGrid, totals: Sequence[Totals], plan: SlicePlan) -> SliceCounts:
    """Return the counts of good, bad and silent slices.

    :param grid: the grid by whose intervals slices are counted. Its first and last edge are those of the objective's
        window.
    :param totals: the totals of the plan's three parts, in their order.
    """
    (good, total, possible), edges = totals, plan.edges
    slices = objective.slices
    assert slices is not None
    needed = slices.percentile if objective.type == "latency" else slices.share
    assert needed is not None  # validated with the resource
    events = {number: round(value) for number, value in zip(total.keys.tolist(), total.values.tolist(), strict=True)}
    with_events = [number for number, count in events.items() if count]
    # P99 is at or below a threshold exactly when 99% of the slice's events are: nothing is interpolated.
    share = Fraction(needed) / 100

    def reach_share(counted: Totals) -> npt.NDArray[np.bool_]:
        counts = dict(zip(counted.keys.tolist(), map(round, counted.values.tolist()), strict=True))
        return np.array([counts.get(number, 0) >= events[number] * share for number in with_events], dtype=bool)

    is_good = reach_share(good)
    numbers = np.array(with_events, dtype=np.int64)
    interval = np.searchsorted(np.array(grid.edges, dtype=np.int64), edges[numbers + 1], side="left") - 1
    bad = edges[numbers][~is_good][:MAX_BAD_SLICES]
    return SliceCounts(
        grid, np.bincount(interval[is_good], minlength=len(grid)), np.bincount(interval, minlength=len(grid)),
        len(edges) - 1 - len(with_events), tuple(bad.tolist()), plan.exact,
        np.bincount(interval[reach_share(possible) & ~is_good], minlength=len(grid)), plan.note,
    )  # fmt: skip


def _one_row(chosen: Sequence[bool]) -> Ints:
    """Return the table rows of a plan that adds all chosen series up in row 0 and leaves out the others."""
    return np.where(np.array(chosen, dtype=bool), 0, -1)


def _publications(catalog: SeriesCatalog) -> tuple[list[bool], list[bool], list[bool]]:
    """Return for each series of the catalog whether it counts good publications, any, and publications that may be
    good.

    Acknowledged publications of an exporter that counts no failed ones are possibly good only, because it may have as
    many that failed. Failed ones of an exporter that counts no acknowledged ones are possibly good, because it may have
    as many that were acknowledged.
    """
    good, total, possible = [], [], []
    for entry in catalog.entries:
        acknowledged = entry.stats.metric == f"{metrics.PUBLISH}_count"
        publication = acknowledged or entry.stats.metric == metrics.PUBLISH_ERRORS
        good.append(acknowledged and not entry.group.unpaired)
        total.append(publication)
        possible.append(acknowledged or (publication and entry.group.unpaired))
    return good, total, possible


def _in_no_bucket(catalog: SeriesCatalog, objective: Objective) -> list[bool]:
    """Return for each series of the catalog whether it counts judged deliveries of a histogram that has no layout, so
    that no bucket tells whether they are good."""
    is_judged = judged_deliveries(*objective.clocks)
    return [
        entry.stats.metric == f"{metrics.LATENCY}_count" and entry.group.layout == NO_LAYOUT and is_judged(entry.group)
        for entry in catalog.entries
    ]


def _latency_buckets(catalog: SeriesCatalog, objective: Objective) -> tuple[list[bool], list[bool], list[bool], bool]:
    """Return for each series of the catalog whether it is the bucket of good events, of all events, and of events that
    may be good, in live deliveries by the objective's clocks.

    Also return whether the threshold is a bound of every histogram; then the buckets of good and of possibly good
    events are the same.
    """
    assert objective.slices is not None
    assert objective.slices.threshold is not None
    is_judged = judged_deliveries(*objective.clocks)
    limit = objective.slices.threshold * (1 + 1e-9)
    # By layout the highest bound within the threshold, and the lowest one that is not below it.
    within = [max([bound for bound in upper if bound <= limit], default=None) for upper in catalog.layouts]
    beyond = [min(bound for bound in upper if bound >= limit * (1 - 2e-9)) for upper in catalog.layouts]
    good, total, possible, exact = [], [], [], True
    for entry in catalog.entries:
        group = entry.group
        judged = group.metric == f"{metrics.LATENCY}_bucket" and group.layout != NO_LAYOUT and is_judged(group)
        good.append(judged and entry.bound == within[group.layout])
        total.append(judged and entry.bound == catalog.layouts[group.layout][-1])
        possible.append(judged and entry.bound == beyond[group.layout])
        if judged:
            highest = within[group.layout]
            exact = exact and highest is not None and highest >= limit * (1 - 2e-9)
    return good, total, possible, exact
