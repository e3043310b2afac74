"""Hours, days and longer periods across clock changes, the number of rows, and unknown zones."""

from __future__ import annotations

from datetime import datetime
from itertools import pairwise

import pytest
from migratory_spark.times import HOUR_MS, calendar_units, iso, local, period_start, row_seconds, zone

BUCHAREST, NEW_YORK, UTC = zone("Europe/Bucharest"), zone("America/New_York"), zone("UTC")


def ms(text: str) -> int:
    return round(datetime.fromisoformat(text).timestamp() * 1000)


@pytest.mark.parametrize(
    ("name", "first", "repeated"),
    [
        ("Europe/Bucharest", "2025-10-25T21:00:00+00:00", ["2025-10-26T03:00:00+03:00", "2025-10-26T03:00:00+02:00"]),
        ("America/New_York", "2025-11-02T04:00:00+00:00", ["2025-11-02T01:00:00-04:00", "2025-11-02T01:00:00-05:00"]),
    ],
)
def test_a_day_of_25_hours_has_the_repeated_one_twice(name: str, first: str, repeated: list[str]) -> None:
    tz = zone(name)
    unit, hours = calendar_units(ms(first), ms(first) + 25 * HOUR_MS, tz)
    labels = [local(hour, tz) for hour in hours]
    assert (unit, len(labels), len(set(labels))) == ("hour", 25, 25)
    assert [label for label in labels if label[11:13] == repeated[0][11:13]] == repeated


def test_day_of_23_hours_has_23_rows() -> None:
    start = period_start("day", ms("2025-03-30T12:00:00+00:00"), BUCHAREST)
    end = period_start("day", ms("2025-03-31T12:00:00+00:00"), BUCHAREST)
    assert end - start == 23 * HOUR_MS
    assert len(calendar_units(start, end, BUCHAREST)[1]) == 23


def test_hours_of_zones_with_half_hours_begin_on_the_half_hour() -> None:
    kolkata = zone("Asia/Kolkata")
    assert calendar_units(ms("2025-01-01T00:00:00Z"), ms("2025-01-01T01:00:00Z"), kolkata)[1] == [
        ms("2025-01-01T00:00:00Z"),
        ms("2025-01-01T00:30:00Z"),
    ]
    lord_howe = zone("Australia/Lord_Howe")
    hours = calendar_units(ms("2025-04-05T14:00:00Z"), ms("2025-04-05T16:30:00Z"), lord_howe)[1]
    assert [local(hour, lord_howe) for hour in hours] == [
        "2025-04-06T01:00:00+11:00", "2025-04-06T01:30:00+10:30", "2025-04-06T02:00:00+10:30",
    ]  # fmt: skip


def test_a_clock_change_within_an_hour_ends_a_row() -> None:
    pyongyang = zone("Asia/Pyongyang")
    hours = calendar_units(ms("2018-05-04T14:30:00Z"), ms("2018-05-04T16:00:00Z"), pyongyang)[1]
    assert [local(hour, pyongyang) for hour in hours] == [
        "2018-05-04T23:00:00+08:30", "2018-05-05T00:00:00+09:00",
    ]  # fmt: skip


def test_a_skipped_midnight_is_the_moment_of_the_change() -> None:
    sao_paulo = zone("America/Sao_Paulo")
    start = period_start("day", ms("2017-10-15T12:00:00Z"), sao_paulo)
    assert local(start, sao_paulo) == "2017-10-15T01:00:00-02:00"


@pytest.mark.parametrize(
    ("period", "begins"),
    [
        ("day", "2025-11-05T00:00:00-05:00"),
        ("week", "2025-11-03T00:00:00-05:00"),
        ("month", "2025-11-01T00:00:00-04:00"),
        ("quarter", "2025-10-01T00:00:00-04:00"),
        ("year", "2025-01-01T00:00:00-05:00"),
    ],
)
def test_periods_begin_at_local_midnight_with_the_offset_of_that_day(period: str, begins: str) -> None:
    assert local(period_start(period, ms("2025-11-05T15:00:00Z"), NEW_YORK), NEW_YORK) == begins  # type: ignore[arg-type]


def test_report_that_ends_with_a_period_judges_that_period() -> None:
    assert iso(period_start("month", ms("2025-12-01T00:00:00Z"), UTC)) == "2025-11-01T00:00:00.000Z"


def test_long_reports_count_days() -> None:
    unit, days = calendar_units(ms("2025-10-20T10:00:00Z"), ms("2025-10-28T10:00:00Z"), BUCHAREST)
    assert (unit, len(days)) == ("day", 9)
    assert iso(days[0]) == "2025-10-20T10:00:00.000Z"
    assert [(later - earlier) // HOUR_MS for earlier, later in pairwise(days)].count(25) == 1


@pytest.mark.parametrize(
    ("seconds", "length"), [(60, 1), (240, 1), (241, 2), (1800, 10), (86_400, 600), (9e9, 9e9 / 240)]
)
def test_number_of_rows_is_limited(seconds: float, length: float) -> None:
    assert row_seconds(seconds) == length


@pytest.mark.parametrize("name", ["Mars/Olympus", "", "../x", "/etc/passwd"])
def test_an_unknown_zone_is_named(name: str) -> None:
    with pytest.raises(ValueError, match="not a time zone"):
        zone(name)
