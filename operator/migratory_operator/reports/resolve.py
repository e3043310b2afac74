"""Resolves an SLAReport: its own spec, with the settings of its cluster for everything that the spec does not give;
pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from migratory_resources.objectives import DEFAULT_OBJECTIVES, Objective
from migratory_resources.report.spec import ReportSpec
from migratory_resources.report_settings import PrometheusSpec, SparkSpec
from migratory_resources.validation.custom_resources import read_cluster, read_report
from migratory_resources.validation.problems import ClusterFileError

from migratory_operator.names import Object
from migratory_operator.status import parse_time


class UnresolvableReport(Exception):
    """Raised for a report that can't be made, with a reason in one word. `retryable` is True if its cluster is missing
    or invalid, or its Secret is missing: the report then waits for some time until this is mended."""

    def __init__(self, reason: str, message: str, retryable: bool = False) -> None:
        super().__init__(message)
        self.reason = reason
        self.retryable = retryable


@dataclass(frozen=True)
class ResolvedReport:
    """The settings of one run. What the report's spec does not give is that of its cluster; objectives that neither
    gives are the default ones. `start` and `end` bound the window."""

    cluster: str
    prometheus: PrometheusSpec
    start: datetime
    end: datetime
    zone: str
    objectives: Sequence[Objective]
    spark: SparkSpec


def resolve_report(resource: Object, cluster: Object | None) -> ResolvedReport:
    """Return the settings of a report's run. The window ends at the report's creation if the spec gives no end.

    :param resource: the SLAReport.
    :param cluster: its MigratoryCluster, None if there is none.
    :raises UnresolvableReport: the spec is invalid, or the cluster is missing, invalid or without Prometheus.
    """
    spec = _read_spec(resource)
    if cluster is None:
        message = f"MigratoryCluster {spec.cluster} does not exist in this namespace"
        raise UnresolvableReport("ClusterNotFound", message, retryable=True)
    try:
        sla = read_cluster(cluster).spec.sla
    except ClusterFileError as error:
        problems = "; ".join(str(problem) for problem in error.problems)
        message = f"MigratoryCluster {spec.cluster} is invalid: {problems}"
        raise UnresolvableReport("InvalidCluster", message, retryable=True) from error
    prometheus = spec.prometheus or sla.prometheus
    if prometheus is None:
        raise UnresolvableReport(
            "NoPrometheus", f"set spec.prometheus here, or spec.sla.prometheus of MigratoryCluster {spec.cluster}"
        )
    end = parse_time(spec.end or resource["metadata"]["creationTimestamp"])
    return ResolvedReport(
        cluster=spec.cluster,
        prometheus=prometheus,
        start=end - timedelta(seconds=spec.window if spec.window is not None else sla.window),
        end=end,
        zone=spec.zone or sla.zone,
        objectives=spec.objectives or sla.objectives or DEFAULT_OBJECTIVES,
        spark=spec.spark or sla.spark,
    )


def secret_name(resource: Object, cluster: Object | None) -> str | None:
    """Return the name of the Secret that the report's run would use for Prometheus; None if it needs none, or if the
    report can't be made."""
    try:
        return resolve_report(resource, cluster).prometheus.secret_name
    except UnresolvableReport:
        return None


def _read_spec(resource: Object) -> ReportSpec:
    """Return the report's spec. Raise UnresolvableReport if it is invalid."""
    try:
        return read_report(resource)
    except ClusterFileError as error:
        problems = "; ".join(str(problem) for problem in error.problems)
        raise UnresolvableReport("InvalidSpec", problems) from error
