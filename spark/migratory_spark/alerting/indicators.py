"""Service level indicators: the PromQL of each objective's rates, of all its events and of the bad ones, by cluster.

The events are those of reports (docs/reference/sla.md), but estimated: `rate` extrapolates and loses events at
restarts. That is good enough for alerts and not for verdicts.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from migratory_resources.objectives import Objective

BY = "sum by (cluster)"
JUDGED = 'clock="same",phase="live"'
"""Matchers of the latency that verdicts use: live deliveries between a sender and a receiver on one clock."""

Expression = Callable[[str], str]
"""A function from a range such as `5m` to PromQL."""


@dataclass(frozen=True, slots=True)
class Indicator:
    """The PromQL of bad and of all events per second, by cluster, as functions of a range such as `5m`.

    The expression `measured` has a value only if the objective's threshold is a bound of the histogram. It is None for
    objectives without a threshold.
    """

    bad: Expression
    total: Expression
    measured: Expression | None = None


def le(seconds: float) -> str:
    """Return a bucket's bound as exporters write it in the label `le`: `0.25`, `5.0`."""
    return str(float(seconds))


def indicator(objective: Objective) -> Indicator | None:
    """Return the indicator of an objective, or None for an objective that counts slices of time (see
    `slice_measure`)."""
    match objective.type:
        case "latency" if objective.slices is None:
            return _within("migratory_delivery_latency_seconds", judged_labels(objective), objective.threshold)
        case "resume":
            return _within("migratory_resume_seconds", "", objective.threshold)
        case "publish":
            return _within("migratory_publish_gap_seconds", "", objective.threshold)
        case "delivery":
            wrong = ("migratory_lost_total", "migratory_duplicates_total", "migratory_reordered_total")
            return Indicator(
                bad=lambda span: " + ".join(f"{BY} (rate({name}[{span}]))" for name in wrong),
                total=lambda span: f"{BY} (rate(migratory_expected_total[{span}]))",
            )
        case "availability" if objective.slices is None:
            failed, answered = "migratory_publish_errors_total", "migratory_publish_seconds_count"
            return Indicator(
                bad=lambda span: f"{BY} (rate({failed}[{span}]))",
                total=lambda span: f"{BY} (rate({answered}[{span}])) + {BY} (rate({failed}[{span}]))",
            )
    return None


@dataclass(frozen=True, slots=True)
class SliceMeasure:
    """The PromQL by which a slice of time is judged: `expression`, recorded as the series `record`, is bad where the
    comparison `bad` holds."""

    record: str
    expression: str
    bad: str


def slice_measure(objective: Objective) -> SliceMeasure:
    """Return the measure of an objective that counts slices of time. Its expression has no value (never NaN) for a
    slice without events."""
    slices = objective.slices
    assert slices is not None
    span = duration(slices.length)
    if slices.share is not None:
        events = indicator(objective.model_copy(update={"slices": None}))
        assert events is not None
        good = f"1 - ({events.bad(span)}) / ({events.total(span)} > 0)"
        return SliceMeasure("migratory_slo:slice_good_ratio", good, f"< bool {_plain(slices.share / Decimal(100))}")
    assert slices.percentile is not None  # validated with the resource
    assert slices.threshold is not None
    share, judged = _plain(slices.percentile / Decimal(100)), judged_labels(objective)
    buckets = f"sum by (cluster, le) (rate(migratory_delivery_latency_seconds_bucket{{{judged}}}[{span}]))"
    deliveries = f"{BY} (rate(migratory_delivery_latency_seconds_count{{{judged}}}[{span}]))"
    return SliceMeasure(
        "migratory_slo:slice_percentile_seconds",
        f"histogram_quantile({share}, {buckets}) and {deliveries} > 0",
        f"> bool {slices.threshold:g}",
    )


def judged_labels(objective: Objective) -> str:
    """Return the PromQL label matchers of the live deliveries that count for a latency objective."""
    clocks = objective.clocks
    return f'clock="{clocks[0]}",phase="live"' if len(clocks) == 1 else f'clock=~"{"|".join(clocks)}",phase="live"'


def duration(seconds: float) -> str:
    """Return a duration as PromQL writes it, in the largest unit that divides it: `90s`, `5m`, `250ms`."""
    milliseconds = round(seconds * 1000)
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % length == 0:
            return f"{milliseconds // length}{unit}"
    return f"{milliseconds}ms"


def _plain(value: Decimal) -> str:
    return format(value.normalize(), "f")


def _within(histogram: str, labels: str, threshold: float | None) -> Indicator:
    assert threshold is not None
    matchers = f"{{{labels}}}" if labels else ""
    bucket = f'{histogram}_bucket{{{labels + "," if labels else ""}le="{le(threshold)}"}}'

    def total(span: str) -> str:
        return f"{BY} (rate({histogram}_count{matchers}[{span}]))"

    return Indicator(
        bad=lambda span: f"{total(span)} - {BY} (rate({bucket}[{span}]))",
        total=total,
        # Over the same range as `total`: the exporter may have ended since.
        measured=lambda span: f"{BY} (rate({bucket}[{span}]))",
    )
