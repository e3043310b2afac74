"""Edits of the operator's objects by others, against the API server's own record of owners: an applied object has no
difference, what the operator owns is put right, and what others add stays and is named.

The tests need an API server only, and no operator: they call the operator's comparison and its client.
"""

from __future__ import annotations

import asyncio
import copy
import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from kubernetes.aio.client import ApiClient
from kubernetes.aio.config import new_client_from_config
from kubernetes.aio.dynamic import DynamicClient
from kubernetes.aio.dynamic.exceptions import DynamicApiError
from migratory_node.kubectl import Kubectl
from migratory_operator.api.kubernetes import (
    KINDS_BY_NAME,
    OWNED_KINDS,
    ApiError,
    KubernetesApi,
    ResourceKind,
    load_configuration,
)
from migratory_operator.names import Object, ResourceOwner
from migratory_operator.objects import desired
from migratory_operator.reconcile.differences import first_difference, foreign_fields
from migratory_operator.reconcile.observed import key_of
from migratory_operator.settings import OperatorSettings
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import cluster

pytestmark = pytest.mark.timeout(600)
SETTINGS = OperatorSettings(
    broker_image="example/broker:1", zookeeper_image="example/zookeeper:1", own_namespace="system", pull_secrets=("p",)
)
SPECS: dict[str, Object] = {
    "default": {},
    "exposed": {
        "brokers": {
            "replicas": 5,
            "expose": {"type": "NodePort", "host": "192.0.2.7"},
            "resources": {"requests": {"cpu": "1000m", "memory": "2048Mi"}, "limits": {"cpu": 2, "memory": "4096Mi"}},
        },
        "zookeeper": {"storage": {"ephemeral": True}},
    },
}
LISTS = ResourceKind("tests.migratory.dev", "v1", "Listing", "listings")
"""A kind with a list of each sort, because no object of the operator has a set."""


def _list(sort: str, items: Object, *keys: str) -> Object:
    marks: Object = {"x-kubernetes-list-type": sort} | ({"x-kubernetes-list-map-keys": list(keys)} if keys else {})
    return {"type": "array", "items": items, **marks}


_ENTRY: Object = {
    "type": "object",
    "required": ["name", "number"],
    "properties": {"name": {"type": "string"}, "number": {"type": "integer"}, "text": {"type": "string"}},
}
LISTS_DEFINITION: Object = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": f"{LISTS.plural}.{LISTS.group}"},
    "spec": {
        "group": LISTS.group,
        "scope": "Namespaced",
        "names": {"kind": LISTS.kind, "plural": LISTS.plural, "singular": "listing"},
        "versions": [
            {
                "name": LISTS.version,
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {
                                "type": "object",
                                "properties": {
                                    "keyed": _list("map", _ENTRY, "name", "number"),
                                    "unique": _list("set", {"type": "string"}),
                                    "whole": _list("atomic", _ENTRY),
                                },
                            }
                        },
                    }
                },
            }
        ],
    },
}


@pytest.fixture(scope="module")
def place(kubeconfig: Path) -> Iterator[Kubectl]:
    """Create the kind with lists, and a namespace, and return kubectl for it."""
    everywhere = Kubectl(kubeconfig)
    name = f"test-{uuid.uuid4().hex[:8]}"
    everywhere("create", "namespace", name)
    everywhere("apply", "-f", "-", given=json.dumps(LISTS_DEFINITION))
    everywhere("wait", "--for=condition=Established", f"crd/{LISTS_DEFINITION['metadata']['name']}", "--timeout=30s")
    try:
        yield Kubectl(kubeconfig, name)
    finally:
        everywhere("delete", "crd", LISTS_DEFINITION["metadata"]["name"])
        everywhere("delete", "namespace", name, "--wait=false")


def wanted_objects(spec: Object, namespace: str) -> list[Object]:
    """Return the objects that the operator makes for a cluster. They have no owner, as there is none."""
    resource = cluster(spec)
    resource["metadata"]["namespace"] = namespace
    model = read_cluster(resource)
    urls = dict.fromkeys(model.broker_names, "ws://example.com/ws")
    built = desired(model, ResourceOwner.of(resource), SETTINGS, urls, frozenset(urls))
    found = [item for item in built if item["kind"] in {kind.kind for kind in OWNED_KINDS}]
    for item in found:
        del item["metadata"]["ownerReferences"]
    return found


def wanted_lists(namespace: str) -> Object:
    entries = [{"name": "a", "number": 1, "text": "x"}, {"name": "a", "number": 2}, {"name": "b", "number": 1}]
    return {
        "apiVersion": LISTS.api_version,
        "kind": LISTS.kind,
        "metadata": {"name": "lists", "namespace": namespace},
        "spec": {"keyed": entries, "unique": ["p", "q"], "whole": entries[:2]},
    }


