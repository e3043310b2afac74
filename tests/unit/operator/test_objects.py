"""Builders of a cluster's Kubernetes objects: rules for names, labels, privileges, configuration hashes and URLs, and
whole clusters compared with expected YAML files (`MIGRATORY_REWRITE=1 pytest tests/unit/operator` rewrites them)."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from migratory_operator import names
from migratory_operator.names import Object, ResourceOwner
from migratory_operator.objects import desired, exposure
from migratory_operator.reconcile.observed import key_of
from migratory_operator.settings import OperatorSettings
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import SETTINGS, cluster, readable

CASES = sorted((Path(__file__).parent / "cases").glob("*.in.yaml"))
assert CASES, "no cases were found"


def build(resource: Object, services: dict[str, Object] | None = None) -> list[Object]:
    spec_cluster, owner = read_cluster(resource), ResourceOwner.of(resource)
    urls = exposure.urls(spec_cluster, owner, services or {})
    return desired(spec_cluster, owner, SETTINGS, urls, {f"{owner.name}-broker-0"})


@pytest.mark.parametrize("case", CASES, ids=lambda path: path.name.removesuffix(".in.yaml"))
def test_a_cluster_is_built_as_expected(case: Path) -> None:
    given = yaml.safe_load(case.read_text())
    built = readable(build(given["cluster"], given.get("services")))
    expected = case.with_name(case.name.replace(".in.", ".out."))
    if os.environ.get("MIGRATORY_REWRITE"):
        expected.write_text(built)
    assert built == expected.read_text()


@pytest.mark.parametrize("name", ["m", "m" * 39, "m" * 40, "m-" * 19 + "mm"])
def test_names_leave_room_for_suffixes_of_kubernetes(name: str) -> None:
    for item in build(cluster(name=name)):
        built = item["metadata"]["name"]
        assert len(built) <= 52
        assert not built.endswith("-")
        assert all(len(value) <= 63 for value in item["metadata"]["labels"].values())


def test_clusters_with_similar_names_share_no_object_and_no_selector() -> None:
    first, second = (build(cluster(name="m" * 39 + last)) for last in "ab")
    assert {key_of(item) for item in first}.isdisjoint(key_of(item) for item in second)
    selectors = [
        [yaml.safe_dump(result) for item in built for result in selectors_in(item)] for built in (first, second)
    ]
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


def test_every_object_has_owner_and_labels() -> None:
    resource = cluster({"brokers": {"expose": {"type": "Template", "urlTemplate": "wss://{pod}.example.com/ws"}}})
    for item in build(resource):
        assert ResourceOwner.of(resource).owns(item)
        wanted = {**names.selector("quotes"), "app.kubernetes.io/managed-by": names.FIELD_MANAGER}
        assert wanted.items() <= item["metadata"]["labels"].items()
        assert item["metadata"]["namespace"] == "market"


def test_pods_have_no_privileges_and_no_writable_root() -> None:
    sets = [item for item in build(cluster()) if item["kind"] == "StatefulSet"]
    assert len(sets) == 2
    for result in sets:
        spec = result["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"] is True
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        for entry in spec["containers"]:
            context = entry["securityContext"]
            assert context["readOnlyRootFilesystem"] is True
            assert context["allowPrivilegeEscalation"] is False
            assert context["capabilities"] == {"drop": ["ALL"]}


@pytest.mark.parametrize(("replicas", "copies", "budgets"), [(1, 1, 0), (2, 1, 1), (3, 2, 1)])
def test_a_single_broker_has_no_disruption_budget(replicas: int, copies: int, budgets: int) -> None:
    spec = {"brokers": {"replicas": replicas}, "delivery": {"minCopies": copies}, "zookeeper": {"replicas": 1}}
    result = [item for item in build(cluster(spec)) if item["kind"] == "PodDisruptionBudget"]
    assert len(result) == budgets
    assert all(item["spec"]["maxUnavailable"] == 1 for item in result)


def test_the_hash_changes_only_with_the_configuration_that_pods_read() -> None:
    def hashes(spec: Object) -> list[str]:
        return [
            item["spec"]["template"]["metadata"]["annotations"][names.CONFIG_HASH]
            for item in build(cluster(spec))
            if item["kind"] == "StatefulSet"
        ]

    usual = hashes({})
    assert hashes({"brokers": {"resources": {"requests": {"cpu": "1"}}}}) == usual
    addresses = {"connections": 9, "exempt": ["10.0.0.0/8"]}  # applied by running brokers
    rates = {"publicationsPerSecond": 9}
    assert hashes({"limits": {"addresses": addresses, "clients": rates, "identities": rates}}) == usual
    assert hashes({"brokers": {"weights": {"quotes-broker-0": 20}}}) == usual
    changed = hashes({"limits": {"heartbeat": "5s"}})
    assert changed[0] == usual[0], "ZooKeeper does not read heartbeats"
    assert changed[1] != usual[1]


def test_an_external_ensemble_is_not_built() -> None:
    built = build(cluster({"zookeeper": {"external": "zk-0:2181,zk-1:2181"}}))
    assert not [item for item in built if "zookeeper" in item["metadata"]["name"]]
    text = next(item for item in built if key_of(item) == ("ConfigMap", "quotes-broker"))["data"]["broker.json"]
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
def test_a_brokers_url_depends_on_its_exposure(expose: Object, service: Object, url: str | None) -> None:
    resource = cluster({"brokers": {"expose": expose}})
    result = exposure.urls(read_cluster(resource), ResourceOwner.of(resource), {"quotes-broker-0": service})
    assert result.get("quotes-broker-0") == url


def test_without_all_addresses_only_the_brokers_are_missing() -> None:
    built = {key_of(item) for item in build(cluster({"brokers": {"expose": {"type": "LoadBalancer"}}}))}
    assert ("StatefulSet", "quotes-broker") not in built
    assert {("Service", "quotes-broker-2"), ("StatefulSet", "quotes-zookeeper")} <= built


def test_only_the_operator_of_its_namespace_may_reach_zookeeper() -> None:
    spec_cluster, owner = read_cluster(cluster()), ResourceOwner.of(cluster())

    def clients(settings: OperatorSettings) -> list[Object]:
        built = desired(spec_cluster, owner, settings, exposure.urls(spec_cluster, owner, {}), frozenset())
        policy = next(entry for entry in built if key_of(entry) == ("NetworkPolicy", "quotes-zookeeper"))
        return list(policy["spec"]["ingress"][0]["from"])

    brokers_and_members = clients(SETTINGS)
    assert [set(entry) for entry in brokers_and_members] == [{"podSelector"}, {"podSelector"}]
    inside = replace(SETTINGS, own_namespace="migratory-system")
    assert clients(inside) == [
        *brokers_and_members,
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "migratory-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "migratory-operator"}},
        },
    ]


def broker_rules(settings: OperatorSettings) -> dict[int, Object]:
    """Return the rules of the brokers' network policy, by port."""
    spec_cluster, owner = read_cluster(cluster()), ResourceOwner.of(cluster())
    built = desired(spec_cluster, owner, settings, exposure.urls(spec_cluster, owner, {}), frozenset())
    policy = next(entry for entry in built if key_of(entry) == ("NetworkPolicy", "quotes-broker"))
    assert policy["spec"]["policyTypes"] == ["Ingress"]
    return {port["port"]: rule for rule in policy["spec"]["ingress"] for port in rule["ports"]}


