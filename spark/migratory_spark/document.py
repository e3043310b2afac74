"""The types of the report document, which `build_report` returns and which is written as JSON. Nothing is computed
here.

Names end in their unit. Moments are RFC 3339 in UTC with milliseconds. Null means that nothing was measured or counted,
which is not the same as zero. There is never a NaN. Counts are integers. The docstrings of the types are descriptions
in the JSON Schema (`python -m migratory_spark.report`).
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "migratory.dev/sla-report/v1alpha2"

Verdict = Literal["met", "missed", "insufficient"]


class DistributionSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution of times: number, quantiles, mean, standard deviation and highest value. The unit is that of the
    field that holds the summary. All figures but `count` are null if nothing was measured. Quantiles and `max` are also
    null if exporters have no bucket bound in common, and `stdev` without an exported sum of squares, which only the
    latency of deliveries has. `max` is the upper bound of the highest bucket that is not empty, or the highest finite
    bound if that bucket has none. In rows of tables over time `median_bucket` is null and `note` is empty."""

    count: int
    median: float | None
    mean: float | None
    stdev: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    median_bucket: tuple[float, float | None] | None = None
    """The bucket (above, at most) that holds the median; `at most` is null for the bucket without an upper bound. Null
    in rows of tables over time."""
    note: str = ""
    """A sentence on how quantiles were computed if the exporters' buckets differ, else empty. Empty in rows of tables
    over time."""


class WindowSummary(DistributionSummary, frozen=True, kw_only=True):
    """Latency in ms of one broker's deliveries, or of all brokers' if `broker` is empty, in the time of one table row,
    which begins at `start`."""

    start: str
    broker: str


class ReportWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The report's window, without the moment `start` and with the moment `end`; `seconds` is its length. `zone` is the
    time zone of its hours and days. `provisional` is true if the samples were read before all samples of the window can
    have arrived: the same report may differ later."""

    start: str
    end: str
    seconds: float
    zone: str
    provisional: bool = False


class ReportTarget(msgspec.Struct, frozen=True, kw_only=True):
    """An exporter of the metrics of clients or publishers: its first and last scrape in the window, the number of
    scrapes, their usual interval (0 if unknown), the longest time between two, and the number of restarts of its
    counters. `ended_early` is true if the last scrape is followed by a gap up to the window's end. `uncertain_seconds`
    is the longest time in all whose counts may be missing: a scrape interval for each restart, and one for an early
    end."""

    name: str
    first: str
    last: str
    scrapes: int
    interval_seconds: float
    longest_gap_seconds: float
    restarts: int
    ended_early: bool
    uncertain_seconds: float


class WindowCoverage(msgspec.Struct, frozen=True, kw_only=True):
    """Scrape coverage: `share` (0 to 1) of the window lies outside of gaps. A gap is a time in which no exporter of
    clients or publishers was scraped for more than two and a half of its scrape intervals. `longest_gap_seconds` is the
    scrape interval if there is no gap. `scrape_interval_seconds` is the exporters' median, null without an exporter.
    `scrapes` is the highest number of one exporter. `targets` are these exporters, sorted by name."""

    share: float
    scrape_interval_seconds: float | None
    longest_gap_seconds: float
    scrapes: int
    targets: list[ReportTarget]


class SampleCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Numbers of the series and samples in the report's window and in the hour before, from which the counters' values
    at the window's start are read. `samples` are those with a usable number. `stale` markers are counted separately,
    and so are other values that are no samples (`nan`): NaN, infinities, and negative values of counters. What windows
    of objectives need from before that hour is not included."""

    series: int
    samples: int
    repeated: int
    """Samples that are left out, because the same series and time was exported more than once, or because the samples
    of another server are used."""
    stale: int
    nan: int
    restarts: int
    """Restarts of counters, by series."""
    older: int
    """Series of counters that started before the window and were scraped only within it."""
    different_buckets: list[str]
    """Histograms whose exporters have different buckets; they are merged on the common bounds."""


class GapCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Receipts that reported missing publications, by kind (`truncated`, `reset`); null if the metric was not
    scraped."""

    truncated: int | None
    reset: int | None


class BrokerDeliveryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries by one broker, and reconnects of clients that lost or left that broker, as clients counted them. A
    count is null if its metric was not scraped at all, and 0 if only series of other brokers were scraped."""

    received: int | None
    lost: int | None
    reconnects: int | None


class DeliveryCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries, reconnects, publish errors and reported gaps, as clients counted them. A count is null if its metric
    was not scraped."""

    expected: int | None
    received: int | None
    lost: int | None
    duplicates: int | None
    reordered: int | None
    reconnects: int | None
    publish_errors: int | None
    gaps: GapCounts
    by_broker: dict[str, BrokerDeliveryCounts]


class AvailabilityCounts(msgspec.Struct, frozen=True, kw_only=True):
    """Publications that were acknowledged or failed (`attempts`) and those that failed; null if the metrics of neither
    were scraped.

    `share` (0 to 1) is the acknowledged part of the sum, not a mean of ratios; it is null without an attempt.
    `windows_without_traffic` is the number of table rows without an attempt. `errors_by_reason` has the failures by
    reason, without reasons that did not occur. `background_failures` are those outside of incidents (from the start of
    an incident to 15 s after its end). `background_failures_per_minute` is their rate in that time, null if incidents
    take up the whole window.
    """

    attempts: int | None
    failures: int | None
    share: float | None
    windows_without_traffic: int
    errors_by_reason: dict[str, int]
    background_failures: int | None = None
    background_failures_per_minute: float | None = None


class WindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """Counts of all brokers together in the time of one table row, which begins at `start`. A count is 0 also if its
    metric was not scraped. `availability` is the acknowledged share (0 to 1) of attempts, null without one."""

    start: str
    seconds: float
    attempts: int
    failures: int
    availability: float | None
    expected: int
    received: int
    lost: int
    reconnects: int
    latency_ms: DistributionSummary


class CalendarRow(WindowRow, frozen=True, kw_only=True):
    """A row for an hour or a day of the report's time zone, cut at the window's ends. `local` is its start there with
    the offset, by which the two rows of a repeated hour differ."""

    local: str


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """Rows by hour of the time zone `zone` for windows of up to four days, else by day."""

    unit: Literal["hour", "day"]
    zone: str
    rows: list[CalendarRow]


class LatencyHeatmap(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries by time and latency: `counts[i][j]` are those in the row that begins at `starts[i]`, above
    `bounds_ms[j-1]` (0 for the first) and at most `bounds_ms[j]`. Each row has one column more than there are bounds:
    the last one is above every bound. All lists are empty without a delivery."""

    starts: list[str]
    bounds_ms: list[float]
    counts: list[list[int]]


class LatencySection(msgspec.Struct, frozen=True, kw_only=True):
    """Latency of live deliveries between a sender and a receiver on one clock: of all, by broker, and by table row
    (`by_window` for each broker, `over_time` for all brokers together). Rows without a delivery are missing.
    `cumulative` has pairs of a bound in ms and the deliveries at or below the bound, sorted; `all.count` may be higher
    than the last of them."""

    all: DistributionSummary
    by_broker: dict[str, DistributionSummary]
    by_window: list[WindowSummary]
    window_seconds: float
    over_time: list[WindowSummary]
    """Like `by_window`, for all brokers together (`broker` is empty)."""
    cumulative: list[tuple[float, int]]
    heat: LatencyHeatmap


class BrokerConnections(msgspec.Struct, frozen=True, kw_only=True):
    """Number of clients of one broker by its own count; null if the broker was not scraped in that time. `mean` and
    `max` are those of the whole window, `last` is the value of its last scrape there, and `by_window` has the mean of
    each table row."""

    broker: str
    mean: float | None
    max: float | None
    last: float | None
    by_window: list[float | None]
    """The mean in each row of the table."""


