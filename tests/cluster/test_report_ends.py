"""SLAReports whose run fails or is deleted: a final phase with the reason, and no leftovers. Also one run after a
killed operator, the reports of a schedule, and the immutable spec.

The cluster is paused, so that only reports have pods. All reports are created at once, because each one mostly waits.
"""

from __future__ import annotations

import fcntl
import json
import os
from typing import IO

import pytest
from migratory_node.kubectl import Kubectl, KubectlError, Object
from migratory_node.slow_prometheus import now, start_slow_prometheus

pytestmark = pytest.mark.timeout(600)
OPERATOR = "app.kubernetes.io/name=migratory-operator"
OF_A_RUN = "pods,jobs,services,configmaps,secrets,serviceaccounts,roles,rolebindings,networkpolicies"
_DIGITS = {ord(sign): None for sign in "-T:"}
ALONE: Object = {"executors": 0, "deadline": "60s", "driver": {"cpu": "50m"}}


def ask(kube: Kubectl, name: str, spark: Object, url: str | None = None, **prometheus: str) -> None:
    spec: Object = {"cluster": "quotes", "window": "1m", "spark": spark}
    if url is not None:
        spec["prometheus"] = {"url": url, **prometheus}
    kube.apply({"apiVersion": "migratory.dev/v1alpha1", "kind": "SLAReport", "metadata": {"name": name}, "spec": spec})


def status(kube: Kubectl, name: str) -> Object:
    found: Object = (kube.get("slar", name) or {}).get("status", {})
    return found


def failed(kube: Kubectl, name: str, limit: float = 180) -> str:
    """Wait until the report has ended, check that it failed, and return the reason."""
    kube.until(lambda: status(kube, name).get("phase") in ("Succeeded", "Failed"), f"the end of {name}", limit)
    found = status(kube, name)
    assert found["phase"] == "Failed", found
    return kube.condition(name, "Complete", "slar")[1]


def things(kube: Kubectl, name: str) -> list[str]:
    """Return the kind and name of each object of a report's run, including those with Spark's own names and labels."""
    run = status(kube, name).get("runId") or name
    return [
        f"{one['kind']} {one['metadata']['name']}"
        for one in kube.list(OF_A_RUN)
        if run in json.dumps(one["metadata"]) or run in json.dumps(one.get("spec", {}))
    ]


def pods(kube: Kubectl, name: str, component: str) -> list[Object]:
    return kube.list("pods", f"migratory.dev/report={name},app.kubernetes.io/component={component}")


@pytest.fixture(scope="module")
def asked(shared: Kubectl, operator_lock: IO[str]) -> Kubectl:
    """Create a paused cluster with a schedule of reports, and all reports of this file, in the module's namespace.
    Return kubectl. The operator lock stays locked until the first test has killed the operator."""
    kube = shared
    # until the end of the first test, which must kill the operator soon after
    fcntl.flock(operator_lock, fcntl.LOCK_EX)
    url = start_slow_prometheus(kube, now())
    kube.apply(
        {
            "apiVersion": "migratory.dev/v1alpha1",
            "kind": "MigratoryCluster",
            "metadata": {"name": "quotes", "annotations": {"migratory.dev/paused": "true"}},
            "spec": {
                "sla": {
                    "prometheus": {"url": f"{url}/silent"},
                    "schedule": "* * * * *",
                    "historyLimit": 3,
                    "spark": {"executors": 0, "deadline": "30s", "driver": {"cpu": "50m"}},
                }
            },
        }
    )
    small: Object = {"cpu": "50m"}
    executors: Object = {"executors": 2, "deadline": "15m", "executor": small}
    ask(kube, "mid-run", executors, f"{url}/mid-run")
    ask(kube, "evicted", {**ALONE, "deadline": "15m"})
    ask(kube, "no-image", {**ALONE, "image": "nothing.invalid/such:1"})
    ask(kube, "too-large", {**ALONE, "driver": {"cpu": "1000"}})
    ask(kube, "hangs", {**ALONE, "deadline": "45s"})
    ask(kube, "no-answer", ALONE, "http://127.0.0.1:1")
    kube.apply({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "access"}, "stringData": {"token": "t"}})
    ask(kube, "not-allowed", {**ALONE, "image": "other.invalid/such:1"})
    ask(kube, "no-label", ALONE, "https://prometheus:9090", secretName="access")
    return kube


@pytest.mark.usefixtures("kills_operator")
def test_an_operator_killed_after_submission_leads_to_one_run(operator: Kubectl, asked: Kubectl) -> None:
    kube = asked
    job = kube.until(lambda: kube.list("jobs", "migratory.dev/report=mid-run"), "a Job", 60)[0]["metadata"]
    home = next(
        (one for one in (operator, kube) if one.list("pods", OPERATOR)),
        None,
    )
    if home is None:
        assert os.environ.get("MIGRATORY_OPERATOR") == "outside"
        pytest.skip("the operator is no pod")
    home("delete", "pod", "-l", OPERATOR, "--grace-period=0", "--force")
    driver = kube.until(lambda: pods(kube, "mid-run", "sla-driver"), "the driver", 120)[0]["metadata"]
    kube.until(lambda: status(kube, "mid-run").get("driver") == driver["name"], "the adoption", 120)
    (again,) = kube.list("jobs", "migratory.dev/report=mid-run")
    assert again["metadata"]["uid"] == job["uid"]
    assert [one["metadata"]["uid"] for one in pods(kube, "mid-run", "sla-driver")] == [driver["uid"]]
    assert len(pods(kube, "mid-run", "sla-submit")) == 1


