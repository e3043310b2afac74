"""Durations and sizes: parsing, refusal, and round trips."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_resources.quantities import format_duration, format_size, parse_duration, parse_size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("4s", 4.0),
        ("250ms", 0.25),
        ("2m", 120.0),
        ("1h", 3600.0),
        ("1d", 86400.0),
        ("1m30s", 90.0),
        ("1.5s", 1.5),
        ("0", 0.0),
        ("0s", 0.0),
        (0, 0.0),
    ],
)
def test_durations_are_parsed(text: object, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "value",
    [
        "",
        "4",
        4,
        4.0,
        True,
        False,
        None,
        "4 s",
        " 4s",
        "4s ",
        "-4s",
        "4S",
        "4sec",
        "30s1m",
        "1s1s",
        "1e3s",
        "٤s",
        ".5s",
        "9" * 50 + "s",
        [],
        "4s\n",
    ],
)
def test_malformed_durations_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a duration with its unit"):
        parse_duration(value)


@pytest.mark.parametrize(
    ("text", "size"), [("256Mi", 256 * 2**20), ("16Ki", 16384), ("1Gi", 2**30), ("1k", 1000), ("7", 7), (7, 7), (0, 0)]
)
def test_sizes_are_parsed(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("value", ["", "1MB", "1 Mi", "1mi", "-1", -1, 1.5, True, None, "1.5Mi", "9" * 50])
def test_malformed_sizes_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="a size such as"):
        parse_size(value)


@given(st.integers(0, 10**9))
def test_a_written_duration_reads_back(milliseconds: int) -> None:
    assert parse_duration(format_duration(milliseconds / 1000)) == milliseconds / 1000


@given(st.integers(0, 2**50))
def test_a_written_size_reads_back(size: int) -> None:
    assert parse_size(format_size(size)) == size