class IncidentStepRow(msgspec.Struct, frozen=True, kw_only=True):
    """A step of an incident, which began after `at` and lasted until `until`. `kind` is silent (a broker's scrapes
    end), back (they begin again), restarted, takeover, reconnects or publish_errors. `broker` is empty if the step
    concerns no single broker. `count` is the number of takeovers, reconnects or publish errors, null for other
    kinds."""

    kind: str
    at: str
    until: str
    broker: str
    count: int | None


class IncidentImpact(msgspec.Struct, frozen=True, kw_only=True):
    """The impact of an incident: reconnects of clients (`clients`, and by the broker that they lost), failed
    publications, and groups that another broker took over, each from the incident's start to 15 s after its end, and
    interruptions of publishers (`publish_gaps`) up to the next incident."""

    clients_by_broker: dict[str, int]
    clients: int
    publish_gaps: int
    publish_errors: int
    takeovers: int


class LatencyAround(msgspec.Struct, frozen=True, kw_only=True):
    """Latency before an incident (from the end of the previous one or the window's start), during it, and after it
    (until the start of the next one or the window's end). Incidents that overlap it are not taken for the previous or
    the next one."""

    before: DistributionSummary
    during: DistributionSummary
    after: DistributionSummary


class ConnectionsAround(msgspec.Struct, frozen=True, kw_only=True):
    """Clients by broker, before an incident (at the broker's last scrape before) and after (at the broker's last scrape
    before the next incident or the window's end). A broker is missing if that scrape is more than two and a half scrape
    intervals back."""

    before: dict[str, float]
    after: dict[str, float]


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """An incident. `kind` is given by the caller, or one of "broker died", "broker restarted", "takeover" and
    "reconnect wave". `broker` is empty if it concerns no single broker. `at` is the last moment before it began,
    `at_uncertain_seconds` how much later it may have begun, `until` the moment at which it was over. `found` is false
    if the caller gave it. `happenings` are its steps, and `affected` is its impact. `resume_seconds` is the time that
    clients waited, `publish_gap_seconds` the time that publishers waited, from this incident to the next."""

    kind: str
    broker: str
    at: str
    until: str
    at_uncertain_seconds: float
    found: bool
    """True if the incident was found in the samples, false if the caller gave it."""
    happenings: list[IncidentStepRow]
    affected: IncidentImpact
    latency_ms: LatencyAround
    resume_seconds: DistributionSummary
    publish_gap_seconds: DistributionSummary
    connections: ConnectionsAround


class BurnRate(msgspec.Struct, frozen=True, kw_only=True):
    """The rate at which the error budget was spent in the last `window_seconds` of the objective's window: 1 spends it
    exactly in the objective's window.

    `rate` is null without an event, if scrapes cover less than 95% of the time, and with a target of 100%, which has no
    budget. `good` and `total` are 0 if nothing could be counted.
    """

    window_seconds: float
    good: int
    total: int
    rate: float | None


class BudgetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The error budget left at the moment `end`, and the good and all events from the start of the objective's window
    to that moment, on which it is based. `budget_left` is null without an event."""

    end: str
    good: int
    total: int
    budget_left: float | None


class ObjectiveWindow(msgspec.Struct, frozen=True, kw_only=True):
    """The time over which an objective was judged. `kind` is report (the report's own window), rolling, or a calendar
    period so far, in the time zone `zone`. `coverage` is the share (0 to 1) of that time in which the exporters that
    the objective needs were scraped."""

    kind: Literal["report", "rolling", "day", "week", "month", "quarter", "year"]
    start: str
    end: str
    zone: str
    coverage: float


class JudgedSlices(msgspec.Struct, frozen=True, kw_only=True):
    """When a slice of time is good: `percentile` (percent) of its deliveries are within the objective's threshold, or
    `share` (percent) of its publications were acknowledged. The one that is not asked for is null; both are text with
    an exact decimal."""

    length_seconds: float
    percentile: str | None
    share: str | None


class ObjectiveResult(msgspec.Struct, frozen=True, kw_only=True):
    """The verdict on an objective. `good` of `total` events (or slices of time) met it; `compliance` is good / total.
    `budget_left` is the share of the error budget that is left, below 0 when overspent. These four are null if unknown,
    and `budget_left` with every verdict `insufficient`. `reason` says why the data is insufficient, or is a note on the
    figures, or empty. `threshold_ms` is null for an objective without one. `silent_slices` and `slices` are null for an
    objective that counts events."""

    name: str
    type: str
    target: str
    """Percent, an exact decimal."""
    good: int | None
    total: int | None
    compliance: float | None
    budget_left: float | None
    verdict: Verdict
    reason: str
    threshold_ms: float | None
    counts: Literal["occurrences", "slices"]
    unit: str
    """Name of the counted events: deliveries, expected deliveries, resumes, publish gaps, publications, slices."""
    silent_slices: int | None
    """Slices of time without an event, which are neither good nor bad."""
    bad_slices: list[str]
    """Starts of the first 100 bad slices."""
    window: ObjectiveWindow
    burn: list[BurnRate]
    budget_over_time: list[BudgetPoint]
    slices: JudgedSlices | None = None
    """Null for an objective that counts events."""
    possibly_good: int = 0
    """How many of the bad events may have been good."""
    possibly_bad: int = 0
    """How many of the good events may have been bad."""


class BrokenDownObjective(msgspec.Struct, frozen=True, kw_only=True):
    """An objective's events of one combination of labels, over the objective's window. The verdict is that of the
    objective if only these events had been counted, with the scrape coverage of all exporters. Null means unknown."""

    name: str
    good: int | None
    total: int | None
    compliance: float | None
    budget_left: float | None
    verdict: Verdict


class BreakdownRow(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the series with one combination of labels, in the report's window. `labels` are the values in the
    order of the breakdown's labels, empty where a series does not have the label. A count is null if its metric was not
    scraped; `attempts` and `failures` are null if nothing was published. Objectives that count slices are missing."""

    labels: list[str]
    expected: int | None
    received: int | None
    lost: int | None
    duplicates: int | None
    reordered: int | None
    reconnects: int | None
    attempts: int | None
    failures: int | None
    latency_ms: DistributionSummary
    resume_seconds: DistributionSummary
    objectives: list[BrokenDownObjective]


class Breakdown(msgspec.Struct, frozen=True, kw_only=True):
    """Figures by labels that the caller named: a row for each combination of their values, in the values' order."""

    by: list[str]
    rows: list[BreakdownRow]


class SlaReport(msgspec.Struct, frozen=True, kw_only=True):
    """The SLA report of one window of time, on one cluster, or on all clusters in the samples if none was chosen.
    `verdict` is that on all objectives together."""

    schema: str = SCHEMA
    cluster: str
    """The cluster's name in the samples; several are joined by commas."""
    window: ReportWindow
    coverage: WindowCoverage
    samples: SampleCounts
    notes: list[str]
    """Uncertainties of the figures, one sentence each."""
    delivery: DeliveryCounts
    availability: AvailabilityCounts
    latency_ms: LatencySection
    estimated_latency_ms: DistributionSummary
    """Latency across two clocks. It is not judged unless an objective asks for it."""
    replay_latency_ms: DistributionSummary
    resume_seconds: DistributionSummary
    publish_gap_seconds: DistributionSummary
    publish_ms: DistributionSummary
    windows: list[WindowRow]
    calendar: Calendar
    connections: list[BrokerConnections]
    incidents: list[Incident]
    objectives: list[ObjectiveResult]
    verdict: Verdict
    breakdown: Breakdown | None = None
    """Null unless labels were named."""
