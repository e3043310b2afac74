"""Pod templates of the user in the objects that the operator builds: what is added, what stays, what replaces pods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from migratory_operator.names import Object, ResourceOwner
from migratory_operator.objects import brokers, desired, exposure
from migratory_operator.reconcile.decide import decide
from migratory_operator.reconcile.observed import key_of
from migratory_operator.reports import job
from migratory_operator.reports.policy import check_allowed
from migratory_operator.reports.resolve import UnresolvableReport, resolve_report
from migratory_operator.reports.run import ReportRun
from migratory_resources.pods import BrokerPod, PodTemplate, ReportPod, ReservedNames, ZooKeeperPod
from migratory_resources.validation.custom_resources import read_cluster
from migratory_resources.validation.pods import check_pod
from migratory_testing.kubernetes import SETTINGS, cluster, healthy_cluster, report, settled

EXAMPLE = Path(__file__).parents[3] / "manifests" / "examples" / "pods.yaml"
SPEC: Object = yaml.safe_load(EXAMPLE.read_text())["spec"]
SECRET: Object = {"secretName": "a"}
SECURED: Object = {
    "security": {
        "tls": {"clients": SECRET, "peers": SECRET, "administration": SECRET, "zookeeper": SECRET},
        "tokens": {"keys": [{"algorithms": ["ES256"], "secret": {"name": "keys", "key": "k"}}]},
        "zookeeper": {"passwordSecret": {"name": "password", "key": "k"}},
    }
}
"""The spec with which the operator's pods have the most volumes."""


def build(spec: Object) -> dict[tuple[str, str], Object]:
    resource = cluster(spec)
    spec_cluster, owner = read_cluster(resource), ResourceOwner.of(resource)
    built = desired(spec_cluster, owner, SETTINGS, exposure.urls(spec_cluster, owner, {}), frozenset())
    return {key_of(item): item for item in built}


def pod_of(spec: Object, component: str) -> Object:
    template: Object = build(spec)["StatefulSet", f"quotes-{component}"]["spec"]["template"]
    return template


def run_objects(**spark: Any) -> dict[str, Object]:
    resolved = resolve_report(report(prometheus={"url": "http://p"}, spark=spark), cluster())
    return {
        f"{item['kind']} {item['metadata']['name'].removeprefix(RUN.id)}": item
        for item in job.objects(RUN, resolved, SETTINGS)
    }


RUN = ReportRun(ResourceOwner.of(report()))


def report_pods(**spark: Any) -> dict[str, Object]:
    built = run_objects(**spark)
    files = built["ConfigMap -request"]["data"]
    return {
        "submit": built["Job "]["spec"]["template"],
        **{name: json.loads(files[f"{name}.yaml"]) for name in ("driver", "executor")},
    }


def test_a_template_is_merged_and_the_operators_own_stays() -> None:
    bare, made = pod_of({}, "broker"), pod_of(SPEC, "broker")
    assert bare["metadata"]["labels"].items() <= made["metadata"]["labels"].items()
    assert made["metadata"]["labels"]["team"] == "market"
    assert bare["metadata"]["annotations"].items() <= made["metadata"]["annotations"].items()
    spec, before, given = made["spec"], bare["spec"], SPEC["brokers"]["pod"]
    for field in ("nodeSelector", "tolerations", "affinity", "priorityClassName", "imagePullSecrets"):
        assert spec[field] == given[field]
    for field in ("serviceAccountName", "securityContext", "terminationGracePeriodSeconds"):
        assert spec[field] == before[field]
    (broker,), (usual,) = spec["containers"], before["containers"]
    assert broker["env"] == [*usual["env"], *given["env"]]
    assert broker["volumeMounts"] == [*usual["volumeMounts"], *given["volumeMounts"]]
    assert {**broker, "env": None, "volumeMounts": None} == {**usual, "env": None, "volumeMounts": None}
    assert spec["volumes"] == [*before["volumes"], *given["volumes"]]
    host, zone = spec["topologySpreadConstraints"]
    assert host == before["topologySpreadConstraints"][0], "the operator's own for another place stays"
    assert (zone["whenUnsatisfiable"], zone["maxSkew"]) == ("DoNotSchedule", 1)
    assert zone["labelSelector"] == host["labelSelector"], "the same pods are counted"
    (sidecar,) = spec["initContainers"]
    assert sidecar["securityContext"] == usual["securityContext"], "no more privileges than the broker"
    assert (sidecar["restartPolicy"], sidecar["imagePullPolicy"]) == ("Always", "IfNotPresent")
    assert pod_of(SPEC, "zookeeper")["metadata"]["labels"]["team"] == "market"
    assert "nodeSelector" not in pod_of(SPEC, "zookeeper")["spec"]


