"""Each objective as PromQL: the rate of all its events and of the bad ones, per cluster.

The same events as in reports (docs/sla.md), but estimated: `rate` extrapolates and loses what happens at restarts.
Alerts may rest on that; verdicts never do.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from decimal import Decimal

from migratory_resources.objectives import Objective

BY = "sum by (cluster)"
JUDGED = 'clock="same",phase="live"'
"""Latency that verdicts use: of live deliveries, between a sender and a receiver on one clock."""

Expression = Callable[[str], str]
"""From a range such as `5m` to PromQL."""


@dataclass(frozen=True, slots=True)
class Indicator:
    """`bad(range)` and `total(range)` in events per second, by cluster. `measured` has a value only where the
    histogram has the objective's threshold as a bound; None for objectives without one."""

    bad: Expression
    total: Expression
    measured: Expression | None = None


def le(seconds: float) -> str:
    """A bound as exporters write it: `0.25`, `5.0`."""
    return str(float(seconds))


def indicator(objective: Objective) -> Indicator | None:
    """None for objectives over slices of time: those are counted by `slices`."""
    match objective.type:
        case "latency" if objective.slices is None:
            return _within("migratory_delivery_latency_seconds", JUDGED, objective.threshold)
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
        case "availability":
            failed, answered = "migratory_publish_errors_total", "migratory_publish_seconds_count"
            return Indicator(
                bad=lambda span: f"{BY} (rate({failed}[{span}]))",
                total=lambda span: f"{BY} (rate({answered}[{span}])) + {BY} (rate({failed}[{span}]))",
            )
    return None


def slice_percentile(objective: Objective) -> str:
    """The percentile of one slice of time, in seconds; no value where nothing was delivered (never NaN)."""
    slices = objective.slices
    assert slices is not None
    span = duration(slices.length)
    share = format((slices.percentile / Decimal(100)).normalize(), "f")
    buckets = f"sum by (cluster, le) (rate(migratory_delivery_latency_seconds_bucket{{{JUDGED}}}[{span}]))"
    deliveries = f"{BY} (rate(migratory_delivery_latency_seconds_count{{{JUDGED}}}[{span}]))"
    return f"histogram_quantile({share}, {buckets}) and {deliveries} > 0"


def duration(seconds: float) -> str:
    """As PromQL writes it: the largest unit that divides it."""
    milliseconds = round(seconds * 1000)
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % length == 0:
            return f"{milliseconds // length}{unit}"
    return f"{milliseconds}ms"


def _within(histogram: str, labels: str, threshold: float | None) -> Indicator:
    assert threshold is not None
    matchers = f"{{{labels}}}" if labels else ""
    bucket = f'{histogram}_bucket{{{labels + "," if labels else ""}le="{le(threshold)}"}}'

    def total(span: str) -> str:
        return f"{BY} (rate({histogram}_count{matchers}[{span}]))"

    return Indicator(
        bad=lambda span: f"{total(span)} - {BY} (rate({bucket}[{span}]))",
        total=total,
        # Over as long a time as `total`: who exported may have ended since.
        measured=lambda span: f"{BY} (rate({bucket}[{span}]))",
    )
