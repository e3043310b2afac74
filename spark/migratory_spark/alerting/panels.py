"""The content of the Grafana dashboard's panels, by row; `dashboard.py` arranges them."""

from __future__ import annotations

from dataclasses import dataclass, field

from migratory_spark.alerting.indicators import JUDGED, newly_lost
from migratory_spark.alerting.rules import BUDGET, BURN, QUANTILES, RATIO

CLUSTER = 'cluster="$cluster"'
_LATENCY = "migratory_delivery_latency_seconds"


@dataclass(frozen=True, slots=True)
class Panel:
    """A panel of the dashboard.

    `queries` are pairs of legend and PromQL. `unit` is Grafana's name of a unit, `kind` is timeseries, stat or heatmap,
    `width` is in 24ths of the page. `stacked` is True to draw the series on top of each other. `steps` are pairs of a
    value and the color from that value on; the value of the first is None, for the lowest.
    """

    title: str
    description: str
    queries: list[tuple[str, str]]
    unit: str = "short"
    kind: str = "timeseries"
    width: int = 8
    stacked: bool = False
    steps: list[tuple[float | None, str]] = field(default_factory=list)


def _rate(metric: str, labels: str = "", by: str = "broker") -> str:
    """Return the PromQL of a counter's increase per second in the chosen cluster, summed by a label.

    :param labels: more PromQL label matchers, without braces.
    """
    matchers = f"{CLUSTER},{labels}" if labels else CLUSTER
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[$__rate_interval]))"


def _quantile(share: str, histogram: str, labels: str = "") -> str:
    """Return the PromQL of a quantile (`share`, 0 to 1) of a histogram in the chosen cluster."""
    return f"histogram_quantile({share}, {_rate(f'{histogram}_bucket', labels, 'le')})"


def _gauge(metric: str) -> list[tuple[str, str]]:
    """Return the queries of a panel with a line for each broker's value of the metric."""
    return [("{{broker}}", f"{metric}{{{CLUSTER}}}")]


def _judged(part: str) -> str:
    """Return the PromQL of the rate of a part of the latency histogram (`sum`, `count`, …), of the deliveries that
    verdicts use."""
    return _rate(f"{_LATENCY}_{part}", JUDGED, "cluster")


_MEAN = f"{_judged('sum')} / {_judged('count')}"

GOOD_BAD: list[tuple[float | None, str]] = [(None, "green"), (1, "red")]

