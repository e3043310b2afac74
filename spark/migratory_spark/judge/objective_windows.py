"""Windows of objectives: the time over which each is judged, the moments at which its budget is shown, and its burn
windows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from migratory_resources.objectives import Objective

from migratory_spark import times

BURN_SECONDS = (300, 1800, 3600, 7200, 21_600, 86_400, 259_200)
"""Lengths in seconds of the windows that alerts on burn rates use, short and long ones in pairs (5 min and 1 h, 30 min
and 6 h, ...)."""
BUDGET_POINTS = 60
"""Number of moments at which the budget of an objective with a window of its own is shown."""


@dataclass(slots=True, frozen=True)
class JudgedWindow:
    """The window of an objective; times in ms since 1970.

    `points` are the moments at which the report shows the budget, the last of which is `end`. `burns` are the lengths
    in ms of the windows of burn rates, which all end at `end`. The last of them is the window itself. `zone` is the
    time zone of a calendar period, the report's for the report's own window, and UTC for a rolling one.
    """

    kind: Literal["report", "rolling", "day", "week", "month", "quarter", "year"]
    start: int
    end: int
    zone: str
    points: tuple[int, ...]
    burns: tuple[int, ...]

    @property
    def edges(self) -> Iterator[int]:
        """All moments (ms since 1970) between which events must be counted, in no order; some may come more than
        once."""
        yield self.start
        yield from self.points
        for length in self.burns:
            yield self.end - length


def judged_window(objective: Objective, start: int, end: int, row_ends: Sequence[int], zone: str) -> JudgedWindow:
    """Return the window of an objective in a report from `start` to `end` (ms since 1970): that of the report, a
    rolling one, or a calendar period so far. Each ends at `end`.

    :param row_ends: the ends of the report's rows, the last of which is `end`.
    :param zone: the report's time zone. A calendar period has the objective's own, or UTC.
    :raises ValueError: the objective's time zone is unknown.
    """
    window = objective.window
    if window is None:
        return JudgedWindow("report", start, end, zone, tuple(row_ends), _burns(end - start))
    if window.rolling is not None:
        begins = end - round(window.rolling * 1000)
        return JudgedWindow("rolling", begins, end, "UTC", _points(begins, end), _burns(end - begins))
    assert window.calendar is not None  # validated with the resource
    name = window.zone or "UTC"
    begins = times.period_start(window.calendar, end, times.zone(name))
    return JudgedWindow(window.calendar, begins, end, name, _points(begins, end), _burns(end - begins))


def _points(start: int, end: int) -> tuple[int, ...]:
    """Return BUDGET_POINTS moments from `start` to `end` (ms), evenly spaced; the last is `end`. There are fewer if the
    time is shorter than as many ms."""
    points = {start + (end - start) * number // BUDGET_POINTS for number in range(1, BUDGET_POINTS + 1)}
    return tuple(sorted(points - {start}))


def _burns(length: int) -> tuple[int, ...]:
    """Return the lengths (ms) of the burn windows that are shorter than `length` (ms), and `length` itself."""
    return (*(seconds * 1000 for seconds in BURN_SECONDS if seconds * 1000 < length), length)
