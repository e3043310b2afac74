"""What reports by Spark need besides objectives: whom to ask, when, with how much. Only Kubernetes gives it a meaning.

Shared by the cluster resource (`spec.sla`) and the SLAReport resource.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from cronsim import CronSim, CronSimError
from pydantic import Field, model_validator

from migratory_resources.fields import IMAGE, Duration, Model, Quantity, Size, Text, Whole, not_allowed
from migratory_resources.model import Sla
from migratory_resources.objectives import ZONE, ZONE_FORM

# no "user:password@" either: it would stand in conditions and in the log
URL = r"https?://[^\s,/?#@]+(/[^\s,?#]*)?"
OBJECT_NAME = r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?"
CRON = r"[-0-9A-Za-z*/,#]+( [-0-9A-Za-z*/,#]+){4}"
_CRON_FORM = 'five fields as of cron (minute, hour, day, month, weekday), such as "*/30 * * * *"'


class Prometheus(Model):
    url: Annotated[str, Text(URL, 1000, "an http:// or https:// URL without a user or a query")] = Field(
        description="The server that scrapes brokers and clients, such as http://prometheus.monitoring:9090"
    )
    secret_name: Annotated[str, Text(OBJECT_NAME, 253, "a Secret's name")] | None = Field(
        default=None,
        description="A Secret of this namespace with any of the keys token, username, password, ca.crt, tls.crt, "
        "tls.key, where the server wants them",
    )


class SparkPod(Model):
    cpu: Annotated[str, Quantity()] = Field(default="200m", description="Cores that the scheduler keeps free")
    memory: Annotated[int, Size("768Mi", "256Gi")] = Field(
        default=2**30, description="Of the pod, half of it for the JVM; both requested and not to be exceeded"
    )


class Spark(Model):
    executors: Annotated[int, Whole(0, 100)] = Field(
        default=2, description="Pods that read and add up samples; with 0 the driver's pod does it alone"
    )
    driver: SparkPod = Field(default=SparkPod(), description="The pod that makes the report")
    executor: SparkPod = Field(default=SparkPod(), description="Each of the executors' pods")
    deadline: Annotated[float, Duration("30s", "1d")] = Field(
        default=900.0, description="From the report's begin to its end; what has not ended by then has failed"
    )
    image: Annotated[str, Text(IMAGE, 511, "an image's name")] | None = Field(
        default=None, description="Instead of the image that the operator brings"
    )
    history_claim: Annotated[str, Text(OBJECT_NAME, 253, "a PersistentVolumeClaim's name")] | None = Field(
        default=None, description="A volume on which each report adds its rows to Parquet tables"
    )


Zone = Annotated[str, Text(ZONE, 64, ZONE_FORM)]


class KubernetesSla(Sla):
    prometheus: Prometheus | None = Field(default=None, description="Where reports find what was measured")
    schedule: Annotated[str, Text(CRON, 200, _CRON_FORM)] | None = Field(
        default=None, description="When a report is made, in cron's five fields; it looks back on window"
    )
    zone: Zone = Field(default="UTC", description="The time zone of schedule, and of the reports' hours and days")
    history_limit: Annotated[int, Whole(1, 100)] = Field(
        default=5, description="Scheduled reports that are kept, the newest ones"
    )
    spark: Spark = Field(default=Spark(), description="How reports are made")

    @model_validator(mode="after")
    def _can_be_kept(self) -> Self:
        check_zone(self.zone)
        if self.schedule is None:
            return self
        if self.prometheus is None:
            raise not_allowed("a schedule only with prometheus")
        try:
            next(CronSim(self.schedule, datetime(2026, 1, 1, tzinfo=UTC)))
        except (CronSimError, StopIteration) as error:
            raise not_allowed(f"for schedule: {_CRON_FORM}; {self.schedule!r} names no time") from error
        return self


def check_zone(zone: str) -> None:
    """:raises PydanticCustomError:"""
    try:
        ZoneInfo(zone)
    except (ValueError, OSError, ZoneInfoNotFoundError) as error:
        raise not_allowed(f"{ZONE_FORM}; there is none that is called {zone!r}") from error
