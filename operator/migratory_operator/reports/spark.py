"""Builds the input of a run's pods: the arguments of `spark-submit`, and the request file that the pipeline reads;
pure.

The options turn off what the driver need not do at the API server, so that it needs no permission for that: no
ConfigMap for executors, no deletion of Services and volumes at its end. The operator deletes the driver's pod, and the
garbage collector deletes everything that the report owns.
"""

from __future__ import annotations

import json

from migratory_resources.report_settings import SparkPodSpec

from migratory_operator.reports.resolve import ResolvedReport
from migratory_operator.reports.run import ReportRun
from migratory_operator.settings import OperatorSettings
from migratory_operator.status import format_time

RUN_FOLDER = "/etc/migratory/run"
"""Folder of the request and the templates in the pods of a run."""
REQUEST_FILE = "request.json"
HISTORY_FOLDER = "/var/lib/migratory/history"
AUTH_FOLDER = "/etc/migratory/spark"
"""Folder of the secret in driver and executors, by which they know each other."""
AUTH_KEY = "secret"
DRIVER_TEMPLATE, EXECUTOR_TEMPLATE = "driver.yaml", "executor.yaml"
_APPLICATION = "local:///opt/spark/report.py"
_API = "https://kubernetes.default.svc"
# A report is short: the second compiler and a parallel collector would cost more than they save.
_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "
    "-Dlog4j2.configurationFile=file:///opt/spark/log4j2.properties"
)
# Milliseconds. Spark's default of ten seconds is too short for an API server on an overloaded node.
_API_TIMEOUTS = {
    f"spark.kubernetes.{part}.{timeout}Timeout": "60000"
    for part in ("submission", "driver")
    for timeout in ("connection", "request")
}
# The secret is in a file: otherwise Spark draws one and puts it into the environment of the executors, visible to
# everybody who may list pods.
_ENCRYPTION = {
    "spark.authenticate": "true",
    "spark.authenticate.secret.file": f"{AUTH_FOLDER}/{AUTH_KEY}",
    "spark.network.crypto.enabled": "true",
    "spark.network.crypto.authEngineVersion": "2",
    "spark.network.crypto.cipher": "AES/GCM/NoPadding",
    "spark.network.crypto.saslFallback": "false",
    "spark.io.encryption.enabled": "true",
}
_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "64",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64m",
    "spark.driver.defaultJavaOptions": _JAVA,
}


def request_document(run: ReportRun, report: ResolvedReport) -> str:
    """Return the request as JSON, which the pipeline's pod reads; docs/how-to/reports.md describes its form."""
    return json.dumps(
        {
            "run": run.id,
            "namespace": run.owner.namespace,
            "config_map": run.result,
            "cluster": report.cluster,
            "prometheus": report.prometheus.url,
            "start": format_time(report.start),
            "end": format_time(report.end),
            "zone": report.zone,
            "history": None if report.spark.history_claim is None else HISTORY_FOLDER,
            "objectives": [
                objective.model_dump(mode="json", by_alias=True, exclude_none=True) for objective in report.objectives
            ],
        },
        indent=1,
    )


def image(report: ResolvedReport, settings: OperatorSettings) -> str:
    """Return the image of the run's pods: that of the report, or else that of the operator's settings."""
    return report.spark.image or settings.spark_image


def submit_arguments(run: ReportRun, report: ResolvedReport, settings: OperatorSettings) -> list[str]:
    """Return the arguments of the submitter's container: `spark-submit` in cluster mode, with driver and executors as
    pods of their own."""
    spark = report.spark
    options = {
        **_SESSION,
        **_ENCRYPTION,
        **_API_TIMEOUTS,
        "spark.executor.defaultJavaOptions": _JAVA,
        "spark.kubernetes.namespace": run.owner.namespace,
        "spark.kubernetes.container.image": image(report, settings),
        "spark.kubernetes.container.image.pullPolicy": settings.pull_policy,
        "spark.kubernetes.authenticate.driver.serviceAccountName": run.driver,
        "spark.kubernetes.driver.pod.name": run.driver,
        "spark.kubernetes.executor.podNamePrefix": run.id,
        "spark.kubernetes.driver.podTemplateFile": f"{RUN_FOLDER}/{DRIVER_TEMPLATE}",
        "spark.kubernetes.executor.podTemplateFile": f"{RUN_FOLDER}/{EXECUTOR_TEMPLATE}",
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.executor.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        # The first task waits for all executors, at most half a minute.
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.instances": str(spark.executors),
        "spark.executor.cores": "1",
        "spark.kubernetes.driver.request.cores": spark.driver.cpu,
        "spark.kubernetes.executor.request.cores": spark.executor.cpu,
        **_memory_options("driver", spark.driver),
        **_memory_options("executor", spark.executor),
    }
    if settings.pull_secrets:
        options["spark.kubernetes.container.image.pullSecrets"] = ",".join(settings.pull_secrets)
    # Not the run's name: Spark appends suffixes to it, and replaces it by a random one if that is too long.
    return ["submit", "--master", f"k8s://{_API}", "--deploy-mode", "cluster", "--name", "sla", *_arguments(options)]


def single_pod_arguments(report: ResolvedReport) -> list[str]:
    """Return the arguments of the container of a single pod that is driver and executor at once."""
    options = {**_SESSION, "spark.driver.memory": f"{_heap_mib(report.spark.driver)}m"}
    return ["alone", "--master", "local[1]", "--name", "sla", *_arguments(options)]


def _arguments(options: dict[str, str]) -> list[str]:
    """Return the arguments that Spark's options and the program with its request file make."""
    pairs = [text for name, value in options.items() for text in ("--conf", f"{name}={value}")]
    return [*pairs, _APPLICATION, f"{RUN_FOLDER}/{REQUEST_FILE}"]


def _heap_mib(pod: SparkPodSpec) -> int:
    """Return the size of the JVM's heap in MiB: half of the pod's memory. The other half is for Python's aggregation
    and for what the JVM needs beside its heap."""
    return pod.memory // 2**21


def _memory_options(part: str, pod: SparkPodSpec) -> dict[str, str]:
    """Return Spark's options by which the heap and the rest of a pod add up to its memory. `part` is `driver` or
    `executor`."""
    heap = _heap_mib(pod)
    return {
        f"spark.{part}.memory": f"{heap}m",
        f"spark.{part}.memoryOverhead": f"{pod.memory // 2**20 - heap}m",
    }