def test_a_container_chooses_its_user_and_file_system_alone() -> None:
    chosen = {"runAsUser": 65532, "readOnlyRootFilesystem": False}
    added = {"name": "a", "image": "b", "securityContext": chosen, "ports": [{"containerPort": 9100}]}
    *_, made = pod_of({"brokers": {"pod": {"containers": [added]}}}, "broker")["spec"]["containers"]
    assert made["securityContext"] == {
        "allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}, **chosen
    }  # fmt: skip
    assert made["ports"] == [{"containerPort": 9100, "protocol": "TCP"}], "as the API server's record has its key"


def test_an_empty_template_changes_nothing() -> None:
    assert build({"brokers": {"pod": {}}, "zookeeper": {"pod": {}}}) == build({})
    assert report_pods(pod={}) == report_pods()


def is_refused(template: PodTemplate) -> bool:
    return check_pod("pod", template) != []


def reserved_by(pod: Object) -> ReservedNames:
    """Return all names that the operator's own pod has."""
    containers = pod["spec"]["containers"]
    assert "initContainers" not in pod["spec"]
    return ReservedNames(
        containers=tuple(one["name"] for one in containers),
        volumes=tuple(volume["name"] for volume in pod["spec"]["volumes"]),
        paths=tuple(mount["mountPath"] for one in containers for mount in one["volumeMounts"]),
        env=tuple(variable["name"] for one in containers for variable in one.get("env", ())),
        ports=tuple(port["containerPort"] for one in containers for port in one.get("ports", ())),
    )


def own_pods() -> list[tuple[type[PodTemplate], Object]]:
    spark = {"historyClaim": "tables"}
    secured = {**SECURED, "zookeeper": {"storage": {"ephemeral": True}}}
    alone = run_objects(**spark, executors=0)["Job "]["spec"]["template"]
    return [
        (BrokerPod, pod_of(SECURED, "broker")),
        (ZooKeeperPod, pod_of(SECURED, "zookeeper")),
        (ZooKeeperPod, pod_of(secured, "zookeeper")),
        *((ReportPod, pod) for pod in report_pods(**spark).values()),
        (ReportPod, alone),
    ]


@pytest.mark.parametrize(("kind", "pod"), own_pods(), ids=lambda value: getattr(value, "__name__", ""))
def test_every_name_of_the_operators_own_pods_is_refused(kind: type[PodTemplate], pod: Object) -> None:
    found = reserved_by(pod)
    assert found.containers
    assert found.volumes
    assert all(is_refused(kind.model_validate({"env": [{"name": name}]})) for name in found.env)
    extra: Object = {"name": "a", "image": "b"}
    for name in found.containers:
        assert is_refused(kind.model_validate({"initContainers": [{**extra, "name": name}]}))
    for name in found.volumes:
        assert is_refused(kind.model_validate({"volumes": [{"name": name, "emptyDir": {}}]}))
    mounted = {"volumes": [{"name": "a", "emptyDir": {}}]}
    for path in found.paths:
        for place in (path, f"{path}/below", path.rpartition("/")[0] or "/"):
            assert is_refused(kind.model_validate({**mounted, "volumeMounts": [{"name": "a", "mountPath": place}]}))
    for port in found.ports:
        assert is_refused(kind.model_validate({"containers": [{**extra, "ports": [{"containerPort": port}]}]}))
    for label in pod["metadata"]["labels"]:
        assert is_refused(kind.model_validate({"labels": {label: "x"}}))


def applied_names(spec: Object) -> set[tuple[str, str]]:
    """Return what the operator applies when a healthy cluster gets this spec."""
    observed = healthy_cluster()
    return {
        key_of(item) for item in decide(replace(observed, resource={**observed.resource, "spec": spec}), SETTINGS).apply
    }


def test_a_changed_template_changes_one_stateful_set_and_an_account_none() -> None:
    assert applied_names({"brokers": {"pod": {"labels": {"team": "a"}}}}) == {("StatefulSet", "quotes-broker")}
    assert applied_names({"zookeeper": {"pod": {"labels": {"team": "a"}}}}) == {("StatefulSet", "quotes-zookeeper")}
    account = {"brokers": {"pod": {"serviceAccountAnnotations": {"role": "a"}}}}
    assert applied_names(account) == {("ServiceAccount", "quotes")}
    assert applied_names({"sla": {"spark": {"pod": {"labels": {"team": "a"}}}}}) == set()


def test_scaling_keeps_the_pods_of_a_template_with_annotations() -> None:
    pod = {"annotations": {"example.com/a": "b"}}
    live = settled(build({"brokers": {"pod": pod}})["StatefulSet", "quotes-broker"])
    wanted = build({"brokers": {"pod": pod, "replicas": 5}})["StatefulSet", "quotes-broker"]
    kept = brokers.keep_config_hash(wanted, live)
    assert kept["spec"]["template"] == live["spec"]["template"]


