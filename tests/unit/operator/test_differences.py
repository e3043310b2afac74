"""Comparison of wanted and live objects: what the operator owns is compared, and foreign entries are named."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_operator.names import FIELD_MANAGER, Object
from migratory_operator.reconcile.differences import differs, first_difference, foreign_fields
from migratory_testing.kubernetes import field_tree


def applied(live: Object, owned: Object, *others: Object) -> Object:
    """Return a live object of which the operator has applied `owned`, and other writers have set `others`."""
    managers = [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": field_tree(owned)}]
    managers += [{"manager": "kubectl-edit", "operation": "Update", "fieldsV1": field_tree(one)} for one in others]
    return {**live, "metadata": {"managedFields": managers}}


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
        # lists of entries with a name: in any order, and whatever others add
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "A", "value": "1"}, {"name": "B"}]}, None),
        ({"env": [{"name": "A"}, {"name": "B"}]}, {"env": [{"name": "B"}, {"name": "A"}]}, None),
        ({"env": [{"name": "A", "value": "1"}]}, {"env": [{"name": "B"}, {"name": "A"}]}, ".env[name=A].value"),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "B"}]}, ".env[name=A]"),
        (
            {"env": [{"name": "A", "value": "1"}]},
            {"env": [{"name": "A", "value": "1"}, {"name": "A", "value": "2"}]},
            ".env[name=A].value",
        ),
    ],
)
def test_the_path_of_the_first_difference_is_returned(wanted: Any, live: Any, path: str | None) -> None:
    present = applied(live, wanted)
    assert first_difference(wanted, present) == path
    assert differs(wanted, present) == (path is not None)


@pytest.mark.parametrize(
    ("wanted", "live", "path"),
    [
        ({"a": 1}, {"a": 1, "b": 2}, ".b"),
        ({"limits": {"memory": "1Gi"}}, {"limits": {"memory": "1Gi", "cpu": "1"}}, ".limits.cpu"),
        ({"env": [{"name": "A"}]}, {"env": [{"name": "A"}, {"name": "B"}]}, ".env[name=B]"),
    ],
)
def test_what_the_operator_owns_and_no_longer_wants_is_a_difference(wanted: Any, live: Any, path: str) -> None:
    assert first_difference(wanted, applied(live, live)) == path
    assert first_difference(wanted, applied(wanted, live)) is None, "it is gone already"


def test_values_of_a_set_are_compared_one_by_one() -> None:
    owned: Object = {"f:of": {"v:1": {}, "v:2": {}}}
    metadata = {"managedFields": [{"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": owned}]}
    assert first_difference({"of": [2, 1]}, {"metadata": metadata, "of": [1, 2, 3]}) is None
    assert first_difference({"of": [1]}, {"metadata": metadata, "of": [1, 2, 3]}) == ".of[2]"
    assert first_difference({"of": [1, 2, 4]}, {"metadata": metadata, "of": [1, 2]}) == ".of[4]"


def test_a_missing_object_and_one_that_was_never_applied_differ() -> None:
    assert differs({}, None)
    assert first_difference({"a": 1}, {"a": 1, "metadata": {}}) == "."


def test_foreign_entries_and_fields_of_the_spec_are_named() -> None:
    wanted = {"spec": {"containers": [{"name": "broker", "env": [{"name": "A", "value": "1"}]}]}}
    theirs = {
        "spec": {
            "hostNetwork": True,
            "containers": [{"name": "broker", "args": ["x"], "env": [{"name": "B", "value": "2"}]}],
        }
    }
    live = {
        "spec": {
            "hostNetwork": True,
            "dnsPolicy": "ClusterFirst",
            "containers": [
                {"name": "sidecar"},
                {
                    "name": "broker",
                    "args": ["x"],
                    "image": "by-default",
                    "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}],
                },
            ],
        }
    }
    found = {one.path: one.pointer for one in foreign_fields(wanted, applied(live, wanted, theirs))}
    assert found == {
        ".spec.hostNetwork": "/spec/hostNetwork",
        ".spec.containers[name=sidecar]": "/spec/containers/0",
        ".spec.containers[name=broker].args": "/spec/containers/1/args",
        ".spec.containers[name=broker].env[name=B]": "/spec/containers/1/env/1",
    }


def test_annotations_of_pods_are_not_foreign() -> None:
    wanted = {"spec": {"template": {"metadata": {"annotations": {"a": "1"}}}}}
    restarted = {"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "now"}}}}}
    assert foreign_fields(wanted, applied({**wanted}, wanted, restarted)) == []
