"""What the demo calls a success, and what it writes down."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest
from migratory_loadtest.result import LoadResult, Problem
from migratory_local.demo import DemoOptions, DemoResult, Killed, _incidents, _objectives, failures, scenario_of
from migratory_local.errors import LocalError
from migratory_local.report_job import write_request
from migratory_resources import MigratoryCluster, Objective, load_cluster_file

DEMO = Path(__file__).parents[3] / "operator" / "migratory_local" / "demo.yaml"
MET: dict[str, Any] = {"verdict": "met", "objectives": [{"name": "complete", "verdict": "met", "reason": ""}]}
REQUIRED = {
    "published", "acknowledged", "delivered", "expected", "lost", "duplicates", "reordered", "reconnects",
    "resume_seconds", "publish_gap_seconds", "latency_ms", "connections", "verdict",
}  # fmt: skip


@pytest.fixture(scope="module")
def cluster() -> MigratoryCluster:
    return load_cluster_file(DEMO).cluster


def good() -> LoadResult:
    return LoadResult(published=100, acknowledged=100, expected=500, delivered=500, reconnects=7, verdict="met")


def test_a_success() -> None:
    assert failures(good(), Killed("broker", "b", 1.0, 4.0), MET, DemoOptions()) == []


def test_a_lost_delivery_names_topic_and_positions() -> None:
    load = good()
    load.verdict = "missed"
    load.problems = [Problem(kind="lost", topic="demo/07", subscriber=3, count=2, positions=["5:1", "5:2"], text="x")]
    assert failures(load, None, MET, DemoOptions(kill="none")) == [
        "lost: topic demo/07 at subscriber 3, 2 at 5:1, 5:2 x"
    ]


@pytest.mark.parametrize("verdict", ["missed", "insufficient"])
def test_the_verifiers_verdict_decides_even_without_a_reason(verdict: Any) -> None:
    load = good()
    load.verdict = verdict
    assert failures(load, None, MET, DemoOptions(kill="none")) == [f"the verifier's verdict is {verdict}"]


def test_a_machine_too_busy_to_publish_in_time_is_no_failure_but_hides_none() -> None:
    load = good()
    load.verdict, load.generator_late, load.reasons = "insufficient", True, ["the load generator itself was late"]
    assert failures(load, None, MET, DemoOptions(kill="none")) == []
    load.reasons = [*load.reasons, "no client was on b"]
    assert failures(load, None, MET, DemoOptions(kill="none")) == load.reasons
    load.verdict = "missed"
    load.reasons = ["the load generator itself was late"]
    assert failures(load, None, MET, DemoOptions(kill="none")) == load.reasons


def test_a_missed_objective_is_a_failure_and_too_little_data_is_none() -> None:
    report = {
        "verdict": "missed",
        "objectives": [
            {"name": "back", "verdict": "missed", "reason": "", "compliance": 0.5},
            {"name": "fast", "verdict": "insufficient", "reason": "few"},
        ],
    }
    assert failures(good(), None, report, DemoOptions()) == ["objective back was missed: 0.5"]


def test_a_kill_without_effect_and_a_broker_that_stays_away_are_failures() -> None:
    load = good()
    load.reconnects = 0
    killed = Killed("broker", "b", 1.0, None, "b was not ready within 60 s")
    assert failures(load, killed, MET, DemoOptions()) == [
        "b was not ready within 60 s",
        "no client lost its connection: the kill had no effect",
    ]
    assert failures(load, None, MET, DemoOptions(kill="none")) == []
    assert failures(load, None, MET, DemoOptions(kill="zookeeper-leader")) == []


def test_the_json_has_what_was_promised() -> None:
    result = DemoResult(
        good(), MET, Killed("coordinator", "demo-broker-2", 1000.0, 5.5), DemoOptions(kill="coordinator")
    )
    written = json.loads(json.dumps(result.to_json()))
    assert set(written) >= REQUIRED
    assert set(written["latency_ms"]) >= {"before", "after"}
    assert set(written["latency_ms"]["after"]) >= {"median", "mean", "stdev", "p90", "p95", "p99"}
    assert set(written["resume_seconds"]) >= {"p50", "p99", "max"}
    assert set(written["publish_gap_seconds"]) >= {"p50", "p99", "max"}
    assert set(written["connections"]) == {"before", "after"}
    assert (written["verdict"], written["verified"], written["success"]) == ("met", "met", True)
    assert written["kill"] == {"kind": "coordinator", "target": "demo-broker-2", "at": 1000.0, "rejoined_seconds": 5.5}


def test_the_incident_lasts_until_the_last_one_was_served() -> None:
    load = good()
    load.resume_seconds.max = 2.0
    load.publish_gap_seconds.max = 4.5
    assert _incidents(load, Killed("broker", "b", 10.0)) == [
        {"kind": "kill broker", "broker": "b", "at": 10.0, "until": 14.5}
    ]
    assert _incidents(load, Killed("zookeeper-leader", "zookeeper-1", 10.0))[0]["broker"] == ""
    assert _incidents(load, None) == []


def test_the_resume_limit_is_the_objectives_threshold(cluster: MigratoryCluster) -> None:
    objectives = _objectives(cluster, DemoOptions(resume_limit=2.5))
    assert {objective.type: objective.threshold for objective in objectives}["resume"] == 2.5
    assert len(objectives) == len(cluster.spec.sla.objectives)


def test_the_scenario_follows_options_and_cluster(cluster: MigratoryCluster) -> None:
    options = DemoOptions(subscribers=10, topics=4, seed=9, resume_limit=3.0)
    scenario = scenario_of(cluster, options, ["ws://127.0.0.1:1/ws"])
    assert (scenario.subscribers, scenario.topics, scenario.seed, scenario.resume_limit) == (10, 4, 9, 3.0)
    assert (scenario.cluster, scenario.groups, scenario.metrics) == ("demo", 100, True)
    assert scenario.thresholds == (0.5, 3.0)
    with pytest.raises(LocalError, match="subscribers"):
        scenario_of(cluster, DemoOptions(subscribers=-1), ["ws://127.0.0.1:1/ws"])


def test_a_request_for_a_report_keeps_objectives_exact(cluster: MigratoryCluster, tmp_path: Path) -> None:
    path = tmp_path / "request.json"
    write_request(
        path,
        samples=tmp_path,
        start=1.0,
        end=2.0,
        objectives=cluster.spec.sla.objectives,
        incidents=[],
        java_home=tmp_path,
    )
    read = msgspec.json.decode(path.read_bytes())
    assert [Objective.model_validate(each) for each in read["objectives"]] == cluster.spec.sla.objectives
