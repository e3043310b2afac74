"""Computes with times: hours, days and longer periods of a time zone, RFC 3339 text, and the length of a report's rows.

Moments are milliseconds since 1970 in UTC throughout. A zone only says at which moments its hours and days begin. So an
hour that a clock change repeats is two hours with different offsets, and neither the machine's zone nor Spark's
matters.
"""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import Literal
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from migratory_resources.objectives import Period

HOUR_MS = 3_600_000
MAX_ROWS = 240
"""The most rows of a report for which no length of rows is given: as many as a plot can show."""
MAX_HOURLY_MS = 4 * 24 * HOUR_MS
"""Milliseconds of a window up to which its calendar has a row for each hour. That of a longer window has one for each
day."""
_ROW_SECONDS = (
    1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10_800, 21_600, 43_200, 86_400, 172_800, 604_800,
)  # fmt: skip
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def zone(name: str) -> ZoneInfo:
    """Return the time zone of that name. Raises ValueError for a name that is not in the tz database."""
    try:
        return ZoneInfo(name)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise ValueError(
            f"{name!r} is not a time zone of the tz database; use a name such as Europe/Bucharest"
        ) from error


def row_seconds(seconds: float) -> float:
    """Return the shortest of the lengths in _ROW_SECONDS (1 s to 7 days) that cuts a window of `seconds` into at most
    MAX_ROWS rows. If all of them are too short, return the MAX_ROWS-th part of the window."""
    for length in _ROW_SECONDS:
        if seconds <= length * MAX_ROWS:
            return float(length)
    return seconds / MAX_ROWS


def iso(moment_ms: int) -> str:
    """Return the moment (ms since 1970) in RFC 3339, in UTC with milliseconds."""
    return _at(moment_ms, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def local(moment_ms: int, tz: ZoneInfo) -> str:
    """Return the moment (ms since 1970) in RFC 3339, in the time zone and with its offset. Milliseconds are cut off."""
    return _at(moment_ms, tz).isoformat(timespec="seconds")


def period_start(period: Period, moment_ms: int, tz: ZoneInfo) -> int:
    """Return the start (ms since 1970) of the zone's day, week (from Monday), month, quarter or year that contains the
    moment. A moment on a boundary belongs to the period that ends there."""
    local_time = _at(moment_ms - 1, tz)
    match period:
        case "day":
            return _midnight(local_time.date(), tz)
        case "week":
            return _midnight(local_time.date() - timedelta(days=local_time.weekday()), tz)
        case "month":
            return _midnight(local_time.date().replace(day=1), tz)
        case "quarter":
            return _midnight(date(local_time.year, (local_time.month - 1) // 3 * 3 + 1, 1), tz)
        case "year":
            return _midnight(date(local_time.year, 1, 1), tz)


def calendar_units(start_ms: int, end_ms: int, tz: ZoneInfo) -> tuple[Literal["hour", "day"], list[int]]:
    """Return the unit, and the starts (ms since 1970) of the zone's hours that [start, end) touches, or of its days if
    the window is longer than MAX_HOURLY_MS.

    The first start is `start_ms`, even inside an hour or a day. An hour in which the clock changes is cut at the
    change. There are no starts if the window is empty.
    """
    unit: Literal["hour", "day"] = "hour" if end_ms - start_ms <= MAX_HOURLY_MS else "day"
    following = _next_hour if unit == "hour" else _next_day
    starts, moment = [], start_ms
    while moment < end_ms:
        starts.append(moment)
        moment = following(moment, tz)
    return unit, starts


def _at(moment_ms: int, tz: ZoneInfo | type(UTC)) -> datetime:  # type: ignore[valid-type]
    """Return the moment (ms since 1970) as a time with this zone."""
    # By addition: fromtimestamp takes a float, which does not hold every millisecond.
    return (_EPOCH + timedelta(milliseconds=moment_ms)).astimezone(tz)


def _ms(moment: datetime) -> int:
    """Return a time with a zone in ms since 1970."""
    return (moment - _EPOCH) // timedelta(milliseconds=1)


def _midnight(day: date, tz: ZoneInfo) -> int:
    """Return the first moment of a day in the zone, in ms since 1970.

    If a clock change repeats midnight, the first one counts. If it skips midnight, the day begins at the change.
    """
    return _ms(datetime(day.year, day.month, day.day, tzinfo=tz).astimezone(UTC))


def _next_day(moment_ms: int, tz: ZoneInfo) -> int:
    """Return the start (ms since 1970) of the zone's day after the one that contains the moment."""
    return _midnight(_at(moment_ms, tz).date() + timedelta(days=1), tz)


def _next_hour(moment_ms: int, tz: ZoneInfo) -> int:
    """Return the moment (ms since 1970) at which the zone's hour that contains the given moment ends: at the next full
    hour, or at an earlier change of the clock."""
    local_time = _at(moment_ms, tz)
    into_hour = local_time.minute * 60_000 + local_time.second * 1000 + local_time.microsecond // 1000
    following = moment_ms + HOUR_MS - into_hour
    if _at(following - 1, tz).utcoffset() == local_time.utcoffset():
        return following
    # The clock changes within the hour, as it did in some years in some places: a row ends there.
    before, after = moment_ms, following - 1
    while after - before > 1:
        middle = (before + after) // 2
        if _at(middle, tz).utcoffset() == local_time.utcoffset():
            before = middle
        else:
            after = middle
    return after
