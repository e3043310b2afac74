"""What is decided about a report, from what there is: made once, adopted, ended with a reason; names and templates."""

from __future__ import annotations

import json
from datetime import timedelta
from typing import Any

import pytest
from migratory_operator.names import Object
from migratory_operator.reports import answer, job
from migratory_operator.reports.asked import NotPossible, asked
from migratory_operator.reports.decide import Plan, decide
from migratory_operator.reports.observe import Observed
from migratory_operator.reports.run import DRIVER, EXECUTOR, SUBMIT
from migratory_testing.kubernetes import NOW, SETTINGS, cluster, report

SLA: Object = {"sla": {"prometheus": {"url": "http://prometheus:9090"}, "spark": {"deadline": "10m"}}}
RUN = "sla-0123456789abcdef0123456789abcdef"
BEGUN: Object = {"phase": "Submitting", "startTime": "2026-01-02T03:03:05Z"}
ACCOUNT: Object = {
    "run": RUN,
    "verdict": "met",
    "window": {"start": "2026-01-02T02:33:05Z", "end": "2026-01-02T03:03:05Z"},
    "coverage": {"share": "99.5", "scrapes": 12, "longestGap": "15s"},
    "delivery": {"expected": 7, "received": 7},
    "objectives": [{"name": "fast", "type": "latency", "target": "99.9", "verdict": "met", "burn": []}],
    "latency": [{"broker": "", "count": 7, "p99": "9ms"}],
    "gaps": [],
    "notes": [],
    "files": ["report.json.gz"],
}


def seen(**fields: Any) -> Observed:
    given: Any = {"resource": report(status=BEGUN), "now": NOW, "cluster": cluster(SLA), **fields}
    return Observed(**given)


def pod(component: str, phase: str = "Running", name: str = "", age: float = 60, **status: Any) -> Object:
    run = seen().run
    created = (NOW - timedelta(seconds=age)).strftime("%Y-%m-%dT%H:%M:%SZ")
    return {
        "kind": "Pod",
        "metadata": {
            "name": name or (run.driver if component == DRIVER else f"{run.id}-x"),
            "namespace": "market",
            "uid": component,
            "labels": run.labels(component),
            "creationTimestamp": created,
        },
        "status": {"phase": phase, **status},
    }


def a_job(*conditions: tuple[str, str]) -> Object:
    told = [{"type": type_, "status": "True", "reason": reason} for type_, reason in conditions]
    return {"kind": "Job", "metadata": {"name": RUN, "uid": "job"}, "status": {"conditions": told}}


def result(account: Object) -> Object:
    return {"metadata": {"name": RUN}, "data": {answer.ACCOUNT: json.dumps(account)}}


