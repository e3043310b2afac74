"""The report as types: what `sla_report` answers, and what its JSON holds. Nothing is computed here.

Names end in their unit; moments are RFC 3339 in UTC with milliseconds. Null stands where nothing was measured or nobody
counted, which is not the same as zero; there is never a NaN. Counts are whole numbers.
"""

from __future__ import annotations

from typing import Literal

import msgspec

SCHEMA = "migratory.dev/sla-report/v1alpha2"

Verdict = Literal["met", "missed", "insufficient"]


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A distribution in the columns of the published tables. `max` is the upper bound of the highest bucket that holds
    something. Quantiles are null where nothing was measured, and where exporters share no bucket bound."""

    count: int
    median: float | None
    mean: float | None
    stdev: float | None
    p90: float | None
    p95: float | None
    p99: float | None
    max: float | None
    median_bucket: tuple[float, float | None] | None = None
    """The bucket (above, at most) that holds the median; `at most` is null for the one without an upper bound. Only in
    summaries of a whole window."""
    note: str = ""
    """What the quantiles rest on where that is not plain: buckets that differ between exporters."""


class WindowSummary(Summary, frozen=True, kw_only=True):
    """One broker's deliveries in one table row's time."""

    start: str
    broker: str


class Window(msgspec.Struct, frozen=True, kw_only=True):
    """[start, end). `zone` is the one whose hours and days the report counts in."""

    start: str
    end: str
    seconds: float
    zone: str


class Target(msgspec.Struct, frozen=True, kw_only=True):
    """One exporter of client metrics. One that ended early may have counted up to `uncertain_seconds` of work that
    nobody scraped."""

    name: str
    first: str
    last: str
    scrapes: int
    interval_seconds: float
    longest_gap_seconds: float
    restarts: int
    ended_early: bool
    uncertain_seconds: float


class Coverage(msgspec.Struct, frozen=True, kw_only=True):
    """`share` of the window lies within two and a half scrape intervals of a scrape."""

    share: float
    scrape_interval_seconds: float | None
    longest_gap_seconds: float
    scrapes: int
    targets: list[Target]


class Samples(msgspec.Struct, frozen=True, kw_only=True):
    """What was read, from a little before the window on (for the counters' values at its start)."""

    series: int
    samples: int
    repeated: int
    """(series, time) that was told more than once, or by a second server: counted once."""
    stale: int
    nan: int
    restarts: int
    """Series of counters that began again at zero."""
    older: int
    """Series of counters that began before the window by their own account, and were scraped only within it."""
    different_buckets: list[str]
    """Histograms whose exporters have different buckets; they are merged on the common bounds."""


class Gaps(msgspec.Struct, frozen=True, kw_only=True):
    """Receipts that told of missing publications."""

    truncated: int | None
    reset: int | None


class BrokerDelivery(msgspec.Struct, frozen=True, kw_only=True):
    received: int | None
    lost: int | None
    reconnects: int | None


class Delivery(msgspec.Struct, frozen=True, kw_only=True):
    """As clients counted."""

    expected: int | None
    received: int | None
    lost: int | None
    duplicates: int | None
    reordered: int | None
    reconnects: int | None
    publish_errors: int | None
    gaps: Gaps
    by_broker: dict[str, BrokerDelivery]


class Availability(msgspec.Struct, frozen=True, kw_only=True):
    """Publications acknowledged of those answered: a ratio of sums, never a mean of ratios. `share` is null without an
    attempt."""

    attempts: int | None
    failures: int | None
    share: float | None
    windows_without_traffic: int
    errors_by_reason: dict[str, int]


class WindowRow(msgspec.Struct, frozen=True, kw_only=True):
    """What was counted in one table row's time, of all brokers together."""

    start: str
    seconds: float
    attempts: int
    failures: int
    availability: float | None
    expected: int
    received: int
    lost: int
    reconnects: int
    latency_ms: Summary


class CalendarRow(WindowRow, frozen=True, kw_only=True):
    """An hour or a day of the zone; `local` is its start there with the offset, which tells a repeated hour's two rows
    apart."""

    local: str


class Calendar(msgspec.Struct, frozen=True, kw_only=True):
    """`unit` is "hour" for windows of up to four days, else "day"."""

    unit: Literal["hour", "day"]
    zone: str
    rows: list[CalendarRow]


class Heat(msgspec.Struct, frozen=True, kw_only=True):
    """Deliveries by time and latency: `counts[i][j]` in the window that begins at `starts[i]`, above `bounds_ms[j-1]`
    (0 for the first) and at most `bounds_ms[j]`; the last column is what was above every bound."""

    starts: list[str]
    bounds_ms: list[float]
    counts: list[list[int]]


class Latency(msgspec.Struct, frozen=True, kw_only=True):
    """Live deliveries between a sender and a receiver on one clock. `cumulative` is [bound in ms, deliveries at or
    below it], rising; `all.count` may be higher than its last one."""

    all: Summary
    by_broker: dict[str, Summary]
    by_window: list[WindowSummary]
    window_seconds: float
    over_time: list[WindowSummary]
    """As `by_window`, of all brokers together (`broker` is empty)."""
    cumulative: list[tuple[float, int]]
    heat: Heat


class Connections(msgspec.Struct, frozen=True, kw_only=True):
    """Clients of one broker, as the broker told: null where it did not answer in that time."""

    broker: str
    mean: float | None
    max: float | None
    last: float | None
    by_window: list[float | None]
    """The mean in each window of the table."""


class Happening(msgspec.Struct, frozen=True, kw_only=True):
    """A step of an incident, as the samples show it. `kind`: silent (a broker's scrapes end), back, restarted,
    takeover, reconnects, publish_errors. `count` where something is counted."""

    kind: str
    at: str
    until: str
    broker: str
    count: int | None


class Affected(msgspec.Struct, frozen=True, kw_only=True):
    """Who was touched: clients by the broker that they lost, interruptions of publishers, groups that another broker
    took over."""

    clients_by_broker: dict[str, int]
    clients: int
    publish_gaps: int
    publish_errors: int
    takeovers: int


class Around(msgspec.Struct, frozen=True, kw_only=True):
    """The same columns before an incident (from the one before it, or the window's start), while it lasted, and after
    it (until the next one, or the window's end)."""

    before: Summary
    during: Summary
    after: Summary


class ConnectionsAround(msgspec.Struct, frozen=True, kw_only=True):
    """Clients by broker: the last scrape before the incident, the last one before the next incident or the end."""

    before: dict[str, float]
    after: dict[str, float]


class Incident(msgspec.Struct, frozen=True, kw_only=True):
    """`kind` as given by who caused it, or as found: "broker died", "broker restarted", "takeover", "reconnect wave".
    `at` is the last moment at which all was well, `at_uncertain_seconds` how much later it may have begun. `resume` is
    what clients waited, `publish_gap` what publishers waited; both from the incident to the next."""

    kind: str
    broker: str
    at: str
    until: str
    at_uncertain_seconds: float
    found: bool
    """Found in the samples, not told by the caller."""
    happenings: list[Happening]
    affected: Affected
    latency_ms: Around
    resume_seconds: Summary
    publish_gap_seconds: Summary
    connections: ConnectionsAround


class Burn(msgspec.Struct, frozen=True, kw_only=True):
    """How quickly the budget was spent in the last `window_seconds`: 1 spends it exactly in the objective's window.
    `rate` is null without an event, without data for all of the window, and with a target of 100%, which has no
    budget."""

    window_seconds: float
    good: int
    total: int
    rate: float | None


class BudgetPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Events from the start of the objective's window to `end`."""

    end: str
    good: int
    total: int
    budget_left: float | None


class ObjectiveWindow(msgspec.Struct, frozen=True, kw_only=True):
    """What the objective was judged over. `kind`: report (the report's own window), rolling, day, week, month, quarter,
    year (so far). `coverage` is the share of it that was scraped."""

    kind: Literal["report", "rolling", "day", "week", "month", "quarter", "year"]
    start: str
    end: str
    zone: str
    coverage: float


class Result(msgspec.Struct, frozen=True, kw_only=True):
    """`good` of `total` events (or slices of time) were as promised. `compliance` = good / total; `budget_left` is the
    share of the allowed failures that is left, below 0 when overspent. Null where nothing can be said; `reason` says
    why."""

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
    """What is counted, in words: deliveries, expected deliveries, resumes, publish gaps, publications, slices."""
    silent_slices: int | None
    """Slices of time without an event: they are neither good nor bad."""
    bad_slices: list[str]
    """Starts of the first 100 bad slices."""
    window: ObjectiveWindow
    burn: list[Burn]
    budget_over_time: list[BudgetPoint]


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """One window of time of one cluster."""

    schema: str = SCHEMA
    cluster: str
    """As the samples name it; several are joined by commas."""
    window: Window
    coverage: Coverage
    samples: Samples
    notes: list[str]
    """What a reader of the figures should know, one sentence each."""
    delivery: Delivery
    availability: Availability
    latency_ms: Latency
    estimated_latency_ms: Summary
    """Across clocks, shown and not judged unless an objective asks for it."""
    replay_latency_ms: Summary
    resume_seconds: Summary
    publish_gap_seconds: Summary
    publish_ms: Summary
    windows: list[WindowRow]
    calendar: Calendar
    connections: list[Connections]
    incidents: list[Incident]
    objectives: list[Result]
    verdict: Verdict
