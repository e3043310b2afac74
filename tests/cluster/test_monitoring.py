"""A real Prometheus with the objects of the chart and the operator: what it scrapes, which alerts fire, and the
commands of the runbooks.

Helm installs an operator and a cluster in the namespace, so that the operator's series are scraped as well.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from migratory_node.chart import CHART, run_helm
from migratory_node.kubectl import Kubectl, Object
from migratory_node.paths import ROOT
from migratory_node.pods import BROKER_IMAGE, Pods
from migratory_node.prometheus import Prometheus, run_prometheus

pytestmark = [pytest.mark.own_operator, pytest.mark.timeout(600)]
NAME = "quotes"
BROKERS = [f"{NAME}-broker-{number}" for number in range(3)]
OPERATOR = "app.kubernetes.io/name=migratory-operator"
RULES = yaml.safe_load((ROOT / "manifests" / "monitoring" / "rules.yaml").read_text())["groups"]
NOWHERE = "nowhere.invalid/no/such:1"
SOON = (
    "MigratoryBrokerMissing",
    "MigratoryGroupsWithoutCoordinator",
    "MigratoryClusterNotReady",
    "MigratoryClusterDegraded",
    "MigratoryObjectiveNotMeasured",
)
"""Alerts whose waiting time the test shortens to 3 s, which the chart's values allow."""
SECURED = re.compile(r"migratory_(certificate|certificates|tls|not_allowed)_")
"""Metrics that brokers export only where `spec.security` has certificates or rules, which this cluster has not."""
VALUES = (
    "crds.upgrade=false,operator.resyncSeconds=2,networkPolicy.monitors={*}",
    "metrics.serviceMonitor.enabled=true,metrics.podMonitor.enabled=true,metrics.prometheusRule.enabled=true",
    ",".join(f"metrics.prometheusRule.for.{alert}=3s" for alert in SOON),
    f"cluster.create=true,cluster.name={NAME},cluster.spec.topics.groups=20,cluster.spec.zookeeper.replicas=1",
    "cluster.spec.brokers.drain.period=2s",
)


@pytest.fixture(scope="module")
def prometheus(no_operator: None, shared: Kubectl) -> Iterator[Prometheus]:
    """Run and yield a Prometheus, and let Helm install the chart with its operator, monitoring objects and a ready
    cluster of three."""
    tag = BROKER_IMAGE.rpartition(":")[2]
    sets = [part for values in VALUES for part in ("--set", values)]
    with run_prometheus(shared, objects=()) as found:
        run_helm(shared.kubeconfig, shared.namespace, "install", "own", str(CHART), "--skip-crds", "--wait",
                "--timeout=3m", *sets, "--set-string", f"image.tag={tag}")  # fmt: skip
        shared.wait_ready(NAME)
        yield found
        run_helm(shared.kubeconfig, shared.namespace, "uninstall", "own", "--wait", "--timeout=2m")


def load(kube: Kubectl, run: str, seconds: int) -> None:
    """Start publishers and subscribers for some seconds in a pod named `run`, whose metrics the PodMonitor selects."""
    Pods(kube).start(
        run, "bench", "run", "--server", f"ws://{NAME}-clients:8080/ws", "--subscribers", "30", "--topics", "10",
        "--rate", "5", "--publishers", "4", "--duration", str(seconds), "--warmup", "1", "--workers", "1",
        "--cluster", NAME, "--metrics-listen", "0.0.0.0:9100", "--scrape-interval", "20",
        ports=[{"name": "metrics", "containerPort": 9100}],
    )  # fmt: skip
    kube("label", "pod", run, "migratory.dev/metrics=clients")


def scraped(kube: Kubectl, prometheus: Prometheus, *pods: str) -> None:
    """Wait until Prometheus scrapes the pods, at most 180 s. A new monitor reaches Prometheus only when the kubelet
    updates its mounted files."""
    kube.until(lambda: set(pods) <= set(prometheus.up()), f"scrapes of {pods}", 180)


def names_in_docs() -> set[str]:
    """Return the names of the brokers' and clients' metrics in docs/reference/metrics.md, except those of I/O
    processes and of security."""
    text = (ROOT / "docs" / "reference" / "metrics.md").read_text()
    names = {name for row in re.findall(r"^\| (`.+?) \|", text, re.M) for name in re.findall(r"`([a-z_]+)", row)}
    return {name for name in names if not name.startswith("migratory_io_") and not SECURED.match(name)}


def names_in_use() -> set[str]:
    """Return the names of all metrics of this product and its processes that a rule, alert or panel queries, except
    those that a rule records."""
    panels = json.loads((ROOT / "manifests" / "monitoring" / "dashboard.json").read_text())["panels"]
    queries = [target["expr"] for panel in panels for target in panel.get("targets", [])]
    rules = [rule for group in RULES for rule in group["rules"]]
    queries += [rule["expr"] for rule in rules]
    recorded = {rule["record"] for rule in rules if "record" in rule}
    words = {word for query in queries for word in re.findall(r"[a-z]\w*(?::\w+)*", query)}
    return {
        word for word in words - recorded if re.match(r"(migratory|process)_\w+$", word) and not SECURED.match(word)
    }


