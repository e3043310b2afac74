"""Every query of the dashboard, and every operand of every alert, returns numbers from a real Prometheus that
scrapes a real cluster under load, in which one broker is killed. So no query names a metric, label or bucket that
nothing exports."""

from __future__ import annotations

import asyncio
import json
import math
import time
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

import pytest
import yaml
from migratory_loadtest import Load, LoadResult, Scenario
from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_local.metrics.prometheus import find_prometheus, prometheus_process
from migratory_local.processes.network import LOOPBACK, free_ports
from migratory_resources import MigratoryCluster
from migratory_spark.alerting.dashboard import dashboard
from migratory_spark.alerting.rules import rule_file
from migratory_testing.reports import EVERY_KIND
from promql_parser import BinaryExpr, Expr, NumberLiteral, ParenExpr, parse

SPLIT = {"and", "or", "unless", ">=", "<=", "==", "!=", ">", "<"}
"""Operators of PromQL whose operands the test queries one by one."""

pytestmark = [pytest.mark.real, pytest.mark.timeout(300)]

CLUSTER: dict[str, Any] = {
    "apiVersion": "migratory.dev/v1alpha1",
    "kind": "MigratoryCluster",
    "metadata": {"name": "watched"},
    "spec": {"zookeeper": {"replicas": 1}, "topics": {"groups": 8}},
}


def with_certificates(folder: Path) -> MigratoryCluster:
    """Return `CLUSTER` with certificates of its brokers for their peers in the folder, so that the metrics of
    certificates are exported."""
    names = MigratoryCluster.model_validate(CLUSTER).broker_names
    write_certificates(folder, DevelopmentAuthority(), names, LOOPBACK)
    files = {"cert": str(folder / "{broker}.crt"), "key": str(folder / "{broker}.key"), "ca": str(folder / "ca.crt")}
    return MigratoryCluster.model_validate(
        CLUSTER | {"spec": CLUSTER["spec"] | {"security": {"tls": {"peers": {"files": files}}}}}
    )


def ask(port: int, query: str) -> list[float]:
    """Return all values of the query in the last two minutes, one every 2 s for each series, including NaN. Raise
    urllib's HTTPError for a query that Prometheus refuses."""
    now = time.time()
    values = {"query": query, "start": now - 120, "end": now, "step": 2}
    url = f"http://{LOOPBACK}:{port}/api/v1/query_range?{urllib.parse.urlencode(values)}"
    with urllib.request.urlopen(url, timeout=20) as answer:
        document: dict[str, Any] = json.load(answer)
    return [float(value) for series in document["data"]["result"] for _, value in series["values"]]


def panel_queries() -> dict[str, str]:
    """Return the dashboard's queries by panel and legend. Their range is made as long as the whole run, so that
    single events are in it."""
    return {
        f"panel {panel['title']!r}, {target['legendFormat']}": target["expr"]
        .replace("$cluster", "watched")
        .replace("$__rate_interval", "5m")
        for panel in json.loads(dashboard())["panels"]
        for target in panel.get("targets", [])
    }


def rule_queries() -> dict[str, str]:
    """Return the expressions of the recording rules, and the operands of the alerts, by group and rule. Leave the
    operator's rules out, because no operator runs here (tests/cluster/test_monitoring.py has one)."""
    values = {}
    for group in yaml.safe_load(rule_file(EVERY_KIND))["groups"]:
        if group["name"] == "migratory-operator":
            continue
        for place, rule in enumerate(group["rules"]):
            if "record" in rule:
                values[f"{group['name']}[{place}] {rule['record']}"] = rule["expr"]
            else:
                for number, side in enumerate(sides(parse(rule["expr"]))):
                    values[f"{group['name']}[{place}] {rule['alert']}, side {number}"] = side
    return values


def sides(expression: Expr) -> list[str]:
    """Return the operands of set operators and comparisons, also within plain brackets, and without constant
    numbers: `a > 1 and b < 2` gives `a` and `b`."""
    match expression:
        case BinaryExpr() if str(expression.op) in SPLIT:
            return sides(expression.lhs) + sides(expression.rhs)
        case ParenExpr():
            return sides(expression.expr)
        case NumberLiteral():
            return []
    return [expression.prettify()]


def test_conditions_are_split_into_sides() -> None:
    condition = parse('(sum by (c) (rate(a{x=" and > 1"}[5m])) - b > 0) unless on (c) (d) or (e) + (f) > bool 1e-3')
    assert sides(condition) == ['sum by (c) (rate(a{x=" and > 1"}[5m])) - b', "d", "(e) + (f)"]


def silent(port: int, queries: dict[str, str], limit: float) -> dict[str, str]:
    """Return those of the queries, given by name, that have given no number within `limit` seconds."""
    deadline = time.monotonic() + limit
    while queries := {name: query for name, query in queries.items() if all(map(math.isnan, ask(port, query)))}:
        if time.monotonic() > deadline:
            break
        time.sleep(0.5)
    return queries


async def scraped_twice(port: int) -> None:
    """Wait until Prometheus has scraped every target twice since the call."""
    begun = time.monotonic()

    def scraped() -> bool:
        counts = ask(port, f"min(count_over_time(up[{max(1, int(time.monotonic() - begun))}s]))")
        return bool(counts) and counts[-1] >= 2

    while not await asyncio.to_thread(scraped):
        assert time.monotonic() - begun < 30, "Prometheus does not scrape every target"
        await asyncio.sleep(0.2)


async def under_load(cluster: LocalCluster, targets: Path, port: int) -> LoadResult:
    scenario = Scenario(
        servers=tuple(cluster.urls), subscribers=60, topics=20, publishers=20, rate=2.0, warmup=2.0, duration=16.0,
        settle=4.0, groups=8, cluster="watched", metrics=True, workers=2,
        thresholds=tuple(bound for objective in EVERY_KIND for bound in objective.thresholds),
    )  # fmt: skip
    async with Load(scenario) as load:
        targets.write_text(json.dumps([{"targets": load.targets}]))  # noqa: ASYNC240 - some bytes
        await load.measuring()
        await scraped_twice(port)  # a rate needs two samples from before the fault
        victim = await cluster.busiest_coordinator()
        await load.mark("kill", victim)
        cluster.kill_broker(victim)
        return await load.result()


async def test_every_panel_and_every_side_of_an_alert_has_data(tmp_path: Path) -> None:
    executable = find_prometheus()
    if executable is None:
        pytest.skip("no prometheus on PATH: install Debian's prometheus (make debian)")
    targets, port = tmp_path / "targets.json", free_ports(1)[0]
    async with LocalCluster(with_certificates(tmp_path / "certificates"), tmp_path / "work") as cluster:
        admin = [broker.ports.admin for broker in cluster.brokers]
        rules = rule_file(EVERY_KIND)
        cluster.add(
            prometheus_process(executable, tmp_path / "prometheus", port, admin, tmp_path, scrape=targets, rules=rules)
        )
        result = await under_load(cluster, targets, port)
        assert (result.lost, result.duplicates, result.reordered) == (0, 0, 0)
        queries = panel_queries() | rule_queries()
        assert len(queries) > 180
        assert await asyncio.to_thread(silent, port, queries, 40.0) == {}
        # The same questions find out what nobody exports.
        wrong = {"a metric": "migratory_surprises_total", "a bound": 'migratory_resume_seconds_bucket{le="0.3"}'}
        assert await asyncio.to_thread(silent, port, dict(wrong), 0.0) == wrong
        assert await asyncio.to_thread(ask, port, 'count(ALERTS{alertname="MigratoryPromiseBroken"})') == []
