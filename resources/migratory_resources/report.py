"""The SLAReport resource: one report that somebody wants of a cluster."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, Self

from pydantic import Field, ValidationError, model_validator

from migratory_resources.fields import Duration, Model, Name, Text, not_allowed
from migratory_resources.model import LONGEST_NAME
from migratory_resources.newer import known_part
from migratory_resources.objectives import Objective, contradictions
from migratory_resources.problems import ClusterFileError, Problem
from migratory_resources.reporting import Prometheus, Spark, Zone, check_zone
from migratory_resources.validation import problems_of

KIND = "SLAReport"
LONGEST_REPORT_NAME = 63
"""It is a label of everything that belongs to the report."""
_TIME_FORM = "a time such as 2026-01-31T12:00:00Z"
# from 1970 on: Prometheus knows no time before
_TIME = r"(19[7-9][0-9]|[2-9][0-9]{3})-[0-9]{2}-[0-9]{2}T[0-9]{2}:[0-9]{2}:[0-9]{2}Z"


class ReportSpec(Model):
    """Fixed once the report exists: what was measured by another spec would be another report."""

    cluster: Annotated[str, Name(LONGEST_NAME)] = Field(description="The MigratoryCluster in the same namespace")
    end: Annotated[str, Text(_TIME, 20, _TIME_FORM)] | None = Field(
        default=None,
        description="The end of the time that is judged, in UTC; when the report was asked for unless given. One that "
        "is to come is waited for",
    )
    window: Annotated[float, Duration("1m", "30d")] | None = Field(
        default=None, description="How far it looks back from there; the cluster's window unless given"
    )
    objectives: list[Objective] = Field(
        default_factory=list, max_length=50, description="What is judged; the cluster's objectives unless given"
    )
    prometheus: Prometheus | None = Field(
        default=None, description="Where to find what was measured; the cluster's sla.prometheus unless given"
    )
    zone: Zone | None = Field(
        default=None, description="The time zone of the report's hours and days; the cluster's unless given"
    )
    spark: Spark | None = Field(default=None, description="How it is made; as the cluster's sla.spark unless given")

    @model_validator(mode="after")
    def _exists(self) -> Self:
        if self.zone is not None:
            check_zone(self.zone)
        if self.end is not None:
            try:
                datetime.fromisoformat(self.end)
            except ValueError as error:
                raise not_allowed(f"for end: {_TIME_FORM}; there is no {self.end!r}") from error
        return self


def read_report(resource: dict[str, Any]) -> ReportSpec:
    """The spec of a custom resource as the API gives it, without fields that are not known (`unknown_fields`).

    :raises ClusterFileError: with all problems found.
    """
    name = resource["metadata"]["name"]
    try:
        spec = ReportSpec.model_validate(known_part(ReportSpec, resource.get("spec", {}))[0])
    except ValidationError as error:
        found = [replace(problem, path=f"spec.{problem.path}".rstrip(".")) for problem in problems_of(error)]
        raise ClusterFileError(name, found) from error
    problems = [
        Problem(f"spec.objectives[{index}].{field}", value, allowed)
        for index, field, value, allowed in contradictions(spec.objectives)
    ]
    if problems:
        raise ClusterFileError(name, problems)
    return spec


def unknown_fields(resource: dict[str, Any]) -> list[str]:
    """Paths of what this release leaves out (`newer.py`)."""
    return [f"spec.{path}" for path in known_part(ReportSpec, resource.get("spec", {}))[1]]