def test_all_targets_are_scraped_and_every_documented_metric_is_exported(
    prometheus: Prometheus, shared: Kubectl
) -> None:
    (operator,) = [one["metadata"]["name"] for one in shared.list("pods", OPERATOR)]
    scraped(shared, prometheus, *BROKERS, operator)
    load(shared, "load", 20)
    scraped(shared, prometheus, "load")
    # Each broker once, under the cluster's name and in its namespace.
    count = f'count by (cluster, namespace) (migratory_member{{namespace="{shared.namespace}"}})'
    shared.until(lambda: prometheus.ask(count) == [({"cluster": NAME, "namespace": shared.namespace}, 3.0)], count, 60)
    known = f'migratory_operator_condition{{namespace="{shared.namespace}",cluster="{NAME}",type="Ready"}}'
    shared.until(lambda: prometheus.value(known) == 1, "the operator's word", 60)

    def received() -> bool:
        expected = prometheus.value("sum(migratory_expected_total)") or 0
        return 0 < expected == prometheus.value("sum(migratory_received_total)")

    shared.until(received, "all of the load", 90)
    exported = set(prometheus.names())
    for name in names_in_docs() | names_in_use():
        assert {name, f"{name}_count", f"{name}_bucket"} & exported, f"nobody exports {name}"
    began = prometheus.ask(f'process_start_time_seconds{{pod=~"{NAME}-broker-.*"}}')
    assert sorted(labels["pod"] for labels, _ in began) == BROKERS
    assert all(value > 1e9 for _, value in began)


def test_every_rule_is_loaded_and_can_be_evaluated(prometheus: Prometheus, shared: Kubectl) -> None:
    asked = sorted(rule.get("alert") or rule["record"] for group in RULES for rule in group["rules"])

    def healthy() -> bool:
        rules = prometheus.rules()
        assert [rule["lastError"] for rule in rules if rule.get("lastError")] == []
        return sorted(rule["name"] for rule in rules if rule["health"] == "ok") == asked

    shared.until(healthy, "every rule evaluated", 60)
    # A machine that other modules use may deliver late.
    assert set(prometheus.firing_now()) <= {"MigratoryBudgetBurns"}


def fires(kube: Kubectl, prometheus: Prometheus, alert: str, **labels: str) -> None:
    """Wait until the alert fires with these labels. Check that all its firing series have the same annotations, and
    that their runbook URL names an existing section."""
    kube.until(lambda: prometheus.firing(alert, **labels), f"{alert} fires", 120)
    (told,) = {
        json.dumps(one["annotations"], sort_keys=True)
        for one in prometheus.alerts()
        if one["state"] == "firing" and labels.items() <= one["labels"].items() and one["labels"]["alertname"] == alert
    }
    page, _, section = json.loads(told)["runbook_url"].partition("#")
    headings = re.findall(r"^## (\w+)", (ROOT / page).read_text(), re.M)
    assert section in [heading.lower() for heading in headings]


def clears(kube: Kubectl, prometheus: Prometheus, *alerts: str) -> None:
    kube.until(lambda: not [one for alert in alerts for one in prometheus.firing(alert)], f"{alerts} clear", 120)


def test_alerts_for_a_missing_broker_fire_until_it_is_back(prometheus: Prometheus, shared: Kubectl) -> None:
    kube = shared
    kube.patch("mgc", NAME, {"spec": {"brokers": {"image": NOWHERE}}})
    alerts = ("MigratoryBrokerMissing", "MigratoryClusterDegraded")
    for alert in alerts:
        fires(kube, prometheus, alert, namespace=kube.namespace, cluster=NAME)
    assert kube.condition(NAME, "Degraded")[1] in {"ErrImagePull", "ImagePullBackOff"}
    kube.patch("mgc", NAME, {"spec": {"brokers": {"image": None}}})
    kube.wait_ready(NAME)
    clears(kube, prometheus, *alerts)


def test_the_alert_for_uncoordinated_groups_fires_until_zookeeper_is_back(
    prometheus: Prometheus, shared: Kubectl
) -> None:
    kube = shared
    kube.patch("mgc", NAME, {"spec": {"zookeeper": {"image": NOWHERE}}})
    kube("delete", "pod", f"{NAME}-zookeeper-0", "--grace-period=0", "--force")
    kube.until(lambda: kube.condition(NAME, "CoordinationAvailable") == ("False", "NoQuorum"), "no quorum", 90)
    brokers = (kube.get("mgc", NAME) or {})["status"]["brokers"]
    victim = max(brokers, key=lambda one: int(one.get("coordinators", 0)))["name"]
    kube("delete", "pod", victim, "--grace-period=0", "--force")
    fires(kube, prometheus, "MigratoryGroupsWithoutCoordinator", cluster=NAME)
    fires(kube, prometheus, "MigratoryClusterNotReady", namespace=kube.namespace, cluster=NAME)
    kube.patch("mgc", NAME, {"spec": {"zookeeper": {"image": None}}})
    kube.wait_ready(NAME)
    clears(kube, prometheus, "MigratoryGroupsWithoutCoordinator", "MigratoryClusterNotReady")


