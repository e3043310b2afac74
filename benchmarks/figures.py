"""Figures of several rounds: the median with its spread, and ratios taken within each round. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from msgspec import Struct


class Figure(Struct, frozen=True):
    """The median counts; `low` and `high` are the spread over the rounds."""

    median: float
    low: float
    high: float
    values: list[float]


def figure(values: Sequence[float], digits: int = 4) -> Figure:
    """Raises ValueError for none at all: a figure that nobody measured must not look like one."""
    if not values:
        raise ValueError("no round has a value")
    rounded = [round(value, digits) for value in values]
    return Figure(round(statistics.median(values), digits), min(rounded), max(rounded), rounded)


def ratios(values: Sequence[float], others: Sequence[float]) -> Figure | None:
    """Each round's value over the other's of the same round: what a machine shared with others does to both cancels.
    None when the other has a round of 0, as it has where so little was done that the kernel counted no time."""
    if not all(others):
        return None
    return figure([value / other for value, other in zip(values, others, strict=True)])


def headline(**figures: Figure | None) -> dict[str, Any]:
    """What a measurement is asked for: each name has its median, a number, and under `rounds` the whole figure."""
    medians = {name: None if one is None else one.median for name, one in figures.items()}
    return {**medians, "rounds": {name: one for name, one in figures.items() if one is not None}}


def slope(values: Sequence[float]) -> float:
    """Of the least-squares line through values at 0, 1, 2, ...; 0 for fewer than two."""
    if len(values) < 2:
        return 0.0
    return statistics.linear_regression(range(len(values)), list(values)).slope
