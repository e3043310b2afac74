"""What the operator writes into an SLAReport's `status`. Numbers that may have a fraction are text."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from migratory_resources.fields import Model, Whole, Words
from migratory_resources.status import Condition, Reason

Phase = Literal["Pending", "Submitting", "Running", "Succeeded", "Failed"]
PHASES: tuple[Phase, ...] = ("Pending", "Submitting", "Running", "Succeeded", "Failed")
FINAL = frozenset({"Succeeded", "Failed"})
"""A report in one of these is never touched again, but for what it leaves behind."""

Verdict = Literal["met", "missed", "insufficient"]
VERDICTS: tuple[Verdict, ...] = ("met", "missed", "insufficient")
Many = Annotated[int, Whole(0, 2**53)]


class Judged(Model):
    start: str = Field(description="The first moment that counts")
    end: str = Field(description="The first one that does not count any more")


class Coverage(Model):
    share: str = Field(description="Percent of the window that was scraped")
    scrapes: Many = Field(description="Of clients and publishers")
    longest_gap: str = Field(description="Without a scrape")


class Delivery(Model):
    """As clients counted; what nobody counted is missing."""

    expected: Many | None = Field(default=None, description="Deliveries that publications should have led to")
    received: Many | None = Field(default=None, description="Deliveries that came")
    lost: Many | None = Field(default=None, description="Deliveries that did not come")
    duplicates: Many | None = Field(default=None, description="Deliveries that came twice")
    reordered: Many | None = Field(default=None, description="Deliveries out of order")
    reconnects: Many | None = Field(default=None, description="Connections that clients made anew")


class Burn(Model):
    window: str = Field(description="The last stretch of time that it speaks of")
    rate: str = Field(description="How many times as quickly as allowed the budget was spent")


class ObjectiveResult(Model):
    name: str = Field(description="The objective's name")
    type: str = Field(description="What is counted")
    target: str = Field(description="Percent that must be good")
    verdict: Annotated[Verdict, Words(VERDICTS)] = Field(description="met, missed or insufficient")
    good: Many | None = Field(default=None, description="Of what was counted")
    total: Many | None = Field(default=None, description="All that was counted")
    compliance: str | None = Field(default=None, description="Percent that was good, rounded down")
    budget_left: str | None = Field(
        default=None, description="Share of the allowed failures that is left; below 0 when overspent"
    )
    burn: list[Burn] = Field(default=[], max_length=20, description="How quickly the budget was spent lately")
    reason: str | None = Field(default=None, description="Why there is no verdict, or what it rests on")


class Percentiles(Model):
    """Of deliveries between a sender and a receiver on one clock."""

    broker: str = Field(description="The broker's name; empty for all together")
    count: Many = Field(description="Deliveries")
    median: str | None = Field(default=None, description="Half of the deliveries took no longer")
    p90: str | None = Field(default=None, description="90% of the deliveries took no longer")
    p95: str | None = Field(default=None, description="95% of the deliveries took no longer")
    p99: str | None = Field(default=None, description="99% of the deliveries took no longer")
    max: str | None = Field(default=None, description="The upper bound of the highest bucket")


class Gap(Model):
    kind: str = Field(description="What happened, such as broker died")
    broker: str | None = Field(default=None, description="To which broker, where it was one")
    at: str = Field(description="The last moment at which all was well")
    until: str = Field(description="When it was over")
    clients: Many = Field(description="Clients that lost their link")
    longest_resume: str | None = Field(default=None, description="The longest wait of a client")
    longest_publish_gap: str | None = Field(default=None, description="The longest wait of a publisher")


class Outcome(Model):
    """What a run answers, as the pipeline's pods write it; without `run`, `failure` and `files`."""

    verdict: Annotated[Verdict, Words(VERDICTS)] = Field(description="met, missed or insufficient")
    window: Judged = Field(description="The time that was judged")
    coverage: Coverage = Field(description="How much of it was scraped")
    delivery: Delivery = Field(description="What clients counted")
    objectives: list[ObjectiveResult] = Field(max_length=50, description="What came of each objective")
    latency: list[Percentiles] = Field(max_length=100, description="Of all brokers together, and of each")
    gaps: list[Gap] = Field(max_length=20, description="What happened to the cluster, the first 20")
    notes: list[str] = Field(max_length=10, description="What a reader of the figures should know")


class Failure(Model):
    """Why a run came to no verdict, as the pipeline's pods write it."""

    reason: Reason = Field(description="In one word")
    message: str = Field(description="For a person")


class Files(Model):
    config_map: str = Field(description="The ConfigMap that has them, compressed by gzip")
    files: list[str] = Field(max_length=2, description="report.json.gz and report.html.gz, unless they were too large")


class ReportStatus(Model):
    observed_generation: int | None = Field(default=None, description="The generation of the spec that this is about")
    phase: Annotated[Phase, Words(PHASES)] | None = Field(default=None, description="Where the report stands")
    run_id: str | None = Field(default=None, description="The names of all that belongs to its run begin with it")
    driver: str | None = Field(default=None, description="The pod that makes the report, once it was seen")
    start_time: str | None = Field(default=None, description="When the operator began with it")
    completion_time: str | None = Field(default=None, description="When it reached its last phase")
    verdict: Annotated[Verdict, Words(VERDICTS)] | None = Field(default=None, description="Of all objectives together")
    window: Judged | None = Field(default=None, description="The time that was judged")
    coverage: Coverage | None = Field(default=None, description="How much of it was scraped")
    delivery: Delivery | None = Field(default=None, description="What clients counted")
    objectives: list[ObjectiveResult] = Field(default=[], max_length=50, description="What came of each objective")
    latency: list[Percentiles] = Field(default=[], max_length=100, description="Of all brokers together, and of each")
    gaps: list[Gap] = Field(default=[], max_length=20, description="What happened to the cluster, the first 20")
    notes: list[str] = Field(default=[], max_length=10, description="What a reader of the figures should know")
    result: Files | None = Field(default=None, description="Where the whole report and its page are")
    conditions: list[Condition] = Field(default=[], description="What holds, each with its reason")
