"""Statistics over the rounds of a measurement: medians with their spread, and ratios within each round. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from msgspec import Struct


class RoundStats(Struct, frozen=True):
    """The values of all rounds. The median is the result; `low` and `high` are the spread."""

    median: float
    low: float
    high: float
    values: list[float]


def round_stats(values: Sequence[float], digits: int = 4) -> RoundStats:
    """Return the statistics of one value for each round. Raise ValueError when there is none."""
    if not values:
        raise ValueError("no round has a value")
    rounded = [round(value, digits) for value in values]
    return RoundStats(round(statistics.median(values), digits), min(rounded), max(rounded), rounded)


def ratios(values: Sequence[float], others: Sequence[float]) -> RoundStats | None:
    """Return the statistics of the ratio within each round, in which the load of a shared machine cancels out.

    None when the other has a round of 0: it did so little that the kernel counted no time."""
    if not all(others):
        return None
    return round_stats([value / other for value, other in zip(values, others, strict=True)])


def with_medians(**figures: RoundStats | None) -> dict[str, Any]:
    """Return the part of a result that has the median of each figure under its name, and the figures under `rounds`."""
    medians = {name: None if figure is None else figure.median for name, figure in figures.items()}
    return {**medians, "rounds": {name: figure for name, figure in figures.items() if figure is not None}}


def slope(values: Sequence[float]) -> float:
    """Return the slope of the least-squares line through values at 0, 1, 2, ...; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    return statistics.linear_regression(range(len(values)), list(values)).slope