ROWS: dict[str, list[Panel]] = {
    "Objectives": [
        Panel(
            "Error budget left", "Over thirty days, by objective; below zero the objective is missed.",
            [("{{objective}}", f"{BUDGET}{{{CLUSTER}}}")], "percentunit", "stat",
            steps=[(None, "red"), (0, "orange"), (0.25, "green")],
        ),
        Panel(
            "Lost, duplicated, out of order",
            "As clients counted in the last hour. Anything but 0 is a fault.",
            [
                (word, f"sum(increase(migratory_{word}_total{{{CLUSTER}}}[1h]))")
                for word in ("lost", "duplicates", "reordered")
            ],
            kind="stat", steps=GOOD_BAD,
        ),
        Panel(
            "Brokers", "Synced members, fenced brokers, groups whose publishing waits.",
            [
                ("members", f"sum(migratory_member{{{CLUSTER}}})"),
                ("fenced", f"sum(migratory_fenced{{{CLUSTER}}})"),
                ("waiting groups", f"sum(migratory_waiting_groups{{{CLUSTER}}})"),
            ],
            kind="stat",
        ),
        Panel(
            "Burn rate over one hour", "1 spends the budget exactly in thirty days; 14.4 pages.",
            [("{{objective}}", f"{BURN}_1h{{{CLUSTER}}}")], width=12,
        ),
        Panel(
            "Share of bad events, five minutes", "By objective; no line without events.",
            [("{{objective}}", f"{RATIO}_5m{{{CLUSTER}}}")], "percentunit", width=12,
        ),
    ],
    "Latency": [
        Panel(
            "Delivery latency", "Live deliveries between a sender and a receiver on one clock.",
            [(f"P{name}", f"cluster:{_LATENCY}:p{name}_5m{{{CLUSTER}}}") for name, _ in QUANTILES], "s", width=12,
        ),
        Panel(
            "P99 by broker", "The broker that delivered.",
            [("{{broker}}", f"broker:{_LATENCY}:p99_5m{{{CLUSTER}}}")], "s", width=12,
        ),
        Panel(
            "Deliveries by latency", "Deliveries by bucket.",
            [("{{le}}", f"sum by (le) (increase({_LATENCY}_bucket{{{CLUSTER},{JUDGED}}}[$__rate_interval]))")],
            "s", "heatmap", 12,
        ),
        Panel(
            "Mean and deviation", "Exact: from the sum and the sum of squares.",
            [
                ("mean", _MEAN),
                ("deviation", f"sqrt({_judged('squared_total')} / {_judged('count')} - ({_MEAN})^2)"),
            ],
            "s", width=12,
        ),
        Panel(
            "Publish to acknowledgement", "Held by `minCopies` brokers.",
            [(f"P{name}", _quantile(share, "migratory_publish_seconds")) for name, share in QUANTILES], "s",
        ),
        Panel(
            "Resume", "From the loss of a client's connection to its last receipt.",
            [(f"P{name}", _quantile(share, "migratory_resume_seconds")) for name, share in QUANTILES], "s",
        ),
        Panel(
            "Publish gap", "Between two acknowledgements around an interruption.",
            [(f"P{name}", _quantile(share, "migratory_publish_gap_seconds")) for name, share in QUANTILES], "s",
        ),
    ],
    "Traffic": [
        Panel("Clients", "Connected now.", _gauge("migratory_clients"), stacked=True),
        Panel("Subscriptions", "Of connected clients.", _gauge("migratory_subscriptions"), stacked=True),
        Panel("Topics", "Known to each broker; every broker holds every topic.", _gauge("migratory_topics")),
        Panel(
            "Published", "Accepted from a broker's own clients.",
            [("{{broker}}", _rate("migratory_published_total"))], "ops", stacked=True,
        ),
        Panel(
            "Committed", "As each broker counts it; the lines should coincide.",
            [("{{broker}}", _rate("migratory_committed_total"))], "ops",
        ),
        Panel(
            "Delivered", "Once for each subscriber.",
            [("{{broker}}", _rate("migratory_delivered_total"))], "ops", stacked=True,
        ),
        Panel(
            "Sent", "To clients.", [("{{broker}}", _rate("migratory_sent_bytes_total"))], "Bps", stacked=True,
        ),
        Panel(
            "Closed connections", "By reason; slow_consumer, backlog and client faults deserve attention.",
            [("{{reason}}", _rate("migratory_closed_total", by="reason"))], "ops",
        ),
        Panel(
            "Changes of broker", "As clients count them, by reason.",
            [("{{reason}}", _rate("migratory_reconnects_total", by="reason"))], "ops",
        ),
        Panel(
            "Lost links without a resume",
            "Clients that did not come back, within the last hour; they count as bad events of `resume`.",
            [("clients", newly_lost(CLUSTER, "1h"))],
        ),
        Panel(
            "Received of expected", "By the load generator; they differ only while deliveries are on their way.",
            [
                ("received", _rate("migratory_received_total", by="cluster")),
                ("expected", _rate("migratory_expected_total", by="cluster")),
            ],
            "ops",
        ),
        Panel(
            "Gaps reported by receipts", "Truncated or reset histories.",
            [("gaps", _rate("migratory_gaps_total", by="cluster"))], "ops",
        ),
        Panel(
            "Publications without acknowledgement", "Rejected or given up, by reason.",
            [("{{reason}}", _rate("migratory_publish_errors_total", by="reason"))], "ops",
        ),
    ],
    "Cluster": [
        Panel(
            "Coordinators", "Groups that each broker coordinates; balanced when all brokers are healthy.",
            [("{{broker}}", f'migratory_groups{{{CLUSTER},role="coordinator"}}')], stacked=True,
        ),
        Panel(
            "Groups by role", "Over all brokers; learners and candidates are transient.",
            [("{{role}}", f"sum by (role) (migratory_groups{{{CLUSTER}}})")],
        ),
        Panel(
            "Takeovers", "Groups that changed their coordinator, within five minutes.",
            [("{{broker}}", f"increase(migratory_takeovers_total{{{CLUSTER}}}[5m])")],
        ),
        Panel(
            "Takeover time", "From its start to its activation.",
            [(f"P{name}", _quantile(share, "migratory_takeover_seconds")) for name, share in QUANTILES], "s",
        ),
        Panel("Replication lag", "Sequenced and not committed yet.", _gauge("migratory_replication_lag")),
        Panel("Queues", "Bytes queued for slow clients.", _gauge("migratory_queue_bytes"), "bytes"),
        Panel(
            "Memory of clients", "What clients make a broker hold, by kind, as a share of the kind's limit.",
            [("{{broker}} {{kind}}", f"migratory_client_bytes{{{CLUSTER}}} / migratory_client_bytes_limit")],
            "percentunit",
        ),
        Panel("Cache", "Payload bytes.", _gauge("migratory_cache_bytes"), "bytes"),
        Panel(
            "Evicted too early",
            "Publications younger than `minAge` that were evicted.",
            _gauge("migratory_cache_short"),
        ),
        Panel(
            "Histories lost", "New histories started in the last hour.",
            [("{{broker}}", f"increase(migratory_history_resets_total{{{CLUSTER}}}[1h])")],
        ),
    ],
}  # fmt: skip