def test_a_report_deleted_while_it_runs_leaves_nothing(asked: Kubectl) -> None:
    kube = asked
    kube.until(lambda: len(pods(kube, "mid-run", "sla-executor")) == 2, "two executors", 420)
    owned = things(kube, "mid-run")
    kinds = {one.partition(" ")[0] for one in owned}
    assert {"Pod", "Job", "Service", "ConfigMap", "Secret", "NetworkPolicy"} <= kinds, owned
    before = {f"{one['kind']} {one['metadata']['uid']}" for one in kube.list("services,configmaps,networkpolicies")}
    report = (kube.get("slar", "mid-run") or {})["metadata"]["uid"]
    drivers = [one["metadata"]["uid"] for one in pods(kube, "mid-run", "sla-driver")]
    kube("delete", "slar", "mid-run", "--wait=true")

    def left() -> list[str]:
        gone = {report, *drivers}
        return [
            f"{one['kind']} {one['metadata']['name']}"
            for one in kube.list(OF_A_RUN)
            if gone & {owner["uid"] for owner in one["metadata"].get("ownerReferences", [])}
            or one["metadata"].get("labels", {}).get("migratory.dev/report") == "mid-run"
        ]

    kube.until(lambda: not left(), "nothing left of the run", 90)
    assert before, "there were Services and ConfigMaps"


def test_an_evicted_driver_fails_the_report_with_that_reason(asked: Kubectl) -> None:
    kube = asked
    kube.until(lambda: status(kube, "evicted").get("phase") == "Running", "the driver", 180)
    (driver,) = pods(kube, "evicted", "sla-driver")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": driver["metadata"]["name"]}}
    path = f"/api/v1/namespaces/{kube.namespace}/pods/{driver['metadata']['name']}/eviction"
    kube("create", "--raw", path, "-f", "-", given=json.dumps(eviction))
    assert failed(kube, "evicted") in ("DriverEvicted", "DriverGone")
    kube.until(lambda: not kube.list("pods", "migratory.dev/report=evicted"), "no pod left", 60)
    events = [one for one in kube.list("events") if one["involvedObject"]["name"] == "evicted"]
    assert [one["reason"] for one in events if one["type"] == "Warning"] == [
        kube.condition("evicted", "Complete", "slar")[1]
    ]


def test_pods_that_cannot_start_fail_the_report_with_a_reason(asked: Kubectl) -> None:
    kube = asked
    assert failed(kube, "no-image") == "ImagePullBackOff"
    assert failed(kube, "too-large") == "Unschedulable"
    for name in ("no-image", "too-large"):
        kube.until(lambda name=name: not kube.list("pods", f"migratory.dev/report={name}"), "no pod left", 60)  # type: ignore[misc]


def test_reports_use_only_what_the_operator_and_the_secret_allow(asked: Kubectl) -> None:
    kube = asked
    assert failed(kube, "not-allowed") == "ImageNotAllowed"
    assert failed(kube, "no-label") == "SecretNotAllowed"
    assert not kube.list("jobs", "migratory.dev/report in (not-allowed,no-label)")


def test_a_driver_that_hangs_is_ended_at_its_deadline(asked: Kubectl) -> None:
    kube = asked
    assert failed(kube, "hangs") == "DeadlineExceeded"
    kube.until(lambda: not kube.list("pods", "migratory.dev/report=hangs"), "no pod left", 60)


def test_an_unreachable_prometheus_is_named(asked: Kubectl) -> None:
    kube = asked
    assert failed(kube, "no-answer") in ("SamplesUnreadable", "DeadlineExceeded")
    table = kube("get", "slar").splitlines()
    assert table[0].split() == ["NAME", "CLUSTER", "PHASE", "VERDICT", "COVERAGE", "P99", "REASON", "AGE"]
    # Only reports of the schedule judge the cluster, and none of them has a verdict.
    assert kube.condition("quotes", "SLAMet") in (("Unknown", "NoReport"), ("Unknown", "ReportFailed"))


def test_a_schedule_makes_one_report_per_slot(asked: Kubectl) -> None:
    kube = asked

    def scheduled() -> list[Object]:
        return [one for one in kube.list("slar") if one["metadata"]["name"].startswith("quotes-")]

    (one, *more) = kube.until(scheduled, "a scheduled report", 180)
    slots = [each["metadata"]["annotations"]["migratory.dev/slot"] for each in (one, *more)]
    assert len(set(slots)) == len(slots), slots
    assert (one["spec"]["end"], one["metadata"]["name"]) == (slots[0], f"quotes-{slots[0][:16].translate(_DIGITS)}")
    (owner,) = one["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("MigratoryCluster", "quotes")


def test_a_reports_spec_is_immutable(asked: Kubectl) -> None:
    with pytest.raises(KubectlError, match="is immutable: create another report"):
        asked.patch("slar", "hangs", {"spec": {"window": "2m"}})
