"""Service level indicators: the PromQL of the rates of an objective's events, of all and of the bad ones, by cluster.

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
"""Matchers of the latency that verdicts use by default: live deliveries between a sender and a receiver on one
clock."""

Expression = Callable[[str], str]
"""A function from a range such as `5m` to PromQL."""


@dataclass(frozen=True, slots=True)
class Indicator:
    """The PromQL of bad and of all events per second, by cluster, as functions of a range such as `5m`.

    The expression `measured` has a value only if the objective's threshold is a bound of the histogram. It is None for
    objectives without a threshold. `recorded` are the names and expressions of series that the expressions `bad` and
    `total` read. They must be recorded in this order, with the objective's name in the label `objective`.
    """

    bad: Expression
    total: Expression
    measured: Expression | None = None
    recorded: tuple[tuple[str, str], ...] = ()


UNRESUMED, LOST = "migratory_slo:unresumed_links", "migratory_slo:lost_links"
"""Recorded series by exporter: links that were lost and not followed by a resume yet, and those of them that had the
time for it."""
_SETTLING_SECONDS = 120
"""Seconds beyond an objective's threshold for which a lost link is not yet counted as lost without a resume: in them a
resume is scraped and recorded."""


def le(seconds: float) -> str:
    """Return a bucket's upper bound as exporters write it in the label `le`: `0.25`, `5.0`."""
    return str(float(seconds))


def indicator(objective: Objective) -> Indicator | None:
    """Return the indicator of an objective, or None for an objective that counts slices of time (`slice_measure` is for
    those)."""
    match objective.type:
        case "latency" if objective.slices is None:
            return _within("migratory_delivery_latency_seconds", judged_labels(objective), objective.threshold)
        case "resume":
            return _resumes(objective)
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


def newly_lost(selector: str, span: str) -> str:
    """Return the PromQL of the number of links, by cluster, that within the range began to count as lost without a
    resume: no resume was seen within the objective's threshold and _SETTLING_SECONDS.

    :param selector: PromQL label matchers of the recorded series LOST.
    :param span: the range, such as `1h`.
    """
    lost = f"{LOST}{{{selector}}}"
    # A difference and not `increase`, which would estimate events beyond the samples at the ends of the range.
    return f"{BY} (clamp_min({lost} - ({lost} offset {span} or {lost} * 0), 0))"


def _resumes(objective: Objective) -> Indicator:
    """Return the indicator of an objective of type `resume`. Its events are the resumes, and the links that were lost
    without a resume, which are bad."""
    assert objective.threshold is not None
    measured = _within("migratory_resume_seconds", "", objective.threshold)
    exporter = "sum by (cluster, job, instance)"
    unresumed = f"{exporter} (migratory_reconnects_total) - {exporter} (migratory_resume_seconds_count)"
    settled = duration(objective.threshold + _SETTLING_SECONDS)
    selector = f'objective="{objective.name}"'

    def never(span: str) -> str:
        return f"({newly_lost(selector, span)} / {seconds(span)} or {measured.total(span)} * 0)"

    return Indicator(
        bad=lambda span: f"{measured.bad(span)} + {never(span)}",
        total=lambda span: f"{measured.total(span)} + {never(span)}",
        measured=measured.measured,
        recorded=(
            (UNRESUMED, unresumed),
            (LOST, f"min_over_time({UNRESUMED}{{{selector}}}[{settled}])"),
        ),
    )


@dataclass(frozen=True, slots=True)
class SliceMeasure:
    """The PromQL by which a slice of time is judged: the value of `expression`, which is recorded as the series
    `record`, and the comparison `bad` with which PromQL gives 1 for a bad value and 0 for a good one, such as `> bool
    0.25`."""

    record: str
    expression: str
    bad: str


def slice_measure(objective: Objective) -> SliceMeasure:
    """Return the measure of an objective that counts slices of time: a percentile of the latency in seconds, or the
    acknowledged share of publications. Its expression has no value (never NaN) for a slice without events."""
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
    """Return the PromQL label matchers, without braces, of the live deliveries that count for a latency objective."""
    clocks = objective.clocks
    return f'clock="{clocks[0]}",phase="live"' if len(clocks) == 1 else f'clock=~"{"|".join(clocks)}",phase="live"'


def duration(seconds: float) -> str:
    """Return a duration in seconds as PromQL writes it, in the largest unit of which it is a multiple: `90s`, `5m`,
    `250ms`."""
    milliseconds = round(seconds * 1000)
    for unit, length in (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1000)):
        if milliseconds % length == 0:
            return f"{milliseconds // length}{unit}"
    return f"{milliseconds}ms"


def seconds(window: str) -> int:
    """Return the seconds of a range in minutes, hours or days, such as `5m`, `1h` or `3d`."""
    return int(window[:-1]) * {"m": 60, "h": 3600, "d": 86_400}[window[-1]]


def _plain(value: Decimal) -> str:
    """Return the number in decimal digits, without an exponent and trailing zeros."""
    return format(value.normalize(), "f")


def _within(histogram: str, labels: str, threshold: float | None) -> Indicator:
    """Return the indicator whose events are a histogram's observations, of which those above the threshold (seconds)
    are bad.

    :param labels: PromQL label matchers of the series that count, without braces; "" for all.
    """
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