def test_only_the_operator_and_monitors_may_reach_the_administration() -> None:
    monitors = (("monitoring", ""), ("watch", "app.kubernetes.io/name=prometheus"))
    rules = broker_rules(replace(SETTINGS, own_namespace="migratory-system", monitors=monitors))
    assert rules[names.ADMIN_PORT]["from"] == [
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "migratory-system"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "migratory-operator"}},
        },
        {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}},
        {
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "watch"}},
            "podSelector": {"matchLabels": {"app.kubernetes.io/name": "prometheus"}},
        },
    ]
    all_pods = broker_rules(replace(SETTINGS, monitors=(("*", ""),)))
    assert all_pods[names.ADMIN_PORT]["from"] == [{"namespaceSelector": {}}]
    # An empty list of sources would open the port to all.
    assert names.ADMIN_PORT not in broker_rules(SETTINGS)


def test_only_brokers_may_reach_the_peers_port_and_everybody_the_clients_port() -> None:
    rules = broker_rules(SETTINGS)
    assert rules[names.PEERS_PORT]["from"] == [{"podSelector": {"matchLabels": names.selector("quotes", names.BROKER)}}]
    assert "from" not in rules[names.CLIENTS_PORT]


def memory_limits(spec: Object) -> dict[str, str]:
    """Return the memory limits of the pods of brokers and ZooKeeper, by component."""
    return {
        item["metadata"]["name"].removeprefix("quotes-"): container["resources"]["limits"]["memory"]
        for item in build(cluster(spec))
        if item["kind"] == "StatefulSet"
        for container in item["spec"]["template"]["spec"]["containers"]
    }


