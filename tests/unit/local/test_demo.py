"""The demo: success and failures, options, its display, and the JSON result."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest
from migratory_loadtest.api import LoadEvent
from migratory_loadtest.result import DeliveryProblem, FaultRecovery, LoadResult
from migratory_local import LocalError
from migratory_local.demo.display import DemoDisplay, _totals, counts_line, verdict_line
from migratory_local.demo.options import DemoOptions, objectives_of, report_warnings
from migratory_local.demo.report_job import write_request
from migratory_local.demo.result import DemoResult, KilledProcess, describe_caveats, find_failures
from migratory_local.demo.run import DemoObserver, _incidents, run_demo, scenario_of
from migratory_resources import MigratoryCluster, Objective, load_cluster_file
from rich.console import Console

DEMO = Path(__file__).parents[3] / "local" / "migratory_local" / "demo" / "demo.yaml"
MET: dict[str, Any] = {"verdict": "met", "objectives": [{"name": "complete", "verdict": "met", "reason": ""}]}
REQUIRED_KEYS = {
    "published", "acknowledged", "delivered", "expected", "lost", "duplicates", "reordered", "reconnects",
    "resume_seconds", "publish_gap_seconds", "latency_ms", "connections", "verdict",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> MigratoryCluster:
    return load_cluster_file(DEMO).cluster


def good_load() -> LoadResult:
    return LoadResult(published=100, acknowledged=100, expected=500, delivered=500, reconnects=7,
        reconnect_reasons={"broken": 7}, verdict="met",
    )  # fmt: skip


def test_good_run_has_no_failures() -> None:
    assert find_failures(good_load(), KilledProcess("broker", "b", 1.0, 4.0), MET, DemoOptions()) == []


def test_lost_delivery_names_topic_and_positions() -> None:
    load = good_load()
    load.verdict = "missed"
    load.problems = [
        DeliveryProblem(kind="lost", topic="demo/07", subscriber=3, count=2, positions=["5:1", "5:2"], text="x")
    ]
    assert find_failures(load, None, MET, DemoOptions(kill="none")) == [
        "lost: topic demo/07 at subscriber 3, 2 at 5:1, 5:2 x"
    ]


@pytest.mark.parametrize("verdict", ["missed", "insufficient"])
def test_verdict_of_the_verifier_is_a_failure_without_a_reason(verdict: Any) -> None:
    load = good_load()
    load.verdict = verdict
    assert find_failures(load, None, MET, DemoOptions(kill="none")) == [f"the verifier's verdict is {verdict}"]


def test_late_generator_is_no_failure_and_hides_none() -> None:
    load = good_load()
    load.verdict, load.generator_late, load.reasons = "insufficient", True, ["the load generator itself was late"]
    assert find_failures(load, None, MET, DemoOptions(kill="none")) == []
    load.reasons = [*load.reasons, "no client was connected to b"]
    assert find_failures(load, None, MET, DemoOptions(kill="none")) == load.reasons
    load.verdict = "missed"
    load.reasons = ["the load generator itself was late"]
    assert find_failures(load, None, MET, DemoOptions(kill="none")) == load.reasons


def objective(name: str, kind: str, share: float | None, target: str, reason: str = "") -> dict[str, Any]:
    verdict = "insufficient" if share is None else "missed" if share * 100 < float(target) else "met"
    return {
        "name": name, "type": kind, "compliance": share, "target": target, "verdict": verdict, "reason": reason,
    }  # fmt: skip


def test_missed_objective_is_a_failure_but_insufficient_data_is_not(cluster: MigratoryCluster) -> None:
    results = [
        objective("steady", "latency", 0.738555, "90"),
        objective("back", "resume", 0.5, "99"),
        objective("complete", "delivery", 0.99999963, "100"),
        objective("fast", "latency", None, "90", "few"),
    ]
    report = {"verdict": "missed", "objectives": results}
    assert find_failures(good_load(), None, report, DemoOptions(), cluster.spec.sla.objectives) == [
        "objective steady was missed: 73.86% of deliveries within 500 ms, target 90%",
        "objective back was missed: 50.00% of resumes within 5 s, target 99%",
        "objective complete was missed: 99.999963% of expected deliveries once and in order, target 100%",
    ]


def result_of(load: LoadResult, *objectives: dict[str, Any], failed: list[str] | None = None) -> DemoResult:
    report = {"verdict": "met", "objectives": list(objectives)}
    return DemoResult(load, report, None, DemoOptions(kill="none"), failed or [])


def test_verdict_line_explains_lateness_and_insufficient_data() -> None:
    plain = verdict_line(result_of(good_load(), objective("complete", "delivery", 1.0, "100")))
    assert "success:" in plain
    assert "too little data" not in plain
    assert "busy" not in plain

    load = good_load()
    load.generator_late, load.late_sends, load.scheduled = True, 30, 1000
    line = verdict_line(result_of(load, objective("back", "resume", None, "99", "12 events; 100 are needed")))
    assert "success:" in line
    assert "nothing was lost" in line
    assert "too busy to publish in time (30 of 1,000 sends late)" in line
    assert "too little data to judge some objectives (back: 12 events; 100 are needed)" in line

    line = verdict_line(result_of(good_load(), failed=["objective steady was missed: x"]))
    assert "success:" not in line
    assert "no delivery was lost" in line
    load = good_load()
    load.lost = 2
    assert "2 deliveries lost" in verdict_line(result_of(load, failed=["lost: x"]))


def test_broker_without_clients_is_listed() -> None:
    load = good_load()
    load.connections.before.update(a=3, b=2, c=1)
    load.connections.after.update(a=4, c=2)
    result = result_of(load)
    assert result.to_json()["connections"]["after"] == {"a": 4, "b": 0, "c": 2}
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(_totals(result.to_json()))
    assert re.search(r"clients after\W+a 4, b 0, c 2\b", console.export_text())


def test_warnings_name_options_that_are_too_small_for_a_verdict(cluster: MigratoryCluster) -> None:
    assert report_warnings(cluster, DemoOptions()) == []
    (warning,) = report_warnings(cluster, DemoOptions(duration=25, kill="none"))
    assert warning.startswith("--duration 25 is short: ")
    assert "scrapes may miss 1.5 s" in warning
    (warning,) = report_warnings(cluster, DemoOptions(subscribers=90))
    assert "about 30 of them will lose their broker" in warning
    assert "objective back (99%) needs 100 for a verdict" in warning
    assert report_warnings(cluster, DemoOptions(subscribers=90, kill="zookeeper-leader")) == []


def test_late_generator_is_a_caveat() -> None:
    load = good_load()
    assert describe_caveats(load) == []
    load.generator_late, load.late_sends, load.scheduled = True, 1189, 6500
    assert describe_caveats(load) == [
        "the latency does not measure the brokers, because this machine was too busy to publish in time "
        "(1,189 of 6,500 sends late)"
    ]


def event(**connections: int) -> LoadEvent:
    return LoadEvent(
        phase="measuring", elapsed=1, total=2, connected=3, subscribers=3, published=4, acknowledged=4, received=4,
        expected=4, reconnects=0, late=0, connections=connections,
    )  # fmt: skip


def test_progress_line_keeps_a_down_broker_and_shows_names_once() -> None:
    assert counts_line(event(c=83, a=98), ["a", "b", "c"]).endswith("clients 98/0/83")
    console = Console(record=True, width=140, file=io.StringIO())
    display = DemoDisplay(console, ["b", "a"])
    for _ in range(2):
        display.load(event(a=1, b=2))
    assert console.export_text().count("are those of a, b") == 1


def test_totals_show_disconnected_clients_of_other_brokers() -> None:
    load = good_load()
    load.marks = [FaultRecovery(name="kill", broker="b", clients=2, disconnected=2, resumed=2, within_limit=2)]
    load.marks[0].others_disconnected = 7
    console = Console(record=True, width=140, file=io.StringIO())
    console.print(_totals(result_of(load).to_json()))
    assert re.search(r"clients disconnected from other brokers\W+7\b", console.export_text())


async def test_short_duration_with_a_kill_is_an_error(cluster: MigratoryCluster, tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="--duration 5 is too short for a kill; use 20 or more"):
        await run_demo(cluster, tmp_path / "work", DemoOptions(duration=5), DemoObserver())
    assert not (tmp_path / "work").exists()


def test_kill_without_effect_and_missing_rejoin_are_failures() -> None:
    load = good_load()
    load.reconnect_reasons = {"moved": 7}
    killed = KilledProcess("broker", "b", 1.0, None, "b was not ready within 60 s")
    assert find_failures(load, killed, MET, DemoOptions()) == [
        "b was not ready within 60 s",
        "no client lost its connection: the kill had no effect",
    ]
    assert find_failures(load, None, MET, DemoOptions(kill="none")) == []
    assert find_failures(load, None, MET, DemoOptions(kill="zookeeper-leader")) == []


def test_json_has_the_documented_keys() -> None:
    result = DemoResult(
        good_load(), MET, KilledProcess("coordinator", "demo-broker-2", 1000.0, 5.5), DemoOptions(kill="coordinator")
    )
    result_json = json.loads(json.dumps(result.to_json()))
    assert set(result_json) >= REQUIRED_KEYS
    assert set(result_json["latency_ms"]) >= {"before", "after"}
    assert set(result_json["latency_ms"]["after"]) >= {"median", "mean", "stdev", "p90", "p95", "p99"}
    assert set(result_json["resume_seconds"]) >= {"p50", "p99", "max"}
    assert set(result_json["publish_gap_seconds"]) >= {"p50", "p99", "max"}
    assert set(result_json["connections"]) == {"before", "after"}
    assert (result_json["verdict"], result_json["verified"], result_json["success"]) == ("met", "met", True)
    assert result_json["kill"] == {
        "kind": "coordinator",
        "target": "demo-broker-2",
        "at": 1000.0,
        "rejoined_seconds": 5.5,
    }


def test_incident_lasts_until_clients_and_publishers_are_served() -> None:
    load = good_load()
    load.resume_seconds.max = 2.0
    load.publish_gap_seconds.max = 4.5
    assert _incidents(load, KilledProcess("broker", "b", 10.0)) == [
        {"kind": "kill broker", "broker": "b", "at": 10.0, "until": 14.5}
    ]
    assert _incidents(load, KilledProcess("zookeeper-leader", "zookeeper-1", 10.0))[0]["broker"] == ""
    assert _incidents(load, None) == []


def test_resume_limit_is_the_threshold_of_the_objective(cluster: MigratoryCluster) -> None:
    objectives = objectives_of(cluster, DemoOptions(resume_limit=2.5))
    assert {objective.type: objective.threshold for objective in objectives}["resume"] == 2.5
    assert len(objectives) == len(cluster.spec.sla.objectives)


def test_scenario_follows_options_and_cluster(cluster: MigratoryCluster) -> None:
    options = DemoOptions(subscribers=10, topics=4, seed=9, resume_limit=3.0)
    scenario = scenario_of(cluster, options, ["ws://127.0.0.1:1/ws"])
    assert (scenario.subscribers, scenario.topics, scenario.seed, scenario.resume_limit) == (10, 4, 9, 3.0)
    assert (scenario.cluster, scenario.groups, scenario.metrics) == ("demo", 100, True)
    assert scenario.thresholds == (0.5, 3.0)
    with pytest.raises(LocalError, match="subscribers"):
        scenario_of(cluster, DemoOptions(subscribers=-1), ["ws://127.0.0.1:1/ws"])


def test_report_request_keeps_objectives_and_notes(cluster: MigratoryCluster, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    write_request(
        path,
        samples=tmp_path,
        start=1.0,
        end=2.0,
        objectives=cluster.spec.sla.objectives,
        incidents=[],
        java_home=tmp_path,
        notes=["a busy machine"],
    )
    read = msgspec.json.decode(path.read_bytes())
    assert read["notes"] == ["a busy machine"]
    assert [Objective.model_validate(each) for each in read["objectives"]] == cluster.spec.sla.objectives
