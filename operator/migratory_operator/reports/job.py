"""Builders of the objects of a run: the Job that starts it, the templates of Spark's pods, their permissions, network
policy and secret; pure.

With executors, the Job's pod is the submitter, which creates the driver's pod and its Service and ConfigMap. The driver
creates executors. Without executors, the Job's pod is the driver. The driver writes its result into one ConfigMap.
Executors have no permissions. The operator has all of these permissions itself, because Kubernetes lets nobody grant
permissions that they lack.
"""

from __future__ import annotations

import json
import math
from datetime import timedelta

from migratory_resources.report_settings import SparkPodSpec

from migratory_operator.names import Object
from migratory_operator.objects.pods import container_security_context, pod_security_context
from migratory_operator.objects.templates import annotate, merge_template
from migratory_operator.reports import spark
from migratory_operator.reports.resolve import ResolvedReport
from migratory_operator.reports.run import DRIVER, EXECUTOR, INSTANCE_LABEL, SUBMIT, ReportRun
from migratory_operator.reports.spark import AUTH_FOLDER, HISTORY_FOLDER, REQUEST_FILE, RUN_FOLDER, request_document
from migratory_operator.settings import OperatorSettings

_SECRET_FOLDER = "/etc/migratory/prometheus"
GRACE = timedelta(seconds=60)
"""Time after the report's deadline at which Kubernetes ends the pods, even without an operator."""
_SUBMITTER_RESOURCES = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def objects(run: ReportRun, report: ResolvedReport, settings: OperatorSettings) -> list[Object]:
    """Return all objects of a run, in the order of their creation. The Job comes last: if it exists, all others do."""
    is_single_pod = report.spark.executors == 0
    files = {REQUEST_FILE: request_document(run, report)}
    if not is_single_pod:
        files[spark.DRIVER_TEMPLATE] = json.dumps(_driver(run, report, settings))
        files[spark.EXECUTOR_TEMPLATE] = json.dumps(_executor(run, report, settings))
    # The controller fills the Secret when it creates it.
    secret = [] if is_single_pod else [run.build_object("v1", "Secret", run.auth, type="Opaque", immutable=True)]
    return [
        *_permissions(run, report, is_single_pod),
        _policy(run),
        *secret,
        run.build_object("v1", "ConfigMap", run.result),
        run.build_object("v1", "ConfigMap", run.request, data=files),
        _job(run, report, settings, is_single_pod),
    ]


def deadline(job: Object) -> timedelta:
    """Return the report's deadline, as the time from its start, read back from the time limit of its Job."""
    return timedelta(seconds=job["spec"]["activeDeadlineSeconds"]) - GRACE


def _policy(run: ReportRun) -> Object:
    """Return the network policy of the run's pods: they accept connections from each other only."""
    pods = {"podSelector": {"matchLabels": {INSTANCE_LABEL: run.id}}}
    spec = {**pods, "policyTypes": ["Ingress"], "ingress": [{"from": [pods]}]}
    return run.build_object("networking.k8s.io/v1", "NetworkPolicy", run.id, spec=spec)


def _permissions(run: ReportRun, report: ResolvedReport, is_single_pod: bool) -> list[Object]:
    """Return the service accounts, roles and role bindings of the driver and, unless it is a single pod, of the
    submitter. The driver of a single pod may create no pods."""
    result = _rule("", ["configmaps"], ["patch"], resourceNames=[run.result])
    executors = _rule("", ["pods"], ["get", "list", "watch", "create", "delete"])
    account, *others = _account_with_role(run, run.driver, [result] if is_single_pod else [result, executors])
    template = report.spark.pod
    built = [annotate(account, template.service_account_annotations if template is not None else {}), *others]
    if not is_single_pod:
        built += _account_with_role(
            run,
            run.submit,
            [
                _rule("", ["pods"], ["create", "delete"]),
                _rule("", ["services", "configmaps"], ["create", "patch"]),
                _rule("networking.k8s.io", ["networkpolicies"], ["create", "patch"]),
            ],
        )
    return built


def _account_with_role(run: ReportRun, name: str, rules: list[Object]) -> list[Object]:
    """Return a service account, a role with these rules, and the binding of both, all with this name."""
    group = "rbac.authorization.k8s.io"
    subject = {"kind": "ServiceAccount", "name": name, "namespace": run.owner.namespace}
    reference = {"apiGroup": group, "kind": "Role", "name": name}
    return [
        run.build_object("v1", "ServiceAccount", name, automountServiceAccountToken=False),
        run.build_object(f"{group}/v1", "Role", name, rules=rules),
        run.build_object(f"{group}/v1", "RoleBinding", name, roleRef=reference, subjects=[subject]),
    ]


def _rule(group: str, resources: list[str], verbs: list[str], **fields: list[str]) -> Object:
    return {"apiGroups": [group], "resources": resources, "verbs": verbs, **fields}


