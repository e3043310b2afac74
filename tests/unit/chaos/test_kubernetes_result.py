"""The result of a chaos run in Kubernetes: each broken promise and each missing piece of evidence alone makes it
fail."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from typing import Any

import pytest
from migratory_chaos.engine import FaultRecord, Proof
from migratory_chaos.kubernetes.result import NO_REPORT, KubernetesRunResult
from migratory_loadtest.result import DurationSummary, FaultRecovery, LoadResult

COUNTS: dict[str, Any] = {"published": 100, "acknowledged": 100, "expected": 300, "delivered": 300, "received": 300}
PROOF = Proof("another pod", "b-0", "b-0", holds=True, at=5.0)


def load(**changes: Any) -> dict[str, Any]:
    marks = [
        FaultRecovery(name="kill", broker="b-0", clients=4, disconnected=4, resumed=4, within_limit=4, slowest=1.25,
                publish_gap_seconds=DurationSummary(count=3, p50=0.3, p99=2.0, max=2.0)),
        FaultRecovery(name="scale", broker=None, clients=0, disconnected=0, resumed=0, within_limit=0),
    ]  # fmt: skip
    result = LoadResult(**COUNTS, marks=marks, scenario={"subscribers": 8, "publishers": 2})
    return {**json.loads(result.to_json()), **changes}


def fault(**changes: Any) -> FaultRecord:
    values: dict[str, Any] = {
        "kind": "kill", "options": {}, "targets": ["b-0"], "began": 4.0, "released": 4.5, "healthy": 9.0,
        "proofs": [PROOF], "marks": (0, 1),
    }  # fmt: skip
    return FaultRecord(**{**values, **changes})


def run(**changes: Any) -> KubernetesRunResult:
    values: dict[str, Any] = {
        "seed": 7, "cluster": "quotes", "namespace": "here", "operator": "an operator", "load": load(),
        "faults": [fault()], "recount": {"lost": 0, "delivered": 300},
        "report": {"verdict": NO_REPORT, "reason": "no Prometheus"},
    }  # fmt: skip
    return KubernetesRunResult(**{**values, **changes})


def test_result_of_a_good_run_is_met_and_has_the_documented_keys() -> None:
    data = run().as_data()
    assert (data["verdict"], data["success"], data["failures"]) == ("met", True, [])
    assert {"verified", "seed", "report", "published", "latency_ms", "connections", "marks"} <= set(data)
    (entry,) = data["faults"]
    assert entry["recovery_seconds"] == 4.5
    assert (entry["began"], entry["over"], entry["whole"]) == (4.0, 4.5, 9.0)
    assert entry["publish_gap_seconds"] == 2.0
    assert entry["slowest_resume_seconds"] == 1.25
    assert entry["proofs"] == [asdict(PROOF)]
    json.dumps(data)


@pytest.mark.parametrize("kind", ["lost", "duplicates", "reordered", "unexpected", "conflicts"])
def test_result_with_a_violation_is_missed(kind: str) -> None:
    wrong = load(**{kind: 1}, **({"delivered": 299} if kind == "lost" else {}))
    data = run(load=wrong, recount={kind: 1} if kind != "conflicts" else {"lost": 0}).as_data()
    assert (data["verdict"], data["success"]) == ("missed", False)
    assert f"1 {kind}" in data["failures"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"unanswered": 1, "acknowledged": 99}, "1 publications were never answered"),
        ({"failed": 1, "acknowledged": 99}, "1 publications were refused"),
    ],
)
def test_result_with_unacknowledged_publications_is_missed(changes: dict[str, int], problem: str) -> None:
    data = run(load=load(**changes)).as_data()
    assert (data["verdict"], problem in data["failures"]) == ("missed", True)


def test_result_with_clients_that_never_resume_is_missed() -> None:
    wrong = load()
    wrong["marks"][0]["resumed"] = 3
    assert run(load=wrong).broken_promises == ["1 clients of b-0 never resumed"]


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"faults": []}, "no fault was injected"),
        ({"faults": [fault(proofs=[])]}, "kill at 4 s proved nothing"),
        ({"faults": [fault(proofs=[PROOF, replace(PROOF, holds=False, seen="none")])]},
         "kill at 4 s was not proved: another pod: expected b-0, seen none"),
        ({"faults": [fault(healthy=None, unhealthy=["2 of 3 pods"])]}, "kill at 4 s: not healthy in time: 2 of 3 pods"),
        ({"faults": [fault(error="Refused()")]}, "kill at 4 s: Refused()"),
        ({"load": {}}, "there is no account of the load"),
        ({"load": load(acknowledged=0, published=0, expected=0, delivered=0)},
         "nothing was acknowledged, or nothing delivered"),
        ({"load": load(delivered=299)}, "299 delivered and 0 lost are not 300 expected"),
        ({"load": load(acknowledged=99)}, "of 100 published only 99 are accounted for"),
        ({"recount": {"lost": 2}}, "the second count found 2 lost, the load generator 0"),
        ({"recount": {}}, "the account was not counted a second time"),
        ({"errors": ["the load ended: x"]}, "the load ended: x"),
        ({"report": {"verdict": NO_REPORT, "reason": "phase Failed", "failed": True}}, "the SLA report: phase Failed"),
        ({"report": {"verdict": "met", "delivery": {"lost": 1}}}, "the SLA report counts 1 lost, the load generator 0"),
    ],
)  # fmt: skip
def test_result_without_some_evidence_is_insufficient(changes: dict[str, Any], problem: str) -> None:
    data = run(**changes).as_data()
    assert (data["verdict"], data["success"]) == ("insufficient", False)
    assert problem in data["failures"]


def test_result_with_violation_and_missing_evidence_is_missed() -> None:
    assert run(load=load(lost=1, delivered=299), faults=[]).verdict == "missed"


def test_result_is_met_when_the_report_misses_an_objective() -> None:
    data = run(report={"verdict": "missed", "delivery": {"lost": 0, "duplicates": 0, "reordered": 0}}).as_data()
    assert (data["verdict"], data["report"]["verdict"]) == ("met", "missed")