def ended(message: str = "", code: int = 1, reason: str = "Error") -> list[Object]:
    return [{"state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]


def complete(plan: Plan) -> tuple[str, str]:
    (found,) = [one for one in plan.status["conditions"] if one["type"] == "Complete"]
    return found["reason"], found["message"]


def names(plan: Plan) -> list[str]:
    return [f"{thing['kind']} {thing['metadata']['name']}" for thing in plan.make]


def test_a_new_report_is_submitted_with_the_job_last_and_its_time_begins() -> None:
    plan = decide(seen(resource=report()), SETTINGS)
    assert names(plan) == [
        f"ServiceAccount {RUN}-driver", f"Role {RUN}-driver", f"RoleBinding {RUN}-driver",
        f"ServiceAccount {RUN}-submit", f"Role {RUN}-submit", f"RoleBinding {RUN}-submit",
        f"ConfigMap {RUN}", f"ConfigMap {RUN}-request", f"Job {RUN}",
    ]  # fmt: skip
    assert plan.status["phase"] == "Submitting"
    assert plan.status["startTime"] == "2026-01-02T03:04:05Z"
    assert plan.status["runId"] == RUN
    assert all(thing["metadata"]["ownerReferences"][0]["kind"] == "SLAReport" for thing in plan.make)


def test_names_and_labels_are_within_63_characters_whatever_the_uid() -> None:
    for uid in ("01234567-89AB-cdef-0123-456789abcdef", "x" * 200, "7"):
        run = seen(resource=report("w" * 63, metadata={"uid": uid})).run
        made = [run.job, run.result, run.request, run.driver, run.submit, f"{run.id}-exec-9999999", run.owner.name]
        assert max(map(len, made)) <= 63
        assert all(len(value) <= 63 for value in run.labels(EXECUTOR).values())
        assert len(run.id) <= 47  # Spark's own bound of a prefix of executors


@pytest.mark.parametrize(
    "there", [{"job": a_job()}, {"pods": (pod(DRIVER),)}, {"job": a_job(), "pods": (pod(SUBMIT),)}]
)
def test_what_exists_is_adopted_and_nothing_is_made_anew(there: Object) -> None:
    plan = decide(seen(resource=report(), **there), SETTINGS)
    assert plan.make == ()
    assert plan.status["phase"] in ("Submitting", "Running")


def test_the_time_that_it_began_is_kept() -> None:
    plan = decide(seen(job=a_job()), SETTINGS)
    assert plan.status["startTime"] == BEGUN["startTime"]


def test_a_driver_is_named_as_soon_as_it_is_seen() -> None:
    plan = decide(seen(job=a_job(), pods=(pod(DRIVER, "Pending"),)), SETTINGS)
    assert (plan.status["phase"], plan.status["driver"]) == ("Submitting", f"{RUN}-driver")
    assert decide(seen(pods=(pod(DRIVER),)), SETTINGS).status["phase"] == "Running"


def test_an_answer_decides_whatever_became_of_the_pods_and_the_time() -> None:
    late = NOW + timedelta(days=1)
    for pods in ((), (pod(DRIVER, "Failed", containerStatuses=ended()),)):
        plan = decide(seen(now=late, job=a_job(("Failed", "x")), pods=pods, result=result(ACCOUNT)), SETTINGS)
        assert plan.status["phase"] == "Succeeded"
        assert plan.status["verdict"] == "met"
        assert plan.status["result"] == {"configMap": RUN, "files": ["report.json.gz"]}
        assert complete(plan)[0] == "ObjectivesMet"
        assert plan.delete == ()  # not before the status is kept


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        ({**ACCOUNT, "run": "sla-other"}, "UnknownAnswer"),
        ({**ACCOUNT, "verdict": "perhaps"}, "UnknownAnswer"),
        ({"run": RUN}, "UnknownAnswer"),
        # what the schema of the status would refuse at each look, for ever
        ({"run": RUN, "failure": {"reason": "two words", "message": "no"}}, "UnknownAnswer"),
        ({"run": RUN, "failure": "no"}, "UnknownAnswer"),
        ({**ACCOUNT, "files": ["a", "b", "c"]}, "UnknownAnswer"),
        ({"run": RUN, "failure": {"reason": "SamplesUnreadable", "message": "no"}}, "SamplesUnreadable"),
    ],
)
def test_an_answer_that_is_none_fails_with_its_reason(account: Object, reason: str) -> None:
    plan = decide(seen(result=result(account)), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Failed", reason)
    assert [event.reason for event in plan.events] == [reason]


@pytest.mark.parametrize(
    ("pods", "reason", "says"),
    [
        ((pod(DRIVER, "Failed", reason="Evicted", message="low on memory"),), "DriverEvicted", "low on memory"),
        ((pod(DRIVER, "Failed", reason="DeadlineExceeded"),), "DeadlineExceeded", "time limit"),
        ((pod(DRIVER, "Failed", containerStatuses=ended("", 137, "OOMKilled")),), "DriverOutOfMemory", "memory"),
        ((pod(DRIVER, "Failed", containerStatuses=ended("a\n\nValueError: b")),), "DriverFailed", "ValueError: b"),
        ((pod(DRIVER, "Succeeded", containerStatuses=ended("", 0)),), "NoAnswer", "left no answer"),
        (
            (pod(DRIVER, conditions=[{"type": "DisruptionTarget", "status": "True", "message": "drained"}]),),
            "DriverEvicted",
            "drained",
        ),
    ],
)
def test_a_driver_that_ended_without_an_answer_is_told_with_the_reason(
    pods: tuple[Object, ...], reason: str, says: str
) -> None:
    plan = decide(seen(job=a_job(("Complete", "")), pods=pods), SETTINGS)
    assert plan.status["phase"] == "Failed"
    assert complete(plan)[0] == reason
    assert says in complete(plan)[1]
    assert plan.status["completionTime"] == "2026-01-02T03:04:05Z"


def test_a_driver_on_its_way_out_or_gone_is_told() -> None:
    going = pod(DRIVER)
    going["metadata"]["deletionTimestamp"] = "now"
    assert complete(decide(seen(pods=(going,)), SETTINGS))[0] == "DriverDeleted"
    known = report(status={**BEGUN, "driver": f"{RUN}-driver"})
    for there in (None, a_job(("Complete", ""))):
        plan = decide(seen(resource=known, job=there), SETTINGS)
        assert complete(plan)[0] == "DriverGone"
        assert plan.make == ()
    assert complete(decide(seen(job=a_job(("Complete", ""))), SETTINGS))[0] == "DriverGone"


def test_a_submitter_that_failed_is_told_with_its_last_words() -> None:
    submitter = pod(SUBMIT, "Failed", containerStatuses=ended("Exception: forbidden"))
    plan = decide(seen(job=a_job(("Failed", "BackoffLimitExceeded")), pods=(submitter,)), SETTINGS)
    assert complete(plan)[0] == "SubmitFailed"
    assert "forbidden" in complete(plan)[1]
    # one whose driver was made is no failure
    plan = decide(seen(job=a_job(("Failed", "BackoffLimitExceeded")), pods=(submitter, pod(DRIVER))), SETTINGS)
    assert plan.status["phase"] == "Running"
    assert complete(decide(seen(job=a_job(("Failed", "DeadlineExceeded"))), SETTINGS))[0] == "DeadlineExceeded"


UNSCHEDULABLE: Object = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}]
}
NO_IMAGE: Object = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]}


