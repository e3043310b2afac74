"""Whether an object is as wanted: what is not wanted does not count, what the API leaves out is no difference."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_operator.differences import differs, first_difference


@pytest.mark.parametrize(
    ("wanted", "live", "path"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, None),
        ({"a": 1}, {"a": 2}, ".a"),
        ({"a": 1}, {"a": True}, ".a"),
        ({"a": {"b": "x"}}, {"a": {}}, ".a.b"),
        ({"a": {"b": "x"}}, {"a": 5}, ".a"),
        ({"a": {}}, {}, None),
        ({"a": []}, {}, None),
        ({"a": False, "b": 0, "c": ""}, {}, None),
        ({"a": False}, {"a": True}, ".a"),
        ({"a": [1, 2]}, {"a": [1, 2]}, None),
        ({"a": [1, 2]}, {"a": [2, 1]}, ".a[0]"),
        ({"a": [1]}, {"a": [1, 2]}, ".a"),
        ({"a": [{"b": 1}]}, {"a": [{"b": 1, "c": 2}]}, None),
        ({"a": ["x"]}, {"a": "x"}, ".a"),
    ],
)
def test_the_first_difference_is_named(wanted: Any, live: Any, path: str | None) -> None:
    assert first_difference(wanted, live) == path
    assert differs(wanted, live) == (path is not None)


def test_what_is_not_there_differs() -> None:
    assert differs({}, None)
