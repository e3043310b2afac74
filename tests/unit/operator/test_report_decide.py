"""The operator's decision about a report: start, adoption, end with a reason; names and pod templates of its run."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest
from migratory_operator.names import Object
from migratory_operator.reports import job
from migratory_operator.reports.decide import ReportPlan, decide
from migratory_operator.reports.outcome import RESULT_KEY
from migratory_operator.reports.resolve import UnresolvableReport, resolve_report
from migratory_operator.reports.run import DRIVER, EXECUTOR, SUBMIT, ObservedReport
from migratory_testing.kubernetes import NOW, SETTINGS, cluster, report

SLA: Object = {"sla": {"prometheus": {"url": "http://prometheus:9090"}, "spark": {"deadline": "10m"}}}
RUN = "sla-0123456789abcdef0123456789abcdef"
STARTED: Object = {"phase": "Submitting", "startTime": "2026-01-02T03:03:05Z"}
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


def observe(**fields: Any) -> ObservedReport:
    given: Any = {"resource": report(status=STARTED), "now": NOW, "cluster": cluster(SLA), **fields}
    return ObservedReport(**given)


def pod(component: str, phase: str = "Running", name: str = "", age: float = 60, **status: Any) -> Object:
    run = observe().run
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


def job_with(*conditions: tuple[str, str]) -> Object:
    entries = [{"type": type_, "status": "True", "reason": reason} for type_, reason in conditions]
    return {"kind": "Job", "metadata": {"name": RUN, "uid": "job"}, "status": {"conditions": entries}}


def result(account: Object) -> Object:
    return {"metadata": {"name": RUN}, "data": {RESULT_KEY: json.dumps(account)}}


def terminated(message: str = "", code: int = 1, reason: str = "Error") -> list[Object]:
    return [{"state": {"terminated": {"exitCode": code, "reason": reason, "message": message}}}]


def complete(plan: ReportPlan) -> tuple[str, str]:
    (condition,) = [entry for entry in plan.status["conditions"] if entry["type"] == "Complete"]
    return condition["reason"], condition["message"]


def names(plan: ReportPlan) -> list[str]:
    return [f"{item['kind']} {item['metadata']['name']}" for item in plan.create]


def test_a_new_report_is_submitted_with_the_job_last() -> None:
    plan = decide(observe(resource=report()), SETTINGS)
    assert names(plan) == [
        f"ServiceAccount {RUN}-driver", f"Role {RUN}-driver", f"RoleBinding {RUN}-driver",
        f"ServiceAccount {RUN}-submit", f"Role {RUN}-submit", f"RoleBinding {RUN}-submit",
        f"NetworkPolicy {RUN}", f"Secret {RUN}-auth", f"ConfigMap {RUN}", f"ConfigMap {RUN}-request", f"Job {RUN}",
    ]  # fmt: skip
    assert plan.status["phase"] == "Submitting"
    assert plan.status["startTime"] == "2026-01-02T03:04:05Z"
    assert plan.status["runId"] == RUN
    assert all(item["metadata"]["ownerReferences"][0]["kind"] == "SLAReport" for item in plan.create)


def test_names_and_labels_fit_63_characters_for_any_uid() -> None:
    for uid in ("01234567-89AB-cdef-0123-456789abcdef", "x" * 200, "7"):
        run = observe(resource=report("w" * 63, metadata={"uid": uid})).run
        built = [run.job, run.result, run.request, run.driver, run.submit, f"{run.id}-exec-9999999", run.owner.name]
        assert max(map(len, built)) <= 63
        assert all(len(value) <= 63 for value in run.labels(EXECUTOR).values())
        assert len(run.id) <= 47  # Spark's own bound of a prefix of executors


@pytest.mark.parametrize(
    "there", [{"job": job_with()}, {"pods": (pod(DRIVER),)}, {"job": job_with(), "pods": (pod(SUBMIT),)}]
)
def test_existing_objects_are_adopted(there: Object) -> None:
    plan = decide(observe(resource=report(), **there), SETTINGS)
    assert plan.create == ()
    assert plan.status["phase"] in ("Submitting", "Running")


def test_the_start_time_is_kept() -> None:
    plan = decide(observe(job=job_with()), SETTINGS)
    assert plan.status["startTime"] == STARTED["startTime"]


def test_the_driver_is_named_once_it_exists() -> None:
    plan = decide(observe(job=job_with(), pods=(pod(DRIVER, "Pending"),)), SETTINGS)
    assert (plan.status["phase"], plan.status["driver"]) == ("Submitting", f"{RUN}-driver")
    assert decide(observe(pods=(pod(DRIVER),)), SETTINGS).status["phase"] == "Running"


def test_a_result_decides_before_pods_and_deadline() -> None:
    late = NOW + timedelta(days=1)
    for pods in ((), (pod(DRIVER, "Failed", containerStatuses=terminated()),)):
        plan = decide(observe(now=late, job=job_with(("Failed", "x")), pods=pods, result=result(ACCOUNT)), SETTINGS)
        assert plan.status["phase"] == "Succeeded"
        assert plan.status["verdict"] == "met"
        assert plan.status["result"] == {"configMap": RUN, "files": ["report.json.gz"]}
        assert complete(plan)[0] == "ObjectivesMet"
        assert plan.delete == ()  # not before the status is written


@pytest.mark.parametrize(
    ("account", "reason"),
    [
        ({**ACCOUNT, "run": "sla-other"}, "InvalidResult"),
        ({**ACCOUNT, "verdict": "perhaps"}, "InvalidResult"),
        ({"run": RUN}, "InvalidResult"),
        # The schema of the status would reject this at every reconciliation.
        ({"run": RUN, "failure": {"reason": "two words", "message": "no"}}, "InvalidResult"),
        ({"run": RUN, "failure": "no"}, "InvalidResult"),
        ({**ACCOUNT, "files": ["a", "b", "c"]}, "InvalidResult"),
        ({"run": RUN, "failure": {"reason": "SamplesUnreadable", "message": "no"}}, "SamplesUnreadable"),
    ],
)
def test_an_invalid_result_fails_the_report(account: Object, reason: str) -> None:
    plan = decide(observe(result=result(account)), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Failed", reason)
    assert [event.reason for event in plan.events] == [reason]


@pytest.mark.parametrize(
    ("pods", "reason", "expected"),
    [
        ((pod(DRIVER, "Failed", reason="Evicted", message="low on memory"),), "DriverEvicted", "low on memory"),
        ((pod(DRIVER, "Failed", reason="DeadlineExceeded"),), "DeadlineExceeded", "time limit"),
        ((pod(DRIVER, "Failed", containerStatuses=terminated("", 137, "OOMKilled")),), "DriverOutOfMemory", "memory"),
        ((pod(DRIVER, "Failed", containerStatuses=terminated("ValueError: b", 70)),), "DriverFailed", "exit code 70"),
        ((pod(DRIVER, "Succeeded", containerStatuses=terminated("", 0)),), "NoResult", "without a result"),
        (
            (pod(DRIVER, conditions=[{"type": "DisruptionTarget", "status": "True", "message": "drained"}]),),
            "DriverEvicted",
            "drained",
        ),
    ],
)
def test_a_driver_that_ends_without_a_result_fails_with_its_reason(
    pods: tuple[Object, ...], reason: str, expected: str
) -> None:
    plan = decide(observe(job=job_with(("Complete", "")), pods=pods), SETTINGS)
    assert plan.status["phase"] == "Failed"
    assert complete(plan)[0] == reason
    assert expected in complete(plan)[1]
    assert "ValueError" not in complete(plan)[1], "the driver's output may quote what Prometheus sent"
    assert plan.status["completionTime"] == "2026-01-02T03:04:05Z"


def test_a_deleted_driver_fails_the_report() -> None:
    going = pod(DRIVER)
    going["metadata"]["deletionTimestamp"] = "now"
    assert complete(decide(observe(pods=(going,)), SETTINGS))[0] == "DriverDeleted"
    known = report(status={**STARTED, "driver": f"{RUN}-driver"})
    for there in (None, job_with(("Complete", ""))):
        plan = decide(observe(resource=known, job=there), SETTINGS)
        assert complete(plan)[0] == "DriverGone"
        assert plan.create == ()
    assert complete(decide(observe(job=job_with(("Complete", ""))), SETTINGS))[0] == "DriverGone"


def test_a_failed_submitter_is_reported_with_its_last_output() -> None:
    submitter = pod(SUBMIT, "Failed", containerStatuses=terminated("Exception: forbidden"))
    plan = decide(observe(job=job_with(("Failed", "BackoffLimitExceeded")), pods=(submitter,)), SETTINGS)
    assert complete(plan)[0] == "SubmitFailed"
    assert "forbidden" in complete(plan)[1]
    # A submitter whose driver exists has not failed.
    plan = decide(observe(job=job_with(("Failed", "BackoffLimitExceeded")), pods=(submitter, pod(DRIVER))), SETTINGS)
    assert plan.status["phase"] == "Running"
    assert complete(decide(observe(job=job_with(("Failed", "DeadlineExceeded"))), SETTINGS))[0] == "DeadlineExceeded"


UNSCHEDULABLE: Object = {
    "conditions": [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "no cpu"}]
}
NO_IMAGE: Object = {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]}


@pytest.mark.parametrize(("status", "reason"), [(UNSCHEDULABLE, "Unschedulable"), (NO_IMAGE, "ImagePullBackOff")])
@pytest.mark.parametrize("component", [SUBMIT, DRIVER])
def test_a_pod_that_cannot_start_fails_after_a_third_of_the_deadline(
    component: str, status: Object, reason: str
) -> None:
    young, old = pod(component, "Pending", age=199, **status), pod(component, "Pending", age=201, **status)
    plan = decide(observe(job=job_with(), pods=(young,)), SETTINGS)
    assert plan.status["phase"] == "Submitting"
    assert complete(plan)[0] == reason  # reported while it may still change
    plan = decide(observe(job=job_with(), pods=(old,)), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Failed", reason)


def test_the_operators_deadline_ends_a_run_that_hangs() -> None:
    begun = report(status={**STARTED, "startTime": "2026-01-02T02:54:04Z"})
    plan = decide(observe(resource=begun, pods=(pod(DRIVER),)), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Failed", "DeadlineExceeded")
    just = report(status={**STARTED, "startTime": "2026-01-02T02:54:05Z"})
    plan = decide(observe(resource=just, pods=(pod(DRIVER),)), SETTINGS)
    assert plan.status["phase"] == "Running"
    assert plan.requeue_at == NOW + timedelta(seconds=1)
    # The reason for which executors wait explains more.
    waits = pod(EXECUTOR, "Pending", **UNSCHEDULABLE)
    plan = decide(observe(resource=begun, pods=(pod(DRIVER), waits)), SETTINGS)
    assert complete(plan)[0] == "Unschedulable"


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_leftovers_are_deleted_except_a_failed_driver(phase: str) -> None:
    over = report(status={"phase": phase})
    alive = (pod(DRIVER), pod(EXECUTOR, name="e1"), pod(SUBMIT, "Succeeded"))
    plan = decide(observe(resource=over, job=job_with(), pods=alive), SETTINGS)
    assert [item["metadata"]["name"] for item in plan.delete] == ["e1", f"{RUN}-driver", RUN]
    assert plan.status == {}
    assert plan.create == ()
    dead = (pod(DRIVER, "Failed"), pod(EXECUTOR, name="e1"))
    plan = decide(observe(resource=over, job=job_with(), pods=dead), SETTINGS)
    remaining = [] if phase == "Failed" else [f"{RUN}-driver", RUN]
    assert [item["metadata"]["name"] for item in plan.delete] == ["e1", *remaining]
    assert decide(observe(resource=over), SETTINGS) == ReportPlan()


def test_a_terminating_report_is_left_to_the_garbage_collector() -> None:
    gone = report(metadata={"deletionTimestamp": "now"}, status=STARTED)
    assert decide(observe(resource=gone, job=job_with(), pods=(pod(DRIVER),)), SETTINGS) == ReportPlan()


@pytest.mark.parametrize(
    ("resource", "cluster_", "reason"),
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
def test_an_invalid_report_fails_at_once(resource: Object, cluster_: Object, reason: str) -> None:
    plan = decide(observe(resource=resource, cluster=cluster_), SETTINGS)
    assert plan.status["phase"] == "Failed"
    assert complete(plan)[0] == reason
    assert [entry["status"] for entry in plan.status["conditions"] if entry["type"] == "Accepted"] == ["False"]


@pytest.mark.parametrize(
    ("cluster_", "reason"), [(None, "ClusterNotFound"), (cluster({"brokers": {"replicas": 2}}), "InvalidCluster")]
)
def test_a_report_waits_for_its_cluster(cluster_: Object | None, reason: str) -> None:
    plan = decide(observe(resource=report(), cluster=cluster_), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Pending", reason)
    assert plan.requeue_at == NOW + timedelta(seconds=61)
    late = NOW + timedelta(seconds=60)
    assert decide(observe(resource=report(), cluster=cluster_, now=late), SETTINGS).status["phase"] == "Failed"


@pytest.mark.parametrize("cluster_", [None, cluster(), cluster({"brokers": {"replicas": 2}})])
def test_a_run_continues_whatever_becomes_of_its_cluster(cluster_: Object | None) -> None:
    """The run of a report continues until its deadline when its cluster is deleted or changed."""
    (begun,) = [entry for entry in decide(observe(), SETTINGS).create if entry["kind"] == "Job"]
    running = {"cluster": cluster_, "job": begun, "pods": (pod(DRIVER),)}
    plan = decide(observe(**running), SETTINGS)
    assert (plan.status["phase"], plan.status["startTime"]) == ("Running", STARTED["startTime"])
    assert plan.create == plan.delete == ()
    last = NOW + timedelta(minutes=9)
    assert decide(observe(**running, now=last), SETTINGS).status["phase"] == "Running"
    assert complete(decide(observe(**running, now=last + timedelta(seconds=1)), SETTINGS))[0] == "DeadlineExceeded"


def test_fields_of_a_newer_definition_are_ignored_and_reported() -> None:
    plan = decide(observe(resource=report(later={"x": 1}, spark={"executors": 0, "tail": 1})), SETTINGS)
    assert (plan.status["phase"], bool(plan.create)) == ("Submitting", True)
    (accepted,) = [entry for entry in plan.status["conditions"] if entry["type"] == "Accepted"]
    assert accepted["status"] == "True"
    assert accepted["message"].endswith("this operator does not know and ignores spec.later, spec.spark.tail")


def test_a_report_without_an_image_fails() -> None:
    plan = decide(observe(resource=report()), replace(SETTINGS, spark_image=""))
    assert complete(plan)[0] == "NoImage"


def test_a_report_waits_for_the_end_of_its_window() -> None:
    plan = decide(observe(resource=report(end="2026-01-02T03:05:05Z")), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0]) == ("Pending", "WaitingForEnd")
    assert plan.requeue_at == NOW + timedelta(seconds=60)
    assert plan.create == ()


def test_a_reports_own_spec_precedes_its_clusters() -> None:
    own = report(
        end="2026-01-02T03:00:00Z", window="5m", zone="Europe/Bucharest", prometheus={"url": "https://other"},
        spark={"executors": 0}, objectives=[{"name": "a", "type": "delivery", "target": "99"}],
    )  # fmt: skip
    resolved = resolve_report(own, cluster(SLA))
    assert (resolved.prometheus.url, resolved.zone, resolved.spark.executors) == (
        "https://other",
        "Europe/Bucharest",
        0,
    )
    assert [objective.name for objective in resolved.objectives] == ["a"]
    assert (resolved.end - resolved.start, resolved.end.minute) == (timedelta(minutes=5), 0)
    usual = resolve_report(report(), cluster(SLA))
    assert (usual.prometheus.url, usual.zone, usual.spark.deadline) == ("http://prometheus:9090", "UTC", 600)
    assert [objective.name for objective in usual.objectives] == ["fast", "complete", "back"]
    assert usual.end - usual.start == timedelta(minutes=30)
    with pytest.raises(UnresolvableReport, match="MigratoryCluster quotes does not exist"):
        resolve_report(report(), None)


def test_pods_are_restricted_limited_and_have_minimal_permissions() -> None:
    question = resolve_report(
        report(prometheus={"url": "http://p", "secretName": "scraper"}, spark={"historyClaim": "tables"}), cluster(SLA)
    )
    built = {
        f"{entry['kind']} {entry['metadata']['name']}": entry
        for entry in job.objects(observe().run, question, SETTINGS)
    }
    files = built[f"ConfigMap {RUN}-request"]["data"]
    driver, executor = json.loads(files["driver.yaml"]), json.loads(files["executor.yaml"])
    submitter = built[f"Job {RUN}"]["spec"]["template"]
    for template in (driver, executor, submitter):
        assert template["spec"]["securityContext"]["runAsNonRoot"] is True
        assert template["spec"]["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        (container,) = template["spec"]["containers"]
        assert container["securityContext"]["readOnlyRootFilesystem"] is True
        assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert driver["spec"]["activeDeadlineSeconds"] == 660 + 300  # the report's own: 15 minutes, and one more
    assert driver["metadata"]["ownerReferences"][0]["name"] == "weekly"
    assert executor["spec"]["automountServiceAccountToken"] is False
    volumes = [{name for name in volume if name != "name"} for volume in driver["spec"]["volumes"]]
    assert volumes == [{"emptyDir"}, {"configMap"}, {"secret"}, {"secret"}, {"persistentVolumeClaim"}]
    assert [list(entry)[1] for entry in executor["spec"]["volumes"]] == ["emptyDir", "secret", "secret"]
    rules = built[f"Role {RUN}-driver"]["rules"]
    assert rules[0]["resourceNames"] == [RUN]
    assert built[f"Job {RUN}"]["spec"]["backoffLimit"] == 0
    arguments = submitter["spec"]["containers"][0]["args"]
    assert f"spark.kubernetes.driver.pod.name={RUN}-driver" in arguments
    assert "spark.executor.instances=2" in arguments
    assert json.loads(files["request.json"])["history"] == "/var/lib/migratory/history"


def test_driver_and_executors_know_each_other_by_a_secret_in_a_file_and_encrypt() -> None:
    built = {entry["kind"]: entry for entry in decide(observe(resource=report()), SETTINGS).create}
    arguments = built["Job"]["spec"]["template"]["spec"]["containers"][0]["args"]
    assert "spark.authenticate=true" in arguments
    assert "spark.authenticate.secret.file=/etc/migratory/spark/secret" in arguments
    assert not [argument for argument in arguments if argument.startswith("spark.authenticate.secret=")]
    assert {"spark.network.crypto.enabled=true", "spark.io.encryption.enabled=true"} <= set(arguments)
    assert not {"data", "stringData"} & built["Secret"].keys(), "a decision draws no secret"
    for template in ("driver.yaml", "executor.yaml"):
        spec = json.loads(built["ConfigMap"]["data"][template])["spec"]
        assert {"name": "auth", "secret": {"secretName": f"{RUN}-auth", "defaultMode": 0o440}} in spec["volumes"]
        (container,) = spec["containers"]
        assert {"name": "auth", "mountPath": "/etc/migratory/spark", "readOnly": True} in container["volumeMounts"]
        assert "env" not in container


@pytest.mark.parametrize("executors", [0, 2])
def test_the_pods_of_a_run_accept_connections_from_each_other_only(executors: int) -> None:
    created = decide(observe(resource=report(spark={"executors": executors})), SETTINGS).create
    (policy,) = [entry for entry in created if entry["kind"] == "NetworkPolicy"]
    pods = {"podSelector": {"matchLabels": {"app.kubernetes.io/instance": RUN}}}
    assert policy["spec"] == {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    for component in (SUBMIT, DRIVER, EXECUTOR):
        assert pods["podSelector"]["matchLabels"].items() <= observe().run.labels(component).items()


def test_without_executors_the_jobs_pod_is_the_driver() -> None:
    question = resolve_report(report(spark={"executors": 0, "driver": {"memory": "2Gi"}}), cluster(SLA))
    built = {
        f"{entry['kind']} {entry['metadata']['name']}": entry
        for entry in job.objects(observe().run, question, SETTINGS)
    }
    assert not [name for name in built if name.endswith(("-submit", "-auth"))]
    assert len(built[f"Role {RUN}-driver"]["rules"]) == 1
    template = built[f"Job {RUN}"]["spec"]["template"]
    (container,) = template["spec"]["containers"]
    assert template["metadata"]["labels"]["app.kubernetes.io/component"] == DRIVER
    assert container["resources"]["limits"] == {"memory": "2048Mi"}
    assert "spark.driver.memory=1024m" in container["args"]


SECRET: Object = {"metadata": {"name": "scraper", "labels": {"migratory.dev/allow-reports": "true"}}}
SECURED: Object = {"url": "https://a.monitoring.svc:9090/prom", "secretName": "scraper"}


@pytest.mark.parametrize(
    ("spec", "reason", "allowed"),
    [
        ({"spark": {"image": "evil/miner:1"}}, "ImageNotAllowed", "example/spark:1, example/*"),
        ({"spark": {"image": "example/deep/er:1"}}, "ImageNotAllowed", "example/*"),
        ({"spark": {"image": "example"}}, "ImageNotAllowed", "example/*"),
        ({"prometheus": {"url": "http://169.254.169.254"}}, "PrometheusNotAllowed", "http://prometheus:9090, http://p"),
        ({"prometheus": {"url": "https://prometheus:9090"}}, "PrometheusNotAllowed", "http://p"),
        ({"prometheus": {"url": "http://prometheus:9090/admin"}}, "PrometheusNotAllowed", "http://p"),
        ({"prometheus": {"url": "https://evil.com:443.monitoring.svc:9090/prom"}}, "PrometheusNotAllowed", "*"),
        ({"prometheus": {"url": "https://evil.com/.monitoring.svc:9090/prom"}}, "PrometheusNotAllowed", "*"),
        ({"prometheus": {"url": "https://evil.com\\.monitoring.svc:9090/prom"}}, "PrometheusNotAllowed", "*"),
        ({"prometheus": {"url": "https://a...monitoring.svc:9090/prom"}}, "PrometheusNotAllowed", "*"),
        ({"prometheus": {**SECURED, "url": "http://p"}}, "InsecurePrometheus", "https"),
    ],
)
def test_a_report_uses_only_what_the_administrator_allows(spec: Object, reason: str, allowed: str) -> None:
    plan = decide(observe(resource=report(**spec), secret=SECRET), SETTINGS)
    assert (plan.status["phase"], plan.create) == ("Failed", ())
    assert complete(plan)[0] == reason
    assert allowed in complete(plan)[1]
    (accepted,) = [entry for entry in plan.status["conditions"] if entry["type"] == "Accepted"]
    assert (accepted["status"], accepted["reason"]) == ("False", reason)


@pytest.mark.parametrize(
    "spec",
    [
        {"spark": {"image": "example/spark:1"}},
        {"spark": {"image": "example/other@sha256:12ab"}},
        {"prometheus": {"url": "http://prometheus:9090/"}},
        {"prometheus": SECURED},
        {"prometheus": {**SECURED, "url": "https://a.b-c.monitoring.svc:9090/prom/"}},
    ],
)
def test_a_report_is_made_with_what_the_administrator_allows(spec: Object) -> None:
    assert decide(observe(resource=report(**spec), secret=SECRET), SETTINGS).create


def test_a_secret_needs_the_label_that_lets_reports_use_it() -> None:
    resource = report(prometheus=SECURED)
    metadata: Object
    for metadata in ({}, {"labels": {}}, {"labels": {"migratory.dev/allow-reports": "false"}}):
        plan = decide(observe(resource=resource, secret={"metadata": metadata}), SETTINGS)
        assert (plan.status["phase"], complete(plan)[0]) == ("Failed", "SecretNotAllowed")
        assert "migratory.dev/allow-reports=true" in complete(plan)[1]
    plan = decide(observe(resource=resource), SETTINGS)
    assert (plan.status["phase"], complete(plan)[0], plan.create) == ("Pending", "SecretNotFound", ())


def test_an_operator_without_reports_refuses_them_and_ends_runs_that_exist() -> None:
    off = replace(SETTINGS, reports_enabled=False)
    plan = decide(observe(resource=report()), off)
    assert (plan.status["phase"], complete(plan)[0]) == ("Failed", "ReportsDisabled")
    (begun,) = [entry for entry in decide(observe(), SETTINGS).create if entry["kind"] == "Job"]
    assert decide(observe(job=begun, pods=(pod(DRIVER),)), off).status["phase"] == "Running"
    assert decide(observe(job=begun, result=result(ACCOUNT)), off).status["phase"] == "Succeeded"