def _job(run: ReportRun, report: ResolvedReport, settings: OperatorSettings, is_single_pod: bool) -> Object:
    """Return the Job of a run. Its pod is the submitter, or the driver if the run is a single pod. It is never
    retried."""
    pod = _driver(run, report, settings) if is_single_pod else _submitter(run, report, settings)
    pod["spec"]["serviceAccountName"] = run.driver if is_single_pod else run.submit
    if settings.pull_secrets:
        secrets = [{"name": name} for name in settings.pull_secrets]
        added = [one for one in pod["spec"].get("imagePullSecrets", ()) if one not in secrets]
        pod["spec"]["imagePullSecrets"] = [*secrets, *added]
    container = pod["spec"]["containers"][0]
    container |= {
        "name": "report" if is_single_pod else "submit",
        "image": spark.image(report, settings),
        "imagePullPolicy": settings.pull_policy,
        "args": spark.single_pod_arguments(report) if is_single_pod else spark.submit_arguments(run, report, settings),
    }
    if is_single_pod:
        container["resources"] = _resources(report.spark.driver)
        # The Job owns the pod.
        del pod["metadata"]["ownerReferences"]
    spec = {
        # No retry: it could not tell whether the first attempt had created a driver, or what became of it.
        "backoffLimit": 0,
        "activeDeadlineSeconds": _time_limit(report),
        "template": pod,
    }
    return run.build_object("batch/v1", "Job", run.job, spec=spec)


def _submitter(run: ReportRun, report: ResolvedReport, settings: OperatorSettings) -> Object:
    """Return the template of the submitter's pod, without image and arguments."""
    pod = _pod(
        run,
        SUBMIT,
        _mounts(),
        _volumes(run),
        resources=_SUBMITTER_RESOURCES,
        env=[{"name": "SPARK_SUBMIT_OPTS", "value": "-Xmx160m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}],
    )
    return _merge(pod, run, report, settings, only_scheduling=True)


def _driver(run: ReportRun, report: ResolvedReport, settings: OperatorSettings) -> Object:
    """Return the template of the driver's pod, or of a single pod, without image and arguments."""
    mounts, volumes = _mounts(), _volumes(run)
    _add_secrets(run, report, mounts, volumes)
    if report.spark.history_claim is not None:
        mounts.append({"name": "history", "mountPath": HISTORY_FOLDER})
        volumes.append({"name": "history", "persistentVolumeClaim": {"claimName": report.spark.history_claim}})
    pod = _pod(run, DRIVER, mounts, volumes)
    pod["metadata"]["ownerReferences"] = [run.owner.reference]
    # The kubelet ends a driver that hangs, even without an operator.
    pod["spec"]["activeDeadlineSeconds"] = _time_limit(report)
    return _merge(pod, run, report, settings)


def _executor(run: ReportRun, report: ResolvedReport, settings: OperatorSettings) -> Object:
    """Return the template of an executor's pod, without image and arguments."""
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    _add_secrets(run, report, mounts, volumes)
    pod = _pod(run, EXECUTOR, mounts, volumes)
    pod["spec"] |= {"automountServiceAccountToken": False, "activeDeadlineSeconds": _time_limit(report)}
    return _merge(pod, run, report, settings)


def _merge(
    pod: Object, run: ReportRun, report: ResolvedReport, settings: OperatorSettings, *, only_scheduling: bool = False
) -> Object:
    """Return the pod with what the report's pod template adds."""
    selector = {INSTANCE_LABEL: run.id}
    return merge_template(pod, report.spark.pod, selector, settings, only_scheduling=only_scheduling)


def _pod(run: ReportRun, component: str, mounts: list[Object], volumes: list[Object], **container: object) -> Object:
    """Return the template of one of the run's pods, with one container.

    :param component: SUBMIT, DRIVER or EXECUTOR.
    :param container: more fields of the container.
    """
    return {
        "metadata": {"labels": run.labels(component)},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 10,
            "securityContext": pod_security_context(),
            "containers": [
                {
                    "name": component,
                    # The output of driver and executors may quote what a server sent, and stays in their logs.
                    "terminationMessagePolicy": "FallbackToLogsOnError" if component == SUBMIT else "File",
                    "securityContext": container_security_context(),
                    "volumeMounts": mounts,
                    **container,
                }
            ],
            "volumes": volumes,
        },
    }


def _mounts() -> list[Object]:
    return [{"name": "tmp", "mountPath": "/tmp"}, {"name": "run", "mountPath": RUN_FOLDER, "readOnly": True}]


def _volumes(run: ReportRun) -> list[Object]:
    return [{"name": "tmp", "emptyDir": {}}, {"name": "run", "configMap": {"name": run.request}}]


def _add_secrets(run: ReportRun, report: ResolvedReport, mounts: list[Object], volumes: list[Object]) -> None:
    """Add to `mounts` and `volumes` the secret by which driver and executors know each other, if there are executors,
    and the Secret for Prometheus, if the report names one."""
    if report.spark.executors > 0:
        mounts.append({"name": "auth", "mountPath": AUTH_FOLDER, "readOnly": True})
        volumes.append({"name": "auth", "secret": {"secretName": run.auth, "defaultMode": 0o440}})
    if report.prometheus.secret_name is not None:
        mounts.append({"name": "prometheus", "mountPath": _SECRET_FOLDER, "readOnly": True})
        volumes.append({"name": "prometheus", "secret": {"secretName": report.prometheus.secret_name}})


def _resources(pod: SparkPodSpec) -> Object:
    memory = f"{pod.memory // 2**20}Mi"
    return {"requests": {"cpu": pod.cpu, "memory": memory}, "limits": {"memory": memory}}


def _time_limit(report: ResolvedReport) -> int:
    """Return the `activeDeadlineSeconds` of the report's Job, driver and executors: the report's deadline and GRACE, in
    seconds. Kubernetes ends them then, even without the operator."""
    return math.ceil(report.spark.deadline + GRACE.total_seconds())
