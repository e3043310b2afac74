"""What a report is to be, of what it says itself and what its cluster says; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from migratory_resources.objectives import DEFAULT_OBJECTIVES, Objective
from migratory_resources.report.spec import ReportSpec
from migratory_resources.report_settings import PrometheusSpec, SparkSpec
from migratory_resources.validation.custom_resources import read_cluster, read_report
from migratory_resources.validation.problems import ClusterFileError

from migratory_operator.names import Object


class NotPossible(Exception):
    """There can be no such report: a reason in one word, and the text. `later`: it may become possible."""

    def __init__(self, reason: str, message: str, later: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.later = later


@dataclass(frozen=True)
class Asked:
    cluster: str
    prometheus: PrometheusSpec
    start: datetime
    end: datetime
    zone: str
    objectives: Sequence[Objective]
    spark: SparkSpec


def asked(resource: Object, cluster: Object | None) -> Asked:
    """:raises NotPossible:"""
    spec = _spec(resource)
    if cluster is None:
        raise NotPossible(
            "ClusterNotFound", f"there is no MigratoryCluster {spec.cluster} in this namespace", later=True
        )
    try:
        sla = read_cluster(cluster).spec.sla
    except ClusterFileError as error:
        text = "; ".join(str(problem) for problem in error.problems)
        raise NotPossible("InvalidCluster", f"MigratoryCluster {spec.cluster}: {text}", later=True) from error
    prometheus = spec.prometheus or sla.prometheus
    if prometheus is None:
        raise NotPossible(
            "NoPrometheus", f"give spec.prometheus here or spec.sla.prometheus of MigratoryCluster {spec.cluster}"
        )
    end = moment(spec.end or resource["metadata"]["creationTimestamp"])
    return Asked(
        cluster=spec.cluster,
        prometheus=prometheus,
        start=end - timedelta(seconds=spec.window if spec.window is not None else sla.window),
        end=end,
        zone=spec.zone or sla.zone,
        objectives=spec.objectives or sla.objectives or DEFAULT_OBJECTIVES,
        spark=spec.spark or sla.spark,
    )


def _spec(resource: Object) -> ReportSpec:
    try:
        return read_report(resource)
    except ClusterFileError as error:
        raise NotPossible("InvalidSpec", "; ".join(str(problem) for problem in error.problems)) from error


def moment(text: str) -> datetime:
    """:raises ValueError:"""
    return datetime.strptime(text, "%Y-%m-%dT%H:%M:%SZ").replace(tzinfo=UTC)
