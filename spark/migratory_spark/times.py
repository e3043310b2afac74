"""Hours, days and months of a time zone, and how long a report's rows are. Calendar arithmetic alone, no Spark.

Moments are milliseconds since 1970 in UTC throughout; a zone only says where its hours and days begin. So an hour that
a clock change repeats is two hours, told apart by their offsets, and neither the machine's zone nor Spark's matters.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from migratory_resources.objectives import Period

HOUR_MS = 3_600_000
MOST_WINDOWS = 240
"""Rows of a report whose length nobody asked for: as many as a plot can show."""
MOST_HOURS = 4 * 24
"""A report over more hours counts days."""
_LENGTHS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def zone(name: str) -> ZoneInfo:
    """Raises ValueError for a name that is not in the tz database."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ValueError(f"{name!r} is no time zone of the tz database, such as Europe/Bucharest") from error


def row_seconds(seconds: float) -> float:
    """The shortest length of rows that gives at most MOST_WINDOWS of them."""
    for length in _LENGTHS:
        if seconds <= length * MOST_WINDOWS:
            return float(length)
    return seconds / MOST_WINDOWS


def iso(moment_ms: int) -> str:
    """RFC 3339 in UTC."""
    return _at(moment_ms, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(moment_ms: int, tz: ZoneInfo) -> str:
    """RFC 3339 with the zone's offset, to the second."""
    return _at(moment_ms, tz).isoformat(timespec="seconds")


def period_start(period: Period, moment_ms: int, tz: ZoneInfo) -> int:
    """When the period began that the stretch of time up to `moment_ms` lies in: on a boundary, the period before."""
    here = _at(moment_ms - 1, tz)
    match period:
        case "day":
            return _midnight(here.date(), tz)
        case "week":
            return _midnight(here.date() - timedelta(days=here.weekday()), tz)
        case "month":
            return _midnight(here.date().replace(day=1), tz)
        case "quarter":
            return _midnight(date(here.year, (here.month - 1) // 3 * 3 + 1, 1), tz)
        case "year":
            return _midnight(date(here.year, 1, 1), tz)


def units(start_ms: int, end_ms: int, tz: ZoneInfo) -> tuple[Literal["hour", "day"], list[int]]:
    """The hours of the zone that [start, end) touches, or its days where it is long; each by its beginning, the first
    by `start_ms`."""
    unit: Literal["hour", "day"] = "hour" if end_ms - start_ms <= MOST_HOURS * HOUR_MS else "day"
    following = _next_hour if unit == "hour" else _next_day
    found, moment = [], start_ms
    while moment < end_ms:
        found.append(moment)
        moment = following(moment, tz)
    return unit, found


def _at(moment_ms: int, tz: ZoneInfo | type(UTC)) -> datetime:  # type: ignore[valid-type]
    # By addition: fromtimestamp takes a float, which does not hold every millisecond.
    return (_EPOCH + timedelta(milliseconds=moment_ms)).astimezone(tz)


def _ms(moment: datetime) -> int:
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _midnight(day: date, tz: ZoneInfo) -> int:
    """The first moment of a day: of a midnight that a clock change repeats the first one, of one that it leaves out the
    moment of the change."""
    return _ms(datetime(day.year, day.month, day.day, tzinfo=tz).astimezone(UTC))


def _next_day(moment_ms: int, tz: ZoneInfo) -> int:
    return _midnight(_at(moment_ms, tz).date() + timedelta(days=1), tz)


def _next_hour(moment_ms: int, tz: ZoneInfo) -> int:
    here = _at(moment_ms, tz)
    into = here.minute * 60_000 + here.second * 1000 + here.microsecond // 1000
    following = moment_ms + HOUR_MS - into
    if _at(following - 1, tz).utcoffset() == here.utcoffset():
        return following
    # The clock changes within the hour, as it did in some years in some places: a row ends there.
    before, after = moment_ms, following - 1
    while after - before > 1:
        middle = (before + after) // 2
        if _at(middle, tz).utcoffset() == here.utcoffset():
            before = middle
        else:
            after = middle
    return after
