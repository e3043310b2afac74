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


def test_an_entry_that_only_the_operator_owns_is_not_foreign() -> None:
    """The plan that drops an entry of a list does not say that others have set it: the apply removes it. One that
    others own too, or that nobody owns, stays. Regression: each entry that was not wanted was foreign."""
    wanted = {"spec": {"volumes": [{"name": "data"}]}}
    live = {"spec": {"volumes": [{"name": name} for name in ("data", "tls", "shared", "stray")]}}
    ours = {"spec": {"volumes": [{"name": name} for name in ("data", "tls", "shared")]}}
    theirs = {"spec": {"volumes": [{"name": "shared"}]}}
    assert first_difference(wanted, applied(live, ours, theirs)) == ".spec.volumes[name=tls]"
    found = {one.path: one.pointer for one in foreign_fields(wanted, applied(live, ours, theirs))}
    assert found == {".spec.volumes[name=shared]": "/spec/volumes/2", ".spec.volumes[name=stray]": "/spec/volumes/3"}


def test_a_value_of_a_set_that_only_the_operator_owns_is_not_foreign() -> None:
    def manager(name: str, operation: str, *values: int) -> Object:
        tree: Object = {"f:spec": {"f:of": {f"v:{value}": {} for value in values}}}
        return {"manager": name, "operation": operation, "fieldsV1": tree}

    managers = [manager(FIELD_MANAGER, "Apply", 1, 2, 3), manager("kubectl-edit", "Update", 3, 4)]
    live = {"metadata": {"managedFields": managers}, "spec": {"of": [1, 2, 3, 4]}}
    assert [one.path for one in foreign_fields({"spec": {"of": [1]}}, live)] == [".spec.of[3]", ".spec.of[4]"]


def test_fields_and_lists_without_keys_are_foreign_only_if_others_own_them() -> None:
    live = {"spec": {"a": 1, "b": 2, "c": [1], "d": [2], "e": {"f": 1, "g": 2}}}
    ours = live
    theirs = {"spec": {"b": 2, "d": [2], "e": {"g": 2}}}
    found = [one.path for one in foreign_fields({"spec": {"e": {}}}, applied(live, ours, theirs))]
    assert found == [".spec.e.g", ".spec.b", ".spec.d"]