class Server:
    """The API server, as the operator and as somebody else."""

    def __init__(self, kubeconfig: Path, namespace: str, discovery_cache: Path) -> None:
        self.namespace = namespace
        self._runner = asyncio.Runner()
        self._operator, self._http, self._somebody = self._runner.run(self._connect(kubeconfig, discovery_cache))

    async def _connect(self, kubeconfig: Path, discovery_cache: Path) -> tuple[KubernetesApi, ApiClient, DynamicClient]:
        http = await new_client_from_config(str(kubeconfig))
        operator = KubernetesApi((), await load_configuration(str(kubeconfig)))
        return operator, http, await DynamicClient(http, cache_file=str(discovery_cache))

    def close(self) -> None:
        self._runner.run(self._operator.close())
        self._runner.run(self._http.close())
        self._runner.close()

    def apply(self, wanted: Object) -> Object:
        return self._runner.run(self._operator.apply(_kind(wanted), wanted))

    def get(self, wanted: Object) -> Object:
        found = self._runner.run(self._operator.get(_kind(wanted), self.namespace, wanted["metadata"]["name"]))
        assert found is not None
        return found

    def remove_fields(self, wanted: Object, live: Object, pointers: list[str]) -> None:
        self._runner.run(self._operator.remove_fields(_kind(wanted), live, pointers))

    def remove_foreign(self, wanted: Object) -> None:
        """Remove the fields of others, as the next pass of the operator does if a controller writes meanwhile."""
        while foreign := foreign_fields(wanted, live := self.get(wanted)):
            try:
                self.remove_fields(wanted, live, [one.pointer for one in foreign])
            except ApiError as error:
                if error.code != 409:
                    raise

    def edit(self, wanted: Object, patch: list[Object]) -> bool:
        """Patch an object as somebody. Return whether the API server accepted that."""
        try:
            self._runner.run(self._patch(wanted, patch))
        except DynamicApiError as error:
            if error.status not in (400, 403, 422):
                raise
            return False
        return True

    async def _patch(self, wanted: Object, patch: list[Object]) -> None:
        resource = await self._somebody.resources.get(api_version=wanted["apiVersion"], kind=wanted["kind"])
        await resource.patch(
            body=patch,
            name=wanted["metadata"]["name"],
            namespace=self.namespace,
            content_type="application/json-patch+json",
            field_manager="somebody",
        )


def _kind(item: Object) -> ResourceKind:
    return {**KINDS_BY_NAME, LISTS.kind: LISTS}[item["kind"]]


def content(live: Object) -> Object:
    """Return an object without what the API server writes at each change, and without what controllers write."""
    metadata = {
        key: value
        for key, value in live["metadata"].items()
        if key not in ("managedFields", "resourceVersion", "generation")
    }
    return {**live, "metadata": metadata, "status": None}


def lists_of(node: Any, pointer: str = "") -> list[tuple[str, list[Any]]]:
    """Return all lists in an object, with their JSON pointers."""
    found: list[tuple[str, list[Any]]] = []
    if isinstance(node, dict):
        for name, value in node.items():
            found += lists_of(value, f"{pointer}/{name.replace('~', '~0').replace('/', '~1')}")
    elif isinstance(node, list):
        found.append((pointer, node))
        for index, value in enumerate(node):
            found += lists_of(value, f"{pointer}/{index}")
    return found


_KEPT = ("protocol", "whenUnsatisfiable", "valueFrom")


def foreign_entry(entry: Any) -> Any:
    """Return an entry like this one that has other keys."""
    if isinstance(entry, str):
        return f"{entry}x"
    if isinstance(entry, dict) and "mountPath" in entry:
        return {**entry, "mountPath": f"{entry['mountPath']}x"}
    if isinstance(entry, dict):
        return {name: value if name in _KEPT else _other(value) for name, value in entry.items()}
    return entry


def _other(value: Any) -> Any:
    if isinstance(value, str):
        return f"{value}x"
    return value + 1000 if isinstance(value, int) and not isinstance(value, bool) else value


@st.composite
def edits(draw: st.DrawFn, live: Object) -> tuple[str, list[Object]]:
    """Return what a JSON patch does with an entry of one of the object's lists, and the patch."""
    lists = [
        (pointer, entries)
        for pointer, entries in lists_of({"spec": live["spec"]})
        if entries and pointer != "/spec/clusterIPs"
    ]
    pointer, entries = draw(st.sampled_from(lists))
    index = draw(st.integers(0, len(entries) - 1))
    action = draw(st.sampled_from(["add", "remove", "change", "first"]))
    at = f"{pointer}/{index}"
    other = foreign_entry(entries[index])
    patch: dict[str, Object] = {
        "add": {"op": "add", "path": f"{pointer}/-", "value": other},
        "first": {"op": "add", "path": f"{pointer}/0", "value": other},
        "remove": {"op": "remove", "path": at},
        "change": {"op": "replace", "path": at, "value": other},
    }
    return f"{action} {at}", [patch[action]]