def test_a_template_that_is_gone_leaves_nothing() -> None:
    pod = {"labels": {"team": "a"}, "env": [{"name": "A", "value": "b"}], "nodeSelector": {"pool": "a"}}
    observed = healthy_cluster(cluster({"brokers": {"pod": pod}}))
    live = observed.objects["StatefulSet", "quotes-broker"]
    (wanted,) = decide(replace(observed, resource={**observed.resource, "spec": {}}), SETTINGS).apply
    assert key_of(wanted) == key_of(live)
    assert decide(observed, SETTINGS).apply == ()
    assert "nodeSelector" not in wanted["spec"]["template"]["spec"]


def test_a_conflicting_template_blocks_and_names_the_field() -> None:
    observed = healthy_cluster()
    spec = {"brokers": {"pod": {"env": [{"name": "POD_NAME", "value": "x"}]}}}
    plan = decide(replace(observed, resource={**observed.resource, "spec": spec}), SETTINGS)
    assert (plan.apply, plan.delete, plan.replace) == ((), (), ())
    (degraded,) = (one for one in plan.status["conditions"] if one["type"] == "Degraded")
    assert (degraded["status"], degraded["reason"]) == ("True", "InvalidSpec")
    assert "spec.brokers.pod.env[0].name: 'POD_NAME' is not allowed" in degraded["message"]


REPORT_POD: Mapping[str, Any] = {
    "labels": {"team": "market"},
    "annotations": {"a": "b"},
    "serviceAccountAnnotations": {"role": "a"},
    "imagePullSecrets": [{"name": "registry"}],
    "tolerations": [{"operator": "Exists"}],
    "topologySpreadConstraints": [{"topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway"}],
    "env": [{"name": "A", "value": "b"}],
    "volumes": [{"name": "ca", "configMap": {"name": "ca"}}],
    "volumeMounts": [{"name": "ca", "mountPath": "/etc/ca"}],
    "initContainers": [{"name": "mesh", "image": "mesh", "restartPolicy": "Always"}],
}


def test_a_reports_template_reaches_driver_and_executors_and_places_the_submitter() -> None:
    pods, bare = report_pods(pod=REPORT_POD), report_pods()
    for name, pod in pods.items():
        assert pod["metadata"]["labels"] == {"team": "market", **bare[name]["metadata"]["labels"]}
        assert pod["spec"]["tolerations"] == [{"operator": "Exists"}]
        assert pod["spec"]["imagePullSecrets"] == [{"name": "registry"}]
        (spread,) = pod["spec"]["topologySpreadConstraints"]
        assert spread["labelSelector"] == {"matchLabels": {"app.kubernetes.io/instance": RUN.id}}
        (own,) = pod["spec"]["containers"]
        assert ({"name": "A", "value": "b"} in own.get("env", ())) == (name != "submit")
        assert ("initContainers" in pod["spec"]) == (name != "submit")
    built = run_objects(pod=REPORT_POD)
    assert built["ServiceAccount -driver"]["metadata"]["annotations"] == {"role": "a"}
    assert "annotations" not in built["ServiceAccount -submit"]["metadata"]


def test_secrets_for_registries_are_the_operators_and_the_templates() -> None:
    settings = replace(SETTINGS, pull_secrets=("own", "registry"))
    resolved = resolve_report(report(prometheus={"url": "http://p"}, spark={"pod": REPORT_POD}), cluster())
    (made,) = (item for item in job.objects(RUN, resolved, settings) if item["kind"] == "Job")
    assert made["spec"]["template"]["spec"]["imagePullSecrets"] == [{"name": "own"}, {"name": "registry"}]


def test_what_reports_put_into_their_pods_needs_the_administrators_consent() -> None:
    def check(pod: Mapping[str, Any], allowed: bool) -> None:
        resolved = resolve_report(report(prometheus={"url": "http://p"}, spark={"pod": pod}), cluster())
        check_allowed(resolved, replace(SETTINGS, reports_pod_content=allowed), None)

    check(REPORT_POD, True)
    placing = {field: REPORT_POD[field] for field in ("labels", "imagePullSecrets", "tolerations")}
    check(placing, False)
    for field in REPORT_POD.keys() - placing.keys() - {"topologySpreadConstraints", "volumeMounts"}:
        with pytest.raises(
            UnresolvableReport, match=rf"spark\.pod may not have {field}; .*reports\.podContent"
        ) as caught:
            check({**placing, field: REPORT_POD[field]}, False)
        assert caught.value.reason == "PodContentNotAllowed"


def test_an_applied_template_is_not_applied_again() -> None:
    assert decide(healthy_cluster(cluster(SPEC)), SETTINGS).apply == ()
