"""Spark's options for a run: what `spark-submit` is called with; pure.

What the driver need not do at the API server it is told not to do, so that it need not be allowed to: no ConfigMap for
executors, no deletion of Services and volumes at its end. What is left then belongs to the driver's pod, which the
operator removes, or to the report.
"""

from __future__ import annotations

from migratory_resources.report_settings import SparkPodSpec

from migratory_operator.reports.asked import Asked
from migratory_operator.reports.request import FOLDER, QUESTION
from migratory_operator.reports.run import Run
from migratory_operator.settings import Settings

DRIVER_TEMPLATE, EXECUTOR_TEMPLATE = "driver.yaml", "executor.yaml"
_APPLICATION = "local:///opt/spark/report.py"
_API = "https://kubernetes.default.svc"
# One report is short: the second compiler and a parallel collector would cost more than they bring.
_JAVA = (
    "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData "
    "-Dlog4j2.configurationFile=file:///opt/spark/log4j2.properties"
)
# A busy API server is waited for: ten seconds, as is usual, is what one takes whose node is overloaded.
_PATIENT = {
    f"spark.kubernetes.{part}.{wait}Timeout": "60000"
    for part in ("submission", "driver")
    for wait in ("connection", "request")
}
_SESSION = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.shuffle.partitions": "64",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64m",
    "spark.driver.defaultJavaOptions": _JAVA,
}


def image(asked: Asked, settings: Settings) -> str:
    return asked.spark.image or settings.spark_image


def submission(run: Run, asked: Asked, settings: Settings) -> list[str]:
    """In cluster mode: driver and executors are pods of their own."""
    spark = asked.spark
    options = {
        **_SESSION,
        **_PATIENT,
        "spark.executor.defaultJavaOptions": _JAVA,
        "spark.kubernetes.namespace": run.owner.namespace,
        "spark.kubernetes.container.image": image(asked, settings),
        "spark.kubernetes.container.image.pullPolicy": settings.pull_policy,
        "spark.kubernetes.authenticate.driver.serviceAccountName": run.driver,
        "spark.kubernetes.driver.pod.name": run.driver,
        "spark.kubernetes.executor.podNamePrefix": run.id,
        "spark.kubernetes.driver.podTemplateFile": f"{FOLDER}/{DRIVER_TEMPLATE}",
        "spark.kubernetes.executor.podTemplateFile": f"{FOLDER}/{EXECUTOR_TEMPLATE}",
        "spark.kubernetes.submission.waitAppCompletion": "false",
        "spark.kubernetes.executor.disableConfigMap": "true",
        "spark.kubernetes.executor.deleteOnTermination": "false",
        "spark.kubernetes.driver.ownPersistentVolumeClaim": "false",
        "spark.kubernetes.driver.service.deleteOnTermination": "false",
        # the first task waits for all executors, half a minute at most
        "spark.scheduler.minRegisteredResourcesRatio": "1.0",
        "spark.executor.instances": str(spark.executors),
        "spark.executor.cores": "1",
        "spark.kubernetes.driver.request.cores": spark.driver.cpu,
        "spark.kubernetes.executor.request.cores": spark.executor.cpu,
        **_memory("driver", spark.driver),
        **_memory("executor", spark.executor),
    }
    if settings.pull_secrets:
        options["spark.kubernetes.container.image.pullSecrets"] = ",".join(settings.pull_secrets)
    # Not the run's name: Spark adds endings to it, and falls back on a random one where that is too long.
    return ["submit", "--master", f"k8s://{_API}", "--deploy-mode", "cluster", "--name", "sla", *_written(options)]


def alone(asked: Asked) -> list[str]:
    """In one pod, which is driver and executor at once."""
    options = {**_SESSION, "spark.driver.memory": f"{_heap(asked.spark.driver)}m"}
    return ["alone", "--master", "local[1]", "--name", "sla", *_written(options)]


def _written(options: dict[str, str]) -> list[str]:
    pairs = [text for name, value in options.items() for text in ("--conf", f"{name}={value}")]
    return [*pairs, _APPLICATION, f"{FOLDER}/{QUESTION}"]


def _heap(pod: SparkPodSpec) -> int:
    """In MiB. The other half is for Python, which does the sums, and for what a JVM needs besides."""
    return pod.memory // 2**21


def _memory(part: str, pod: SparkPodSpec) -> dict[str, str]:
    heap = _heap(pod)
    return {
        f"spark.{part}.memory": f"{heap}m",
        f"spark.{part}.memoryOverhead": f"{pod.memory // 2**20 - heap}m",
    }