@pytest.mark.parametrize(
    ("spec", "broker"),
    [
        ({}, "2816Mi"),
        ({"brokers": {"ioProcesses": 4}}, "3Gi"),
        ({"topics": {"cache": {"maxBytes": "4Gi"}}}, "8448Mi"),
        ({"limits": {"inputTotal": "1Gi", "queueTotal": "1Gi"}}, "5632Mi"),
        ({"security": {"tls": {"clients": {"secretName": "certificate"}}}}, "3Gi"),
        ({"brokers": {"resources": {"limits": {"memory": "1Gi"}}}}, "1Gi"),
        ({"brokers": {"resources": {"limits": {"cpu": "2"}}}}, "2816Mi"),
        ({"brokers": {"resources": {"requests": {"memory": "5G"}}}}, "5G"),
    ],
)
def test_pods_have_a_memory_limit_for_what_brokers_may_hold(spec: Object, broker: str) -> None:
    assert memory_limits(spec) == {"broker": broker, "zookeeper": "512Mi"}


def test_certificates_are_mounted_and_change_the_urls() -> None:
    """Their files are read again by the brokers: a rewritten Secret restarts no pod."""
    tls = {"clients": {"secretName": "quotes-clients"}, "peers": {"secretName": "quotes-peers"}}
    built = build(cluster(spec={"security": {"tls": tls}}))
    (brokers,) = [
        item for item in built if item["kind"] == "StatefulSet" and item["metadata"]["name"].endswith("broker")
    ]
    pod = brokers["spec"]["template"]["spec"]
    secrets = [volume["secret"] for volume in pod["volumes"] if volume["name"].startswith("tls-")]
    assert secrets == [
        {"secretName": "quotes-clients", "defaultMode": 0o440},
        {"secretName": "quotes-peers", "defaultMode": 0o440},
    ]
    mounts = [mount["mountPath"] for mount in pod["containers"][0]["volumeMounts"]]
    assert mounts[-2:] == ["/etc/migratory-tls/clients", "/etc/migratory-tls/peers"]
    (data,) = [item["data"] for item in built if item["kind"] == "ConfigMap" and "broker.json" in item["data"]]
    assert json.loads(data["broker.json"])["tls"] == {
        "clients": {"cert": "/etc/migratory-tls/clients/tls.crt", "key": "/etc/migratory-tls/clients/tls.key"},
        "peers": {
            "cert": "/etc/migratory-tls/peers/tls.crt",
            "key": "/etc/migratory-tls/peers/tls.key",
            "ca": "/etc/migratory-tls/peers/ca.crt",
        },
    }
    assert {value.partition(":")[0] for name, value in data.items() if name.startswith("url.")} == {"wss"}


def test_certificate_for_an_external_zookeeper_is_mounted() -> None:
    spec = {
        "zookeeper": {"external": "zk:2281"},
        "security": {"tls": {"zookeeper": {"secretName": "quotes-zookeeper-tls"}}},
    }
    data = next(
        item["data"]
        for item in build(cluster(spec=spec))
        if item["kind"] == "ConfigMap" and "broker.json" in item["data"]
    )
    folder = "/etc/migratory-tls/zookeeper"
    certificate = {"cert": f"{folder}/tls.crt", "key": f"{folder}/tls.key", "ca": f"{folder}/ca.crt"}
    assert json.loads(data["broker.json"])["tls"] == {"zookeeper": certificate}


def test_own_ensemble_with_tls_has_no_port_without_it() -> None:
    """The port of the readiness probe listens inside of the pod alone."""
    built = build(cluster(spec={"security": {"tls": {"zookeeper": {"secretName": "quotes-zookeeper-tls"}}}}))
    by_key = {key_of(item): item for item in built}
    settings = by_key["ConfigMap", "quotes-zookeeper"]["data"]["zoo.cfg"].splitlines()
    assert {
        "clientPort=2181",
        "clientPortAddress=127.0.0.1",
        "secureClientPort=2281",
        "sslQuorum=true",
        "fips-mode=false",
        "ssl.keyStore.location=/run/zookeeper-tls/member.pem",
        "ssl.trustStore.location=/run/zookeeper-tls/ca.crt",
        "ssl.quorum.keyStore.location=/run/zookeeper-tls/member.pem",
        "ssl.quorum.trustStore.location=/run/zookeeper-tls/ca.crt",
    } <= set(settings)
    pod = by_key["StatefulSet", "quotes-zookeeper"]["spec"]["template"]["spec"]
    (member,) = pod["containers"]
    assert {entry["name"]: entry["containerPort"] for entry in member["ports"]}["zookeeper"] == 2281
    mounts = {mount["mountPath"]: mount["name"] for mount in member["volumeMounts"]}
    volumes = {volume["name"]: volume for volume in pod["volumes"]}
    assert volumes[mounts["/etc/zookeeper-tls"]]["secret"] == {
        "secretName": "quotes-zookeeper-tls",
        "defaultMode": 0o440,
    }
    assert volumes[mounts["/run/zookeeper-tls"]]["emptyDir"]["medium"] == "Memory"
    ports = {entry["name"]: entry["port"] for entry in by_key["Service", "quotes-zookeeper"]["spec"]["ports"]}
    assert ports == {"zookeeper": 2281, "quorum": 2888, "election": 3888}
    policy = by_key["NetworkPolicy", "quotes-zookeeper"]["spec"]["ingress"]
    assert [[entry["port"] for entry in rule["ports"]] for rule in policy] == [[2281], [2888, 3888]]
    config = json.loads(by_key["ConfigMap", "quotes-broker"]["data"]["broker.json"])
    assert {server.rpartition(":")[2] for server in config["zookeeper"]["servers"].split(",")} == {"2281"}
    assert config["tls"]["zookeeper"]["ca"] == "/etc/migratory-tls/zookeeper/ca.crt"


