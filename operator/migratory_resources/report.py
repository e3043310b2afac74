"""The SLAReport resource: one report that somebody wants of a cluster."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from migratory_resources.fields import Duration, Model, Name, Text
from migratory_resources.model import LONGEST_NAME
from migratory_resources.objectives import Objective

KIND = "SLAReport"
_TIME = r"[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"


class ReportSpec(Model):
    cluster: Annotated[str, Name(LONGEST_NAME)] = Field(description="The MigratoryCluster in the same namespace; fixed")
    end: Annotated[str, Text(_TIME, 20, "a time such as 2026-01-31T12:00:00Z")] | None = Field(
        default=None,
        description="The end of the time that is judged, in UTC; when the report was asked for unless given",
    )
    window: Annotated[float, Duration("1m", "30d")] | None = Field(
        default=None, description="How far it looks back from there; the cluster's window unless given"
    )
    objectives: list[Objective] = Field(
        default_factory=list, max_length=50, description="What is judged; the cluster's objectives unless given"
    )
