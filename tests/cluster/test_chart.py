"""The Helm chart: its output, its schema, and manifests/install, which is rendered from it.

The tests need helm, which `make cluster-test` builds from its Go module if it is missing, and no Kubernetes cluster.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from migratory_node import chart
from migratory_node.chart import CHART, INSTALL, KUBERNETES, WHOLE, helm, render_chart
from migratory_node.paths import ROOT, NodeError
from migratory_node.processes import run

Object = dict[str, Any]
MONITORED = "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true"


def objects(*arguments: str) -> dict[tuple[str, str], Object]:
    found = [thing for thing in yaml.safe_load_all(render_chart(*arguments)) if thing]
    return {(thing["kind"], thing["metadata"]["name"]): thing for thing in found}


def values(tmp_path: Path, given: Object) -> str:
    path = tmp_path / "values.yaml"
    path.write_text(yaml.safe_dump(given))
    return f"--values={path}"


def environment(made: dict[tuple[str, str], Object]) -> dict[str, str]:
    container = made["Deployment", "migratory"]["spec"]["template"]["spec"]["containers"][0]
    return {entry["name"]: entry.get("value", "") for entry in container["env"]} | {"image": container["image"]}


def test_the_install_manifests_are_rendered_from_the_chart() -> None:
    assert (INSTALL / "operator.yaml").read_text() == chart.operator(), "run `make manifests`"


def test_the_chart_passes_helm_lint() -> None:
    assert "0 chart(s) failed" in run([helm(), "lint", "--strict", KUBERNETES, str(CHART)])


def test_the_default_is_one_operator_with_a_role_in_its_namespace_and_no_cluster() -> None:
    made = objects("--no-hooks")
    assert set(made) == {
        ("ServiceAccount", "migratory"),
        ("Role", "migratory"),
        ("RoleBinding", "migratory"),
        ("Service", "migratory-metrics"),
        ("Deployment", "migratory"),
        ("NetworkPolicy", "migratory"),
    }
    assert environment(made)["MIGRATORY_NAMESPACES"] == "migratory-system"
    assert environment(made)["MIGRATORY_REPORTS_ENABLED"] == "false"
    spec = made["Deployment", "migratory"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (1, {"type": "Recreate"})


def verbs(rules: list[Object], resource: str) -> set[str]:
    return {verb for rule in rules if resource in rule["resources"] for verb in rule["verbs"]}


def test_the_operator_may_delete_and_evict_pods_but_not_make_or_change_them() -> None:
    rules = objects("--no-hooks")["Role", "migratory"]["rules"]
    assert verbs(rules, "pods/eviction") == {"create"}
    assert verbs(rules, "pods") == {"get", "list", "watch", "delete"}
    assert verbs(rules, "jobs") == {"get", "delete"}
    forbidden = {"pods/exec", "secrets", "nodes", "roles", "rolebindings", "*"}
    assert not [rule for rule in rules if forbidden & {*rule["resources"], *rule["verbs"]}]


def test_scope_cluster_and_reports_add_their_permissions() -> None:
    made = objects("--no-hooks", "--set", WHOLE)
    rules = made["ClusterRole", "migratory-system-migratory"]["rules"]
    assert ("ClusterRoleBinding", "migratory-system-migratory") in made
    assert environment(made)["MIGRATORY_NAMESPACES"] == ""
    assert environment(made)["MIGRATORY_REPORTS_ENABLED"] == "true"
    assert verbs(rules, "pods") == {"get", "list", "watch", "create", "delete"}
    assert verbs(rules, "jobs") == {"get", "create", "delete"}
    assert verbs(rules, "secrets") == {"get", "create"}
    assert verbs(rules, "roles") == {"create", "patch"}


def test_what_reports_may_use_comes_from_the_values(tmp_path: Path) -> None:
    given = {
        "allowedImages": ["a.example/*", "b:1"],
        "allowedPrometheus": ["http://p:9090", "https://*.q/x"],
        "podContent": True,
    }
    made = environment(objects(values(tmp_path, {"reports": given})))
    assert made["MIGRATORY_REPORTS_ALLOWED_IMAGES"] == "a.example/*,b:1"
    assert made["MIGRATORY_REPORTS_ALLOWED_PROMETHEUS"] == "http://p:9090,https://*.q/x"
    assert made["MIGRATORY_REPORTS_POD_CONTENT"] == "true"


def test_further_namespaces_get_a_role_each_and_nothing_is_cluster_wide() -> None:
    made = objects("--no-hooks", "--set", "operator.namespaces={a,b}")
    kinds = [kind for kind, _ in made]
    assert not [kind for kind in kinds if kind.startswith("Cluster")]
    roles = [thing for thing in yaml.safe_load_all(
        render_chart("--no-hooks", "--set", "operator.namespaces={a,b}")
    ) if thing and thing["kind"] == "Role"]  # fmt: skip
    assert [role["metadata"]["namespace"] for role in roles] == ["migratory-system", "a", "b"]
    assert environment(made)["MIGRATORY_NAMESPACES"] == "migratory-system,a,b"


def test_large_numbers_zeros_and_false_are_rendered_as_given(tmp_path: Path) -> None:
    spec = {
        "brokers": {"ioProcesses": 0},
        "topics": {"maxTopics": 1000000, "cache": {"maxBytes": 8388608}},
        "zookeeper": {"storage": {"ephemeral": False}},
    }
    by_file = render_chart(values(tmp_path, {"cluster": {"create": True, "spec": spec}}))
    sets = (
        "cluster.create=true,cluster.spec.brokers.ioProcesses=0,cluster.spec.topics.maxTopics=1000000,"
        "cluster.spec.topics.cache.maxBytes=8388608,cluster.spec.zookeeper.storage.ephemeral=false"
    )
    by_set = render_chart("--set", sets)
    for text in (by_file, by_set):
        assert "e+" not in text
        found = next(thing for thing in yaml.safe_load_all(text) if thing and thing["kind"] == "MigratoryCluster")
        assert found["spec"] == spec


def test_the_schema_of_the_spec_is_that_of_the_resource() -> None:
    assert (CHART / "values.schema.json").read_text() == chart.values_schema(), "run `make manifests`"


def test_a_standby_is_updated_one_by_one() -> None:
    spec = objects("--no-hooks", "--set", "operator.replicas=2")["Deployment", "migratory"]["spec"]
    assert (spec["replicas"], spec["strategy"]) == (2, {"type": "RollingUpdate"})


def test_an_installation_waits_for_its_cluster() -> None:
    made = objects("--set", "cluster.create=true,cluster.wait=60")
    job = made["Job", "migratory-wait"]
    assert job["metadata"]["annotations"]["helm.sh/hook"] == "post-install,post-upgrade"
    (container,) = job["spec"]["template"]["spec"]["containers"]
    assert container["command"][3:] == ["migratory-system", "migratory", "60"]
    assert made["Role", "migratory-wait"]["rules"] == [
        {
            "apiGroups": ["migratory.dev"],
            "resources": ["migratoryclusters"],
            "resourceNames": ["migratory"],
            "verbs": ["get"],
        }
    ]
    assert ("Job", "migratory-wait") not in objects("--set", "cluster.create=true,cluster.wait=0")
    assert ("Job", "migratory-wait") not in objects()


def test_disabled_parts_are_not_rendered() -> None:
    made = objects("--no-hooks", "--set", "metrics.enabled=false,networkPolicy.enabled=false")
    assert ("Service", "migratory-metrics") not in made
    assert ("NetworkPolicy", "migratory") not in made
    assert ("ConfigMap", "migratory-dashboard") not in made
    monitoring = {("ServiceMonitor", "migratory"), ("PodMonitor", "migratory-clients"), ("PrometheusRule", "migratory")}
    assert not monitoring & set(made)
    assert monitoring <= set(objects("--set", MONITORED))
    assert not monitoring & set(objects("--set", f"{MONITORED},metrics.enabled=false"))


def test_service_monitor_settings_apply_to_clusters_too(tmp_path: Path) -> None:
    given = {"enabled": True, "interval": "5s", "labels": {"release": "watch", "team": "market"}}
    made = objects("--no-hooks", values(tmp_path, {"metrics": {"serviceMonitor": given}}))
    own = made["ServiceMonitor", "migratory"]
    assert own["spec"]["endpoints"] == [{"port": "http", "honorLabels": True, "interval": "5s"}]
    assert own["metadata"]["labels"].items() >= given["labels"].items()  # type: ignore[attr-defined]
    told = environment(made)
    assert told["MIGRATORY_MONITOR_INTERVAL"] == "5s"
    assert told["MIGRATORY_MONITOR_LABELS"] == "release=watch,team=market"


def test_rules_are_those_of_the_manifests_except_for_overrides() -> None:
    given = yaml.safe_load((ROOT / "manifests" / "monitoring" / "rules.yaml").read_text())["groups"]
    assert objects("--set", MONITORED)["PrometheusRule", "migratory"]["spec"]["groups"] == given
    asked = f"{MONITORED},metrics.prometheusRule.for.MigratoryBrokerMissing=7s"
    made = objects("--set", asked, "--set", "metrics.prometheusRule.runbooks=https://example.com/x/")
    alerts = [
        rule
        for group in made["PrometheusRule", "migratory"]["spec"]["groups"]
        for rule in group["rules"]
        if "alert" in rule
    ]
    waits = {alert["alert"]: alert.get("for", "") for alert in alerts}
    before = {rule["alert"]: rule.get("for", "") for group in given for rule in group["rules"] if "alert" in rule}
    assert waits == {**before, "MigratoryBrokerMissing": "7s"}
    assert all(
        alert["annotations"]["runbook_url"].startswith("https://example.com/x/docs/operations/") for alert in alerts
    )


def test_an_override_of_an_unknown_alert_is_rejected() -> None:
    with pytest.raises(NodeError, match="there is no alert MigratoryBrokerMising; there are Migratory"):
        objects("--set", f"{MONITORED},metrics.prometheusRule.for.MigratoryBrokerMising=7s")


def test_the_dashboard_is_the_one_of_the_manifests() -> None:
    made = objects("--no-hooks", "--set", "metrics.dashboard.enabled=true")["ConfigMap", "migratory-dashboard"]
    assert made["metadata"]["labels"]["grafana_dashboard"] == "1"
    given = (ROOT / "manifests" / "monitoring" / "dashboard.json").read_text()
    assert json.loads(made["data"]["migratory.json"]) == json.loads(given)


@pytest.mark.parametrize("tag", ["20261016", "12e4567", "1.10", "v1"])
def test_a_tag_that_looks_like_a_number_keeps_its_text(tmp_path: Path, tag: str) -> None:
    by_file = objects(values(tmp_path, {"image": {"tag": tag}}))
    by_set = objects("--set-string", f"image.tag={tag}")
    for made in (by_file, by_set):
        assert environment(made)["image"] == f"migratory-operator:{tag}"
        assert environment(made)["MIGRATORY_BROKER_IMAGE"] == f"migratory-broker:{tag}"


@pytest.mark.parametrize(
    "given",
    [
        "image.tag=20261016",
        "image.pullPolicy=Sometimes",
        "metrics.enabled=yes",
        "operator.scope=everything",
        "operator.resyncSeconds=0",
        "cluster.name=Quotes",
        "no.such=value",
        "reports.allowedPrometheus={prometheus:9090}",
        "cluster.spec.brokers.replicas=three",
        "cluster.spec.brokers.replica=3",
        "cluster.spec.brokers.replicas=0",
        "cluster.spec.topics.cache.maxByte=8388608",
        "cluster.spec.security.tls.clients.secret=t",
    ],
)
def test_unknown_values_are_rejected_with_their_path(given: str) -> None:
    with pytest.raises(NodeError) as refused:
        render_chart("--set", given)
    path = given.partition("=")[0]
    assert path.split(".")[-1] in str(refused.value) or path.split(".")[0] in str(refused.value)


@pytest.mark.parametrize(
    "given",
    [
        {"image": {"tag": 20261016}},
        {"image": {"tag": 12e45}},
        {"image": {"tag": 1.1}},
        {"metrics": {"enabled": "false"}},
        {"cluster": {"spec": {"brokers": {"replicas": "0"}}}},
        {"cluster": {"spec": {"topics": {"maxTopics": "1000000"}}}},
    ],
)
def test_values_of_the_wrong_type_are_rejected(tmp_path: Path, given: Object) -> None:
    with pytest.raises(NodeError, match="values don't meet the specifications"):
        render_chart(values(tmp_path, given))


def test_the_readme_names_every_value() -> None:
    def paths(node: Object, path: str = "") -> list[str]:
        found = []
        for key, value in node.items():
            if isinstance(value, dict) and value:
                found += paths(value, f"{path}{key}.")
            else:
                found.append(f"{path}{key}")
        return found

    text = (CHART / "README.md").read_text()
    defaults = yaml.safe_load((CHART / "values.yaml").read_text())
    missing = [path for path in paths(defaults) if f"`{path}`" not in text]
    assert missing == [], "run `make manifests`"
