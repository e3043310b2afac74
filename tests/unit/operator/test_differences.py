"""Comparison of wanted and live objects: only wanted fields count, and dropped empty values are equal."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_operator.reconcile.differences import differs, first_difference


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
        ({"resources": {"limits": {"memory": "1024Mi"}}}, {"resources": {"limits": {"memory": "1Gi"}}}, None),
        (
            {"c": [{"resources": {"requests": {"cpu": "1000m"}}}]},
            {"c": [{"resources": {"requests": {"cpu": "1"}}}]},
            None,
        ),
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {"cpu": "2"}}}, ".resources.limits.cpu"),
        ({"resources": {"limits": {"cpu": "1"}}}, {"resources": {"limits": {}}}, ".resources.limits.cpu"),
        ({"labels": {"size": "1000m"}}, {"labels": {"size": "1"}}, ".labels.size"),
    ],
)
def test_the_path_of_the_first_difference_is_returned(wanted: Any, live: Any, path: str | None) -> None:
    assert first_difference(wanted, live) == path
    assert differs(wanted, live) == (path is not None)


def test_a_missing_object_differs() -> None:
    assert differs({}, None)