def test_administration_with_tls_is_probed_and_scraped_with_it() -> None:
    digest = "0" * 64
    security = {"tls": {"administration": {"secretName": "quotes-admin"}}, "administration": {"tokens": [digest]}}
    built = build(cluster(spec={"security": security}))
    pod = next(item for item in built if item["kind"] == "StatefulSet" and item["metadata"]["name"] == "quotes-broker")[
        "spec"
    ]["template"]["spec"]
    probes = [pod["containers"][0][name]["httpGet"] for name in ("readinessProbe", "livenessProbe")]
    assert [(probe["path"], probe["scheme"]) for probe in probes] == [("/readyz", "HTTPS"), ("/healthz", "HTTPS")]
    monitor = next(item for item in built if item["kind"] == "ServiceMonitor")
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["scheme"] == "https"
    assert endpoint["tlsConfig"] == {
        "ca": {"secret": {"name": "quotes-admin", "key": "ca.crt"}},
        "serverName": "quotes-broker",
    }
    data = next(item["data"] for item in built if item["kind"] == "ConfigMap" and "broker.json" in item["data"])
    config = json.loads(data["broker.json"])
    folder = "/etc/migratory-tls/administration"
    assert config["tls"] == {"administration": {"cert": f"{folder}/tls.crt", "key": f"{folder}/tls.key"}}
    assert config["administration"] == {"tokens": [digest]}


def test_password_for_zookeeper_is_mounted_and_in_no_configuration() -> None:
    user = {"passwordSecret": {"name": "quotes-zookeeper", "key": "password"}, "protect": False}
    built = build(cluster(spec={"security": {"zookeeper": user}}))
    (brokers,) = [
        item for item in built if item["kind"] == "StatefulSet" and item["metadata"]["name"].endswith("broker")
    ]
    pod = brokers["spec"]["template"]["spec"]
    assert [volume["secret"] for volume in pod["volumes"] if "secret" in volume] == [
        {"secretName": "quotes-zookeeper", "defaultMode": 0o440}
    ]
    (data,) = [item["data"] for item in built if item["kind"] == "ConfigMap" and "broker.json" in item["data"]]
    assert json.loads(data["broker.json"])["zookeeper"]["credentials"] == {
        "user": "migratory",
        "passwordFile": "/etc/migratory-secrets/quotes-zookeeper/password",
        "protect": False,
    }


def test_secrets_of_tokens_are_mounted_and_read_from_there() -> None:
    tokens = {
        "keys": [
            {"algorithms": ["RS256"], "secret": {"name": "jwt", "key": "keys.json"}},
            {"algorithms": ["HS256"], "secret": {"name": "jwt", "key": "hmac"}},
        ],
        "revokedSecret": {"name": "revoked", "key": "list.json"},
    }
    built = build(cluster({"security": {"tokens": tokens}}))
    files = next(item["data"] for item in built if item["kind"] == "ConfigMap" and "broker.json" in item["data"])
    read = json.loads(files["broker.json"])["security"]["tokens"]
    assert [source["file"] for source in read["keys"]] == [
        "/etc/migratory-secrets/jwt/keys.json",
        "/etc/migratory-secrets/jwt/hmac",
    ]
    assert read["revoked"] == "/etc/migratory-secrets/revoked/list.json"
    sets = [item for item in built if item["kind"] == "StatefulSet" and "broker" in item["metadata"]["name"]]
    pod = sets[0]["spec"]["template"]["spec"]
    volumes = {volume["name"]: volume["secret"]["secretName"] for volume in pod["volumes"] if "secret" in volume}
    assert sorted(volumes.values()) == ["jwt", "revoked"]
    mounts = {mount["name"]: mount for mount in pod["containers"][0]["volumeMounts"]}
    for name, secret in volumes.items():
        assert mounts[name]["mountPath"] == f"/etc/migratory-secrets/{secret}"
        assert mounts[name]["readOnly"]
