"""Slices of time that were good or bad, for objectives that count them. Their events are added up with all else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

import numpy as np
import numpy.typing as npt
from migratory_resources.objectives import Objective

from migratory_spark import metrics
from migratory_spark.aggregate.series_catalog import NO_LAYOUT, Catalogue
from migratory_spark.aggregate.time_grid import Cells, Interval
from migratory_spark.aggregate.totals import MOST_NUMBERS, Sums, Tally, TooManySums
from migratory_spark.judge.event_counts import Counts
from migratory_spark.read.series_pack import Ints

MOST_BAD = 100
"""Bad slices that are named, the first ones."""


@dataclass(slots=True, frozen=True)
class SliceCounts:
    """By cell of `cells`; a slice belongs to the cell in which it ends. `silent` slices had no event: they are neither
    good nor bad. `exact`: the threshold is a bound of every histogram; else `possible` of the bad ones may be good."""

    cells: Cells
    good: npt.NDArray[np.int64]
    total: npt.NDArray[np.int64]
    silent: int
    bad: tuple[int, ...]
    exact: bool
    possible: npt.NDArray[np.int64] | None = None

    def __call__(self, span: Interval) -> Counts:
        inside = self.cells.within(*span)
        total = int(self.total[inside].sum())
        if not total:
            return Counts(None, None, "no slice had an event")
        note = "" if self.exact else "the threshold is not a bound of every histogram: its whole bucket counts as above"
        possible = 0 if self.possible is None else int(self.possible[inside].sum())
        return Counts(int(self.good[inside].sum()), total, note, possible=possible)


def edges(objective: Objective, start_ms: int, end_ms: int) -> Ints:
    """Where the slices of a window begin, and its end. Raises TooManySums."""
    slices = objective.slices
    assert slices is not None
    length = round(slices.length * 1000)
    if -(-(end_ms - start_ms) // length) > MOST_NUMBERS:
        raise TooManySums(f"more than {MOST_NUMBERS:,} slices in {objective.name}: ask for longer ones")
    return np.append(np.arange(start_ms, end_ms, length, dtype=np.int64), end_ms)


@dataclass(slots=True, frozen=True)
class Asked:
    """`tallies` of good events, of all, and of those that may be good, a cell for each slice of the objective's window.
    `slots` are the ends of these slices; `exact`: the threshold is a bound of every histogram."""

    tallies: tuple[Tally, Tally, Tally]
    slots: Ints
    exact: bool


def to_add(known: Catalogue, objective: Objective, start_ms: int, end_ms: int) -> Asked:
    """Raises TooManySums."""
    slots = edges(objective, start_ms, end_ms)
    exact = True
    if objective.type == "latency":
        good, total, best, exact = _latency(known, objective)
    else:
        best = good = [entry.about.metric == f"{metrics.PUBLISH}_count" for entry in known.entries]
        failed = [entry.about.metric == metrics.PUBLISH_ERRORS for entry in known.entries]
        total = [one or other for one, other in zip(good, failed, strict=True)]
    return Asked((Tally(slots, _lines(good)), Tally(slots, _lines(total)), Tally(slots, _lines(best))), slots, exact)


def counted(objective: Objective, cells: Cells, sums: Sequence[Sums], asked: Asked) -> SliceCounts:
    """What `to_add` asked for. `cells` begin and end with the objective's window."""
    (good, total, best), slots = sums, asked.slots
    slices = objective.slices
    assert slices is not None
    needed = slices.percentile if objective.type == "latency" else slices.share
    assert needed is not None  # the objective's own rules see to it
    events = {slice_: round(value) for slice_, value in zip(total.keys.tolist(), total.values.tolist(), strict=True)}
    heard = [slice_ for slice_, count in events.items() if count]
    # P99 is at or below a threshold exactly when 99% of the slice's events are: no interpolation has a say.
    share = Fraction(needed) / 100

    def enough(told: Sums) -> npt.NDArray[np.bool_]:
        kept = {slice_: round(value) for slice_, value in zip(told.keys.tolist(), told.values.tolist(), strict=True)}
        return np.array([kept.get(slice_, 0) >= events[slice_] * share for slice_ in heard], dtype=bool)

    fine = enough(good)
    ends = slots[np.array(heard, dtype=np.int64) + 1]
    cell = np.searchsorted(np.array(cells.edges, dtype=np.int64), ends, side="left") - 1
    bad = slots[np.array(heard, dtype=np.int64)][~fine][:MOST_BAD]
    return SliceCounts(
        cells, np.bincount(cell[fine], minlength=len(cells)), np.bincount(cell, minlength=len(cells)),
        len(slots) - 1 - len(heard), tuple(bad.tolist()), asked.exact,
        np.bincount(cell[enough(best) & ~fine], minlength=len(cells)),
    )  # fmt: skip


def _lines(chosen: Sequence[bool]) -> Ints:
    return np.where(np.array(chosen, dtype=bool), 0, -1)


def _latency(known: Catalogue, objective: Objective) -> tuple[list[bool], list[bool], list[bool], bool]:
    """The buckets that hold what is within the threshold, those that hold everything, and those that hold what may be
    within the threshold, which are the first ones where it is a bound."""
    assert objective.slices is not None
    assert objective.slices.threshold is not None
    limit = objective.slices.threshold * (1 + 1e-9)
    # By layout the highest bound within the threshold, and the lowest one that is not below it.
    within = [max([bound for bound in upper if bound <= limit], default=None) for upper in known.layouts]
    beyond = [min(bound for bound in upper if bound >= limit * (1 - 2e-9)) for upper in known.layouts]
    good, total, best, exact = [], [], [], True
    for entry in known.entries:
        group = entry.group
        judged = (
            group.metric == f"{metrics.LATENCY}_bucket"
            and group.layout != NO_LAYOUT
            and group.clock in objective.clocks
            and group.phase == "live"
        )
        good.append(judged and entry.bound == within[group.layout])
        total.append(judged and entry.bound == known.layouts[group.layout][-1])
        best.append(judged and entry.bound == beyond[group.layout])
        if judged:
            highest = within[group.layout]
            exact = exact and highest is not None and highest >= limit * (1 - 2e-9)
    return good, total, best, exact