MADE_UP = """
import http.server, pathlib, time
now, good, bad, scrapes = time.monotonic(), 0.0, 0.0, 0
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        global now, good, bad, scrapes
        scrapes += 1
        mode, before, now = pathlib.Path("/tmp/mode").read_text().strip(), now, time.monotonic()
        if mode == "bad":
            bad += 500 * (now - before)
        else:
            good += 50_000 * (now - before)
        labels = 'cluster="made-up",broker="b0",clock="same",phase="live"'
        body = (
            f'migratory_delivery_latency_seconds_bucket{{{labels},le="0.25"}} {good}\\n'
            f'migratory_delivery_latency_seconds_bucket{{{labels},le="+Inf"}} {good + bad}\\n'
            f'migratory_delivery_latency_seconds_count{{{labels}}} {good + bad}\\n'
            f'migratory_expected_total{{cluster="made-up"}} {good + bad}\\n'
            f'migratory_lost_total{{cluster="made-up",broker="b0"}} {int(scrapes > 5)}\\n'
            f'migratory_duplicates_total{{cluster="made-up",broker="b0"}} 0\\n'
            f'migratory_reordered_total{{cluster="made-up",broker="b0"}} 0\\n'
            f'migratory_resume_seconds_count{{cluster="made-up",broker="b0"}} {good + bad}\\n'
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "text/plain; version=0.0.4")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
pathlib.Path("/tmp/mode").write_text("bad")
http.server.ThreadingHTTPServer(("", 9100), Handler).serve_forever()
"""
"""The Python code of an exporter with metrics of a load that misses its objectives, which no fault here causes.

While its mode is bad, deliveries are late or lost, and the histogram of resumes lacks the objective's bound.
"""


def test_the_burn_rate_alert_fires_until_deliveries_are_in_time(prometheus: Prometheus, shared: Kubectl) -> None:
    kube = shared
    Pods(kube).start("made-up", "-c", MADE_UP, command=["python3"], ports=[{"name": "metrics", "containerPort": 9100}])
    kube("label", "pod", "made-up", "migratory.dev/metrics=clients")
    fires(kube, prometheus, "MigratoryBudgetBurns", cluster="made-up", objective="fast", window="1h")
    fires(kube, prometheus, "MigratoryPromiseBroken", cluster="made-up")
    fires(kube, prometheus, "MigratoryObjectiveNotMeasured", cluster="made-up", objective="back")
    kube("exec", "made-up", "--", "sh", "-c", "echo good > /tmp/mode")
    kube.until(
        lambda: not prometheus.firing("MigratoryBudgetBurns", cluster="made-up", window="1h"), "the alert clears", 120
    )


def commands(page: Path) -> list[str]:
    return re.findall(r"^```sh\n(.*?)^```$", page.read_text(), re.M | re.S)


@pytest.mark.parametrize("page", ["alerts.md", "conditions.md", "reports.md"])
def test_every_command_of_the_runbooks_runs(prometheus: Prometheus, shared: Kubectl, page: str) -> None:
    blocks = commands(ROOT / "docs" / "operations" / page)
    assert len(blocks) > 10
    assert "NS=market NAME=quotes" in blocks[0]
    # Definitions of the first blocks apply to all others, as in one shell.
    known = "\n".join(line for block in blocks for line in block.splitlines() if re.match(r"export |\w+\(\) ", line))
    for block in blocks:
        script = f"{known}\nset -e\n{block}".replace("NS=market NAME=quotes", f"NS={shared.namespace} NAME={NAME}")
        result = subprocess.run(
            ["bash", "-o", "pipefail", "-c", script], env={**os.environ, "KUBECONFIG": str(shared.kubeconfig)},
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert result.returncode == 0, f"{block}\n{result.stdout}\n{result.stderr}"
        assert "not found" not in result.stderr, f"{block}\n{result.stderr}"


def objects(kube: Kubectl) -> list[Object]:
    return kube.list("servicemonitors,podmonitors,prometheusrules")


def test_a_service_monitor_is_restored_and_deleted_with_its_cluster(prometheus: Prometheus, shared: Kubectl) -> None:
    kube = shared
    names = {(one["kind"], one["metadata"]["name"]) for one in objects(kube)}
    assert names == {
        ("ServiceMonitor", f"{NAME}-broker"), ("ServiceMonitor", "own"), ("PodMonitor", "own-clients"),
        ("PrometheusRule", "own"),
    }  # fmt: skip
    monitor = f"{NAME}-broker"
    kube("delete", "servicemonitor", monitor)
    kube.until(lambda: kube.get("servicemonitor", monitor), "the monitor to come back", 60)
    kube("delete", "mgc", NAME, "--timeout=60s", limit=90)
    kube.until(lambda: kube.get("servicemonitor", monitor) is None, "no monitor without its cluster", 60)
