"""The model of the spec of an SLAReport: one report about a cluster."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from pydantic import Field, field_validator

from migratory_resources.cluster.spec import MAX_NAME_LENGTH
from migratory_resources.fields import DnsLabel, Duration, PatternText, ResourceModel, not_allowed
from migratory_resources.objectives import Objective, check_zone
from migratory_resources.report_settings import PrometheusSpec, SparkSpec, Zone

REPORT_KIND = "SLAReport"
MAX_REPORT_NAME_LENGTH = 63
"""Characters of a report's name, which is the value of a label on every object of the report."""
_TIME_FORM = "a time such as 2026-01-31T12:00:00Z"
_TIME = r"(19[7-9][0-9]|[2-9][0-9]{3})-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"
"""A time from 1970 on: Prometheus has no samples before."""


class ReportSpec(ResourceModel):
    """The spec of an SLAReport. What it does not give is that of its cluster's `spec.sla`. It is immutable, because a
    change would make it another report."""

    cluster: Annotated[str, DnsLabel(MAX_NAME_LENGTH)] = Field(
        description="Name of the MigratoryCluster, in the same namespace"
    )
    end: Annotated[str, PatternText(_TIME, 20, _TIME_FORM)] | None = Field(
        default=None,
        description="End of the time that is judged, in UTC; the creation time of the report when not given. The "
        "report waits for an end in the future",
    )
    window: Annotated[float, Duration("1m", "30d")] | None = Field(
        default=None, description="Length of the time that is judged; the cluster's sla.window when not given"
    )
    objectives: list[Objective] = Field(
        default_factory=list, max_length=50, description="Objectives to judge; the cluster's objectives when empty"
    )
    prometheus: PrometheusSpec | None = Field(
        default=None, description="The Prometheus server to read from; the cluster's sla.prometheus when not given"
    )
    zone: Zone | None = Field(
        default=None, description="Time zone of the report's hours and days; the cluster's sla.zone when not given"
    )
    spark: SparkSpec | None = Field(
        default=None, description="The Spark pods that make the report; the cluster's sla.spark when not given"
    )

    @field_validator("zone")
    @classmethod
    def _exists(cls, zone: str | None) -> str | None:
        """Return the zone, or None. Raise PydanticCustomError if the tz database has no such zone."""
        if zone is not None:
            check_zone(zone)
        return zone

    @field_validator("end")
    @classmethod
    def _is_a_date(cls, end: str | None) -> str | None:
        """Return the end, or None. Raise PydanticCustomError if it is on no day of the calendar."""
        try:
            datetime.fromisoformat(end or "1970-01-01T00:00:00Z")
        except ValueError as error:
            raise not_allowed(f"{_TIME_FORM}, on a day of the calendar") from error
        return end
