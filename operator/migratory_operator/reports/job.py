"""The Job that begins a run, and the templates of the pods that Spark makes; pure."""

from __future__ import annotations

import json
import math
from datetime import timedelta

from migratory_resources.report_settings import SparkPodSpec

from migratory_operator.names import Object
from migratory_operator.objects.pods import no_privileges, nobody
from migratory_operator.reports import access, spark
from migratory_operator.reports.asked import Asked
from migratory_operator.reports.request import FOLDER, HISTORY, QUESTION, question
from migratory_operator.reports.run import DRIVER, EXECUTOR, SUBMIT, Run
from migratory_operator.settings import Settings

_SECRET = "/etc/migratory/prometheus"
GRACE = timedelta(seconds=60)
"""That a pod has beyond the report's deadline, after which the kubelet ends it also where there is no operator."""
_SUBMITTER = {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "512Mi"}}


def objects(run: Run, asked: Asked, settings: Settings) -> list[Object]:
    """All that a run needs, in the order in which it is made. The Job comes last: where it is, the rest was made."""
    alone = asked.spark.executors == 0
    files = {QUESTION: question(run, asked)}
    if not alone:
        files[spark.DRIVER_TEMPLATE] = json.dumps(_driver(run, asked))
        files[spark.EXECUTOR_TEMPLATE] = json.dumps(_executor(run, asked))
    return [
        *access.objects(run, alone),
        run.thing("v1", "ConfigMap", run.result),
        run.thing("v1", "ConfigMap", run.request, data=files),
        _job(run, asked, settings, alone),
    ]


def deadline(job: Object) -> timedelta:
    """Of the report that this Job was made for."""
    return timedelta(seconds=job["spec"]["activeDeadlineSeconds"]) - GRACE


def _job(run: Run, asked: Asked, settings: Settings, alone: bool) -> Object:
    pod = _driver(run, asked) if alone else _submitter(run)
    pod["spec"]["serviceAccountName"] = run.driver if alone else run.submit
    if settings.pull_secrets:
        pod["spec"]["imagePullSecrets"] = [{"name": name} for name in settings.pull_secrets]
    container = pod["spec"]["containers"][0]
    container |= {
        "name": "report" if alone else "submit",
        "image": spark.image(asked, settings),
        "imagePullPolicy": settings.pull_policy,
        "args": spark.alone(asked) if alone else spark.submission(run, asked, settings),
    }
    if alone:
        container["resources"] = _resources(asked.spark.driver)
        # its owner is the Job
        del pod["metadata"]["ownerReferences"]
    spec = {
        # Whoever would try again could not know whether the first had made a driver, and what became of it.
        "backoffLimit": 0,
        "activeDeadlineSeconds": _limit(asked),
        "template": pod,
    }
    return run.thing("batch/v1", "Job", run.job, spec=spec)


def _submitter(run: Run) -> Object:
    return _pod(
        run,
        SUBMIT,
        _mounts(),
        _volumes(run),
        resources=_SUBMITTER,
        env=[{"name": "SPARK_SUBMIT_OPTS", "value": "-Xmx160m -XX:TieredStopAtLevel=1 -XX:+UseSerialGC"}],
    )


def _driver(run: Run, asked: Asked) -> Object:
    mounts, volumes = _mounts(), _volumes(run)
    _add_secret(asked, mounts, volumes)
    if asked.spark.history_claim is not None:
        mounts.append({"name": "history", "mountPath": HISTORY})
        volumes.append({"name": "history", "persistentVolumeClaim": {"claimName": asked.spark.history_claim}})
    pod = _pod(run, DRIVER, mounts, volumes)
    pod["metadata"]["ownerReferences"] = [run.owner.reference]
    # A driver that hangs is ended, whether there is an operator or not.
    pod["spec"]["activeDeadlineSeconds"] = _limit(asked)
    return pod


def _executor(run: Run, asked: Asked) -> Object:
    mounts: list[Object] = [{"name": "tmp", "mountPath": "/tmp"}]
    volumes: list[Object] = [{"name": "tmp", "emptyDir": {}}]
    _add_secret(asked, mounts, volumes)
    pod = _pod(run, EXECUTOR, mounts, volumes)
    pod["spec"] |= {"automountServiceAccountToken": False, "activeDeadlineSeconds": _limit(asked)}
    return pod


def _pod(run: Run, component: str, mounts: list[Object], volumes: list[Object], **container: object) -> Object:
    return {
        "metadata": {"labels": run.labels(component)},
        "spec": {
            "restartPolicy": "Never",
            "automountServiceAccountToken": True,
            "enableServiceLinks": False,
            "terminationGracePeriodSeconds": 10,
            "securityContext": nobody(),
            "containers": [
                {
                    "name": component,
                    "terminationMessagePolicy": "FallbackToLogsOnError",
                    "securityContext": no_privileges(),
                    "volumeMounts": mounts,
                    **container,
                }
            ],
            "volumes": volumes,
        },
    }


def _mounts() -> list[Object]:
    return [{"name": "tmp", "mountPath": "/tmp"}, {"name": "run", "mountPath": FOLDER, "readOnly": True}]


def _volumes(run: Run) -> list[Object]:
    return [{"name": "tmp", "emptyDir": {}}, {"name": "run", "configMap": {"name": run.request}}]


def _add_secret(asked: Asked, mounts: list[Object], volumes: list[Object]) -> None:
    if asked.prometheus.secret_name is not None:
        mounts.append({"name": "prometheus", "mountPath": _SECRET, "readOnly": True})
        volumes.append({"name": "prometheus", "secret": {"secretName": asked.prometheus.secret_name}})


def _resources(pod: SparkPodSpec) -> Object:
    memory = f"{pod.memory // 2**20}Mi"
    return {"requests": {"cpu": pod.cpu, "memory": memory}, "limits": {"memory": memory}}


def _limit(asked: Asked) -> int:
    return math.ceil(asked.spark.deadline + GRACE.total_seconds())