@pytest.fixture(scope="module")
def server(place: Kubectl, kubeconfig: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    found = Server(kubeconfig, str(place.namespace), tmp_path_factory.mktemp("client") / "discovery.json")
    yield found
    found.close()


@pytest.fixture(scope="module")
def objects(server: Server) -> list[Object]:
    """Apply the objects of two clusters and one with lists of each sort, and return what was applied. Where both
    clusters have an object, it is the second one's."""
    wanted = [*wanted_objects(SPECS["default"], server.namespace), wanted_lists(server.namespace)]
    for item in wanted_objects(SPECS["exposed"], server.namespace):
        # a StatefulSet can't lose its claims
        renamed = f"other-{item['metadata']['name']}"
        wanted.append({**item, "metadata": {**item["metadata"], "name": renamed}})
    for item in wanted:
        server.apply(item)
    return wanted


def test_an_applied_object_has_no_difference_and_nothing_foreign(server: Server, objects: list[Object]) -> None:
    assert {item["kind"] for item in objects} == {kind.kind for kind in (*OWNED_KINDS, LISTS)}
    for item in objects:
        live = server.get(item)
        assert first_difference(item, live) is None, key_of(item)
        assert foreign_fields(item, live) == [], key_of(item)


def test_there_is_a_difference_exactly_if_an_apply_changes_something(server: Server, objects: list[Object]) -> None:
    listing = [item for item in objects if lists_of(item.get("spec", {}))]
    seen: dict[str, int] = {}

    @settings(max_examples=150, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
              suppress_health_check=list(HealthCheck))  # fmt: skip
    @given(st.data())
    def check(data: st.DataObject) -> None:
        wanted = data.draw(st.sampled_from(listing), "object")
        server.remove_foreign(wanted)
        before = server.apply(wanted)
        assert (first_difference(wanted, before), foreign_fields(wanted, before)) == (None, [])
        done, patch = data.draw(edits(before), "edit")
        if not server.edit(wanted, patch):
            seen["rejected"] = seen.get("rejected", 0) + 1
            return
        edited = server.get(wanted)
        difference, foreign = first_difference(wanted, edited), foreign_fields(wanted, edited)
        try:
            applied = server.apply(wanted)
        except ApiError as error:
            if error.code != 422 or not foreign:
                raise
            server.remove_foreign(wanted)
            applied, foreign, outcome = server.apply(wanted), [], "removed"
        else:
            assert (difference is not None) == (content(applied) != content(edited)), (done, difference)
            outcome = "restored" if difference else "left" if foreign else "same"
        assert first_difference(wanted, applied) is None, done
        assert [one.path for one in foreign_fields(wanted, applied)] == [one.path for one in foreign], done
        seen[outcome] = seen.get(outcome, 0) + 1

    check()
    assert {"restored", "left"} <= set(seen), seen


def test_a_removal_from_an_object_that_changed_is_a_conflict(server: Server, objects: list[Object]) -> None:
    wanted = next(item for item in objects if key_of(item) == ("Service", "quotes-clients"))
    before = server.get(wanted)
    assert server.edit(wanted, [{"op": "add", "path": "/metadata/annotations", "value": {"somebody": "x"}}])
    with pytest.raises(ApiError) as raised:
        server.remove_fields(wanted, before, ["/spec/selector"])
    assert (raised.value.code, raised.value.is_permanent) == (409, False)
    server.remove_foreign(wanted)


def test_a_field_that_is_no_longer_wanted_is_removed(server: Server, objects: list[Object]) -> None:
    wanted = next(item for item in objects if key_of(item) == ("StatefulSet", "other-quotes-broker"))
    fewer = copy.deepcopy(wanted)
    container = fewer["spec"]["template"]["spec"]["containers"][0]
    del container["resources"]["limits"]["cpu"]
    container["env"].pop()
    server.remove_foreign(wanted)
    assert first_difference(fewer, server.apply(wanted)) is not None
    applied = server.apply(fewer)
    assert first_difference(fewer, applied) is None
    (live,) = applied["spec"]["template"]["spec"]["containers"]
    assert ("cpu" in live["resources"]["limits"], len(live["env"])) == (False, 1)
    server.apply(wanted)


def test_an_object_without_the_record_of_the_operator_is_applied_again(server: Server, objects: list[Object]) -> None:
    wanted = next(item for item in objects if key_of(item) == ("Service", "quotes-clients"))
    assert server.edit(wanted, [{"op": "replace", "path": "/metadata/managedFields", "value": [{}]}])
    assert first_difference(wanted, server.get(wanted)) == "."
    assert first_difference(wanted, server.apply(wanted)) is None
