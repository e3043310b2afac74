"""What an objective is judged over, and the moments at which its budget is looked at. Arithmetic alone."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from migratory_resources.objectives import Objective

from migratory_spark import times

BURN_SECONDS = (300, 1800, 3600, 7200, 21_600, 86_400, 259_200)
"""The windows that alerts on burn rates look at, short and long ones in pairs (5 min and 1 h, 30 min and 6 h, ...)."""
POINTS = 60
"""Moments of a budget over time, in a window of an objective's own."""


@dataclass(slots=True, frozen=True)
class Scope:
    """The objective's window in ms, the moments of its budget (the last is its end), the lengths of its burn windows
    (the last is its own)."""

    kind: Literal["report", "rolling", "day", "week", "month", "quarter", "year"]
    start: int
    end: int
    zone: str
    points: tuple[int, ...]
    burns: tuple[int, ...]

    @property
    def edges(self) -> Iterator[int]:
        yield self.start
        yield from self.points
        for length in self.burns:
            yield self.end - length


def scope(objective: Objective, start: int, end: int, rows: Sequence[int], zone: str) -> Scope:
    """`rows` are the ends of the report's rows, the last one `end`. Raises ValueError for a zone that is unknown."""
    window = objective.window
    if window is None:
        return Scope("report", start, end, zone, tuple(rows), _burns(end - start))
    if window.rolling is not None:
        begins = end - round(window.rolling * 1000)
        return Scope("rolling", begins, end, "UTC", _points(begins, end), _burns(end - begins))
    assert window.calendar is not None  # the window's own rules see to it
    named = window.zone or "UTC"
    begins = times.period_start(window.calendar, end, times.zone(named))
    return Scope(window.calendar, begins, end, named, _points(begins, end), _burns(end - begins))


def _points(start: int, end: int) -> tuple[int, ...]:
    return tuple(sorted({start + (end - start) * nth // POINTS for nth in range(1, POINTS + 1)} - {start}))


def _burns(length: int) -> tuple[int, ...]:
    return (*(seconds * 1000 for seconds in BURN_SECONDS if seconds * 1000 < length), length)
