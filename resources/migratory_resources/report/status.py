"""The models of the status of an SLAReport, which the operator writes, and of the result of a run, which the driver
writes. Numbers that may have a fraction are text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from migratory_resources.cluster.status import Condition, ConditionReason
from migratory_resources.fields import OneOf, ResourceModel, WholeNumber

Phase = Literal["Pending", "Submitting", "Running", "Succeeded", "Failed"]
PHASES: tuple[Phase, ...] = ("Pending", "Submitting", "Running", "Succeeded", "Failed")
FINAL_PHASES = frozenset({"Succeeded", "Failed"})
"""Phases after which a report is not reconciled again, except to remove what its run left behind."""

ReportVerdict = Literal["met", "missed", "insufficient"]
VERDICTS: tuple[ReportVerdict, ...] = ("met", "missed", "insufficient")
LargeCount = Annotated[int, WholeNumber(0, 2**53)]
"""A count that JSON numbers hold exactly."""


class ReportedWindow(ResourceModel):
    """The time that a report judged, in RFC 3339."""

    start: str = Field(description="Start of the window, inclusive")
    end: str = Field(description="End of the window, exclusive")


class ReportedCoverage(ResourceModel):
    """The scrape coverage of the window: its share, the number of scrapes and the longest gap."""

    share: str = Field(description="Percent of the window that was scraped")
    scrapes: LargeCount = Field(description="Scrapes of clients and publishers")
    longest_gap: str = Field(description="Longest time without a scrape")


class ReportedDelivery(ResourceModel):
    """The numbers of deliveries and reconnects that clients counted. A number that no client counted is None."""

    expected: LargeCount | None = Field(default=None, description="Deliveries that the publications called for")
    received: LargeCount | None = Field(default=None, description="Deliveries that clients received")
    lost: LargeCount | None = Field(default=None, description="Deliveries that clients did not receive")
    duplicates: LargeCount | None = Field(default=None, description="Deliveries that clients received twice")
    reordered: LargeCount | None = Field(default=None, description="Deliveries out of order")
    reconnects: LargeCount | None = Field(default=None, description="Reconnects of clients")


class ReportedBurnRate(ResourceModel):
    """The burn rate of an error budget in a window that ends with the report."""

    window: str = Field(description="Length of the window that ends with the report")
    rate: str = Field(description="Speed at which the error budget was spent; 1 spends exactly all of it")


class ReportedObjective(ResourceModel):
    """The verdict on one objective, with the numbers on which it is based."""

    name: str = Field(description="Name of the objective")
    type: str = Field(description="The events that are counted")
    target: str = Field(description="Percent that must be good")
    verdict: Annotated[ReportVerdict, OneOf(VERDICTS)] = Field(description="met, missed or insufficient")
    good: LargeCount | None = Field(default=None, description="Good events")
    total: LargeCount | None = Field(default=None, description="All counted events")
    compliance: str | None = Field(default=None, description="Percent of the events that was good, rounded down")
    budget_left: str | None = Field(
        default=None, description="Share of the error budget that is left; below 0 when overspent"
    )
    burn: list[ReportedBurnRate] = Field(default=[], max_length=20, description="Burn rates of the error budget")
    reason: str | None = Field(default=None, description="Why there is no verdict, or what it is based on")


class ReportedLatency(ResourceModel):
    """Percentiles of the delivery latency at one broker, or (empty `broker`) at all brokers together, as text with the
    unit, such as "12.5ms". Only deliveries whose sender and receiver have the same clock are counted."""

    broker: str = Field(description="Name of the broker; empty for all brokers together")
    count: LargeCount = Field(description="Deliveries")
    median: str | None = Field(default=None, description="Latency that 50% of the deliveries did not exceed")
    p90: str | None = Field(default=None, description="Latency that 90% of the deliveries did not exceed")
    p95: str | None = Field(default=None, description="Latency that 95% of the deliveries did not exceed")
    p99: str | None = Field(default=None, description="Latency that 99% of the deliveries did not exceed")
    max: str | None = Field(
        default=None, description="Upper bound of the highest bucket that is not empty, or the highest finite bound"
    )


class ReportedGap(ResourceModel):
    """An incident that the report detected, with its effect on clients."""

    kind: str = Field(description="Kind of the incident, such as broker died")
    broker: str | None = Field(default=None, description="Broker that it happened to, if it was one")
    at: str = Field(description="Last moment before the incident")
    until: str = Field(description="When service was restored")
    clients: LargeCount = Field(description="Clients that lost their connection")
    longest_resume: str | None = Field(default=None, description="Longest time until a client had resumed")
    longest_publish_gap: str | None = Field(
        default=None, description="Longest time that a publisher waited for an acknowledgement"
    )


class ReportOutcome(ResourceModel):
    """The result of a run that judged its objectives. The driver writes it together with the run's id and the files'
    names."""

    verdict: Annotated[ReportVerdict, OneOf(VERDICTS)] = Field(description="met, missed or insufficient")
    window: ReportedWindow = Field(description="The time that was judged")
    coverage: ReportedCoverage = Field(description="How much of the window was scraped")
    delivery: ReportedDelivery = Field(description="Deliveries, as the clients counted them")
    objectives: list[ReportedObjective] = Field(max_length=50, description="Result of each objective")
    latency: list[ReportedLatency] = Field(max_length=100, description="Latency of all brokers together, and of each")
    gaps: list[ReportedGap] = Field(max_length=20, description="Incidents of the cluster, the first 20")
    notes: list[str] = Field(max_length=10, description="Caveats about the figures")


class ReportFailure(ResourceModel):
    """The reason for which a run has no verdict, as the driver writes it."""

    reason: ConditionReason = Field(description="Reason, in one word")
    message: str = Field(description="Explanation for people")


class ReportFiles(ResourceModel):
    """The files of a report, and the ConfigMap that has them."""

    config_map: str = Field(description="ConfigMap with the files, compressed by gzip")
    files: list[str] = Field(max_length=2, description="report.json.gz and report.html.gz, unless they were too large")


class ReportStatus(ResourceModel):
    """The status of an SLAReport: its progress, then the result of its run, and its conditions."""

    observed_generation: int | None = Field(default=None, description="Generation of the spec that the status is about")
    phase: Annotated[Phase, OneOf(PHASES)] | None = Field(default=None, description="Phase of the report")
    run_id: str | None = Field(default=None, description="Prefix of the names of all objects of the run")
    driver: str | None = Field(default=None, description="Name of the driver's pod, once it exists")
    start_time: str | None = Field(default=None, description="When the operator started the run")
    completion_time: str | None = Field(default=None, description="When the report reached its final phase")
    verdict: Annotated[ReportVerdict, OneOf(VERDICTS)] | None = Field(
        default=None, description="Verdict on all objectives together"
    )
    window: ReportedWindow | None = Field(default=None, description="The time that was judged")
    coverage: ReportedCoverage | None = Field(default=None, description="How much of the window was scraped")
    delivery: ReportedDelivery | None = Field(default=None, description="Deliveries, as the clients counted them")
    objectives: list[ReportedObjective] = Field(default=[], max_length=50, description="Result of each objective")
    latency: list[ReportedLatency] = Field(
        default=[], max_length=100, description="Latency of all brokers together, and of each"
    )
    gaps: list[ReportedGap] = Field(default=[], max_length=20, description="Incidents of the cluster, the first 20")
    notes: list[str] = Field(default=[], max_length=10, description="Caveats about the figures")
    result: ReportFiles | None = Field(default=None, description="The files of the whole report")
    conditions: list[Condition] = Field(default=[], description="Conditions of the report")
