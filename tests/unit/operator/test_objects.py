"""Builders: YAML in, YAML out. `MIGRATORY_REWRITE=1 pytest tests/unit/operator` writes what they make now."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from migratory_operator import names
from migratory_operator.names import Object, Owner
from migratory_operator.objects import desired, exposure
from migratory_operator.observe import key_of
from migratory_operator.settings import Settings
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import SETTINGS, cluster, readable

CASES = sorted((Path(__file__).parent / "cases").glob("*.in.yaml"))
assert CASES, "no cases were found"


def build(resource: Object, services: dict[str, Object] | None = None) -> list[Object]:
    asked, owner = read_cluster(resource), Owner.of(resource)
    urls = exposure.urls(asked, owner, services or {})
    return desired(asked, owner, SETTINGS, urls, {f"{owner.name}-broker-0"})


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name.removesuffix(".in.yaml"))
def test_a_cluster_becomes_these_objects(case: Path) -> None:
    given = yaml.safe_load(case.read_text())
    made = readable(build(given["cluster"], given.get("services")))
    expected = case.with_name(case.name.replace(".in.", ".out."))
    if os.environ.get("MIGRATORY_REWRITE"):
        expected.write_text(made)
    assert made == expected.read_text()


@pytest.mark.parametrize("name", ["m", "m" * 39, "m" * 40, "m-" * 19 + "mm"])
def test_every_name_leaves_room_for_what_kubernetes_adds(name: str) -> None:
    for thing in build(cluster(name=name)):
        made = thing["metadata"]["name"]
        assert len(made) <= 52
        assert not made.endswith("-")
        assert all(len(value) <= 63 for value in thing["metadata"]["labels"].values())


def test_two_clusters_with_nearly_the_same_name_share_nothing() -> None:
    first, second = (build(cluster(name="m" * 39 + last)) for last in "ab")
    assert {key_of(thing) for thing in first}.isdisjoint(key_of(thing) for thing in second)
    selectors = [[yaml.safe_dump(found) for thing in made for found in selectors_in(thing)] for made in (first, second)]
    assert selectors[0]
    assert set(selectors[0]).isdisjoint(selectors[1])


def selectors_in(node: object) -> Iterator[object]:
    if isinstance(node, dict):
        for key, value in node.items():
            if key in ("selector", "podSelector", "labelSelector", "matchLabels"):
                yield value
            else:
                yield from selectors_in(value)
    elif isinstance(node, list):
        for value in node:
            yield from selectors_in(value)


def test_everything_belongs_to_the_resource_and_is_found_by_its_labels() -> None:
    resource = cluster({"brokers": {"expose": {"type": "Template", "urlTemplate": "wss://{pod}.example.com/ws"}}})
    for thing in build(resource):
        assert Owner.of(resource).owns(thing)
        wanted = {**names.selector("quotes"), "app.kubernetes.io/managed-by": names.FIELD_MANAGER}
        assert wanted.items() <= thing["metadata"]["labels"].items()
        assert thing["metadata"]["namespace"] == "market"


def test_no_pod_has_a_privilege_or_a_writable_root() -> None:
    sets = [thing for thing in build(cluster()) if thing["kind"] == "StatefulSet"]
    assert len(sets) == 2
    for found in sets:
        spec = found["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for one in spec["containers"]:
            context = one["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("replicas", "copies", "budgets"), [(1, 1, 0), (2, 1, 1), (3, 2, 1)])
def test_one_broker_alone_has_no_disruption_budget(replicas: int, copies: int, budgets: int) -> None:
    spec = {"brokers": {"replicas": replicas}, "delivery": {"minCopies": copies}, "zookeeper": {"replicas": 1}}
    found = [thing for thing in build(cluster(spec)) if thing["kind"] == "PodDisruptionBudget"]
    assert len(found) == budgets
    assert all(thing["spec"]["maxUnavailable"] == 1 for thing in found)


def test_pods_are_made_anew_when_what_they_read_changes_and_not_otherwise() -> None:
    def hashes(spec: Object) -> list[str]:
        return [
            thing["spec"]["template"]["metadata"]["annotations"][names.CONFIG_HASH]
            for thing in build(cluster(spec))
            if thing["kind"] == "StatefulSet"
        ]

    usual = hashes({})
    assert hashes({"brokers": {"resources": {"requests": {"cpu": "1"}}}}) == usual
    changed = hashes({"limits": {"heartbeat": "5s"}})
    assert changed[0] == usual[0], "ZooKeeper does not read heartbeats"
    assert changed[1] != usual[1]


def test_with_an_ensemble_of_somebody_else_none_is_made() -> None:
    made = build(cluster({"zookeeper": {"external": "zk-0:2181,zk-1:2181"}}))
    assert not [thing for thing in made if "zookeeper" in thing["metadata"]["name"]]
    text = next(thing for thing in made if key_of(thing) == ("ConfigMap", "quotes-broker"))["data"]["broker.json"]
    assert '"servers": "zk-0:2181,zk-1:2181"' in text


@pytest.mark.parametrize(
    ("expose", "service", "url"),
    [
        ({"type": "None"}, {}, "ws://quotes-broker-0.quotes-broker.market.svc:8080/ws"),
        (
            {"type": "Template", "urlTemplate": "wss://{pod}.q.example.com/ws"},
            {},
            "wss://quotes-broker-0.q.example.com/ws",
        ),
        (
            {"type": "NodePort", "host": "10.1.2.3"},
            {"spec": {"ports": [{"nodePort": 31000}]}},
            "ws://10.1.2.3:31000/ws",
        ),
        (
            {"type": "NodePort", "host": "fd00::1"},
            {"spec": {"ports": [{"nodePort": 31000}]}},
            "ws://[fd00::1]:31000/ws",
        ),
        ({"type": "NodePort", "host": "10.1.2.3"}, {"spec": {"ports": [{}]}}, None),
        (
            {"type": "LoadBalancer"},
            {"spec": {}, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}},
            "ws://192.0.2.1:8080/ws",
        ),
        (
            {"type": "LoadBalancer"},
            {"spec": {}, "status": {"loadBalancer": {"ingress": [{"hostname": "lb.example.com", "ip": ""}]}}},
            "ws://lb.example.com:8080/ws",
        ),
        ({"type": "LoadBalancer"}, {"spec": {}, "status": {"loadBalancer": {}}}, None),
    ],
)
def test_a_brokers_url_is_what_its_clients_can_reach(expose: Object, service: Object, url: str | None) -> None:
    resource = cluster({"brokers": {"expose": expose}})
    found = exposure.urls(read_cluster(resource), Owner.of(resource), {"quotes-broker-0": service})
    assert found.get("quotes-broker-0") == url


def test_without_all_addresses_there_are_no_brokers_yet_but_everything_else() -> None:
    made = {key_of(thing) for thing in build(cluster({"brokers": {"expose": {"type": "LoadBalancer"}}}))}
    assert ("StatefulSet", "quotes-broker") not in made
    assert {("Service", "quotes-broker-2"), ("StatefulSet", "quotes-zookeeper")} <= made


def test_zookeeper_s_members_are_reached_by_the_operator_of_this_namespace_alone() -> None:
    asked, owner = read_cluster(cluster()), Owner.of(cluster())

    def clients(settings: Settings) -> list[Object]:
        made = desired(asked, owner, settings, exposure.urls(asked, owner, {}), frozenset())
        policy = next(one for one in made if key_of(one) == ("NetworkPolicy", "quotes-zookeeper"))
        return list(policy["spec"]["ingress"][0]["from"])

    brokers_and_members = clients(SETTINGS)
    assert [set(one) for one in brokers_and_members] == [{"podSelector"}, {"podSelector"}]
    inside = replace(SETTINGS, own_namespace="migratory-system")
    assert clients(inside) == [
        *brokers_and_members,
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "migratory-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "migratory-operator"}},
        },
    ]
