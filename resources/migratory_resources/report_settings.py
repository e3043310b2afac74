"""Settings of the reports that Spark makes on Kubernetes: the Prometheus server, the pods, the time zone.

Used in the models of the cluster resource (`spec.sla`) and of the SLAReport resource.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from migratory_resources.fields import IMAGE, ByteSize, Duration, PatternText, Quantity, ResourceModel, WholeNumber
from migratory_resources.objectives import ZONE, ZONE_FORM
from migratory_resources.pods import ReportPod

URL = r"https?://[^\s,/?#@]+(/[^\s,?#]*)?"
"""A URL without "user:password@", which would show in conditions and in the log."""
OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"

Zone = Annotated[str, PatternText(ZONE, 64, ZONE_FORM)]


class PrometheusSpec(ResourceModel):
    """The Prometheus server from which reports read, and the Secret with the credentials that it requires, if any."""

    url: Annotated[str, PatternText(URL, 1000, "an http:// or https:// URL without a user or a query")] = Field(
        description="The server that scrapes brokers and clients, such as http://prometheus.monitoring:9090"
    )
    secret_name: Annotated[str, PatternText(OBJECT_NAME, 253, "a Secret's name")] | None = Field(
        default=None,
        description="Secret of this namespace with the credentials that the server requires: any of the keys token, "
        "username, password, ca.crt, tls.crt, tls.key",
    )


class SparkPodSpec(ResourceModel):
    """CPU and memory, in bytes, of a Spark pod."""

    cpu: Annotated[str, Quantity()] = Field(default="200m", description="CPU request")
    memory: Annotated[int, ByteSize("768Mi", "256Gi")] = Field(
        default=2**30, description="Memory request and limit of the pod; the JVM gets half of it"
    )


class SparkSpec(ResourceModel):
    """The settings of the Spark pods that make reports, and their time limit."""

    executors: Annotated[int, WholeNumber(0, 100)] = Field(
        default=2, description="Pods that read and aggregate samples; 0: the driver's pod does it alone"
    )
    driver: SparkPodSpec = Field(default=SparkPodSpec(), description="The driver's pod")
    executor: SparkPodSpec = Field(default=SparkPodSpec(), description="Each executor's pod")
    deadline: Annotated[float, Duration("30s", "1d")] = Field(
        default=900.0, description="Time limit of a report; a report that has not ended by then has failed"
    )
    image: Annotated[str, PatternText(IMAGE, 511, "an image's name")] | None = Field(
        default=None, description="Image to use instead of the operator's default"
    )
    history_claim: Annotated[str, PatternText(OBJECT_NAME, 253, "a PersistentVolumeClaim's name")] | None = Field(
        default=None, description="PersistentVolumeClaim to whose Parquet tables each report adds its rows"
    )
    pod: ReportPod | None = Field(default=None, description="What is added to the pods of driver and executors")