@pytest.mark.parametrize(("status", "reason"), [(UNSCHEDULABLE, "Unschedulable"), (NO_IMAGE, "ImagePullBackOff")])
@pytest.mark.parametrize("component", [SUBMIT, DRIVER])
def test_a_pod_that_can_not_start_is_borne_for_a_third_of_the_time(component: str, status: Object, reason: str) -> None:
    young, old = pod(component, "Pending", age=199, **status), pod(component, "Pending", age=201, **status)
    plan = decide(seen(job=a_job(), pods=(young,)), SETTINGS)
    assert plan.status["phase"] == "Submitting"
    assert complete(plan)[0] == reason  # told, while it may still change
    plan = decide(seen(job=a_job(), pods=(old,)), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Failed", reason)


def test_the_operators_own_deadline_ends_whatever_hangs() -> None:
    begun = report(status={**BEGUN, "startTime": "2026-01-02T02:54:04Z"})
    plan = decide(seen(resource=begun, pods=(pod(DRIVER),)), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Failed", "DeadlineExceeded")
    just = report(status={**BEGUN, "startTime": "2026-01-02T02:54:05Z"})
    plan = decide(seen(resource=just, pods=(pod(DRIVER),)), SETTINGS)
    assert plan.status["phase"] == "Running"
    assert plan.look_at == NOW + timedelta(seconds=1)
    # what executors wait for is the better reason
    waits = pod(EXECUTOR, "Pending", **UNSCHEDULABLE)
    plan = decide(seen(resource=begun, pods=(pod(DRIVER), waits)), SETTINGS)
    assert complete(plan)[0] == "Unschedulable"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_what_runs_on_after_the_end_is_removed_and_a_failed_driver_kept(phase: str) -> None:
    over = report(status={"phase": phase})
    alive = (pod(DRIVER), pod(EXECUTOR, name="e1"), pod(SUBMIT, "Succeeded"))
    plan = decide(seen(resource=over, job=a_job(), pods=alive), SETTINGS)
    assert [thing["metadata"]["name"] for thing in plan.delete] == ["e1", f"{RUN}-driver", RUN]
    assert plan.status == {}
    assert plan.make == ()
    dead = (pod(DRIVER, "Failed"), pod(EXECUTOR, name="e1"))
    plan = decide(seen(resource=over, job=a_job(), pods=dead), SETTINGS)
    kept = [] if phase == "Failed" else [f"{RUN}-driver", RUN]
    assert [thing["metadata"]["name"] for thing in plan.delete] == ["e1", *kept]
    assert decide(seen(resource=over), SETTINGS) == Plan()


def test_a_report_on_its_way_out_is_left_to_the_garbage_collector() -> None:
    gone = report(metadata={"deletionTimestamp": "now"}, status=BEGUN)
    assert decide(seen(resource=gone, job=a_job(), pods=(pod(DRIVER),)), SETTINGS) == Plan()


@pytest.mark.parametrize(
    ("resource", "found", "reason"),
    [
        (report(window="1s"), cluster(SLA), "InvalidSpec"),
        (report(end="2026-02-30T00:00:00Z"), cluster(SLA), "InvalidSpec"),
        (report(end="0001-01-01T00:00:00Z"), cluster(SLA), "InvalidSpec"),
        (report(prometheus={"url": "http://me:secret@prometheus"}), cluster(SLA), "InvalidSpec"),
        (report(zone="Mars/Base"), cluster(SLA), "InvalidSpec"),
        (report(objectives=[{"name": "a", "type": "delivery", "target": "99"}] * 2), cluster(SLA), "InvalidSpec"),
        (report(), cluster(), "NoPrometheus"),
    ],
)
def test_what_can_not_be_made_fails_at_once(resource: Object, found: Object, reason: str) -> None:
    plan = decide(seen(resource=resource, cluster=found), SETTINGS)
    assert plan.status["phase"] == "Failed"
    assert complete(plan)[0] == reason
    assert [one["status"] for one in plan.status["conditions"] if one["type"] == "Accepted"] == ["False"]


@pytest.mark.parametrize(
    ("found", "reason"), [(None, "ClusterNotFound"), (cluster({"brokers": {"replicas": 2}}), "InvalidCluster")]
)
def test_a_cluster_that_is_not_there_yet_is_waited_for(found: Object | None, reason: str) -> None:
    plan = decide(seen(resource=report(), cluster=found), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Pending", reason)
    assert plan.look_at == NOW + timedelta(seconds=61)
    late = NOW + timedelta(seconds=60)
    assert decide(seen(resource=report(), cluster=found, now=late), SETTINGS).status["phase"] == "Failed"


@pytest.mark.parametrize("found", [None, cluster(), cluster({"brokers": {"replicas": 2}})])
def test_a_run_goes_on_whatever_becomes_of_its_cluster(found: Object | None) -> None:
    """Its question is in the pods' hands; the time that it has is the Job's."""
    (begun,) = [one for one in decide(seen(), SETTINGS).make if one["kind"] == "Job"]
    running = {"cluster": found, "job": begun, "pods": (pod(DRIVER),)}
    plan = decide(seen(**running), SETTINGS)
    assert (plan.status["phase"], plan.status["startTime"]) == ("Running", BEGUN["startTime"])
    assert plan.make == plan.delete == ()
    last = NOW + timedelta(minutes=9)
    assert decide(seen(**running, now=last), SETTINGS).status["phase"] == "Running"
    assert complete(decide(seen(**running, now=last + timedelta(seconds=1)), SETTINGS))[0] == "DeadlineExceeded"


def test_a_field_that_a_newer_definition_brings_is_left_out_and_told() -> None:
    plan = decide(seen(resource=report(later={"x": 1}, spark={"executors": 0, "tail": 1})), SETTINGS)
    assert (plan.status["phase"], bool(plan.make)) == ("Submitting", True)
    (accepted,) = [one for one in plan.status["conditions"] if one["type"] == "Accepted"]
    assert accepted["status"] == "True"
    assert accepted["message"].endswith("without spec.later, spec.spark.tail, which this operator does not know")


def test_without_an_image_there_are_no_reports() -> None:
    from dataclasses import replace

    plan = decide(seen(resource=report()), replace(SETTINGS, spark_image=""))
    assert complete(plan)[0] == "NoImage"


def test_a_window_that_ends_later_is_waited_for() -> None:
    plan = decide(seen(resource=report(end="2026-01-02T03:05:05Z")), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Pending", "WaitingForEnd")
    assert plan.look_at == NOW + timedelta(seconds=60)
    assert plan.make == ()


def test_what_the_report_says_comes_before_what_its_cluster_says() -> None:
    own = report(
        end="2026-01-02T03:00:00Z", window="5m", zone="Europe/Bucharest", prometheus={"url": "https://other"},
        spark={"executors": 0}, objectives=[{"name": "a", "type": "delivery", "target": "99"}],
    )  # fmt: skip
    found = asked(own, cluster(SLA))
    assert (found.prometheus.url, found.zone, found.spark.executors) == ("https://other", "Europe/Bucharest", 0)
    assert [objective.name for objective in found.objectives] == ["a"]
    assert (found.end - found.start, found.end.minute) == (timedelta(minutes=5), 0)
    usual = asked(report(), cluster(SLA))
    assert (usual.prometheus.url, usual.zone, usual.spark.deadline) == ("http://prometheus:9090", "UTC", 600)
    assert [objective.name for objective in usual.objectives] == ["fast", "complete", "back"]
    assert usual.end - usual.start == timedelta(minutes=30)
    with pytest.raises(NotPossible, match="no MigratoryCluster"):
        asked(report(), None)


def test_pods_have_the_restricted_context_a_limit_of_time_and_only_what_they_need() -> None:
    question = asked(
        report(prometheus={"url": "http://p", "secretName": "scraper"}, spark={"historyClaim": "tables"}), cluster(SLA)
    )
    made = {f"{one['kind']} {one['metadata']['name']}": one for one in job.objects(seen().run, question, SETTINGS)}
    files = made[f"ConfigMap {RUN}-request"]["data"]
    driver, executor = json.loads(files["driver.yaml"]), json.loads(files["executor.yaml"])
    submitter = made[f"Job {RUN}"]["spec"]["template"]
    for template in (driver, executor, submitter):
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert driver["spec"]["activeDeadlineSeconds"] == 660 + 300  # the report's own: 15 minutes, and one more
    assert driver["metadata"]["ownerReferences"][0]["name"] == "weekly"
    assert executor["spec"]["automountServiceAccountToken"] is False
    volumes = [{name for name in volume if name != "name"} for volume in driver["spec"]["volumes"]]
    assert volumes == [{"emptyDir"}, {"configMap"}, {"secret"}, {"persistentVolumeClaim"}]
    assert [list(one)[1] for one in executor["spec"]["volumes"]] == ["emptyDir", "secret"]
    rules = made[f"Role {RUN}-driver"]["rules"]
    assert rules[0]["resourceNames"] == [RUN]
    assert made[f"Job {RUN}"]["spec"]["backoffLimit"] == 0
    arguments = submitter["spec"]["containers"][0]["args"]
    assert f"spark.kubernetes.driver.pod.name={RUN}-driver" in arguments
    assert "spark.executor.instances=2" in arguments
    assert json.loads(files["request.json"])["history"] == "/var/lib/migratory/history"


def test_without_executors_the_jobs_pod_is_the_driver() -> None:
    question = asked(report(spark={"executors": 0, "driver": {"memory": "2Gi"}}), cluster(SLA))
    made = {f"{one['kind']} {one['metadata']['name']}": one for one in job.objects(seen().run, question, SETTINGS)}
    assert not [name for name in made if name.endswith("-submit")]
    assert len(made[f"Role {RUN}-driver"]["rules"]) == 1
    template = made[f"Job {RUN}"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == DRIVER
    assert container["resources"]["limits"] == {"memory": "2048Mi"}
    assert "spark.driver.memory=1024m" in container["args"]
