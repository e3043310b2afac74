"""The splitting of an alert's condition (`migratory_testing.promql`), on which other tests depend."""

from __future__ import annotations

import pytest
from migratory_testing.promql import sides


@pytest.mark.parametrize(
    ("expression", "expected"),
    [
        ("a > 1", ["a"]),
        ('a{x="1"} > 14.4 and b >= 2', ['a{x="1"}', "b"]),
        ("(sum by (c) (rate(a[5m])) > 0) unless on (c) (b)", ["sum by (c) (rate(a[5m]))", "b"]),
        ('a{x=" and > 1"} - b < 0', ['a{x=" and > 1"} - b']),
        ("sum(a > 2)", ["sum(a > 2)"]),
        ("(a) + (b) > 0", ["(a) + (b)"]),
        ("a > bool 1e-3", ["a"]),
    ],
)
def test_sides_returns_the_series_compared_by_an_alert(expression: str, expected: list[str]) -> None:
    assert sides(expression) == expected
