"""An SLA report without Spark: twenty minutes of three brokers, one of which dies in the middle.

Drawn from a seed, shaped like a real one: latency waves, rises when the broker dies, one window has no delivery at all.
"""

from __future__ import annotations

import math
import random
from datetime import UTC, datetime, timedelta
from typing import Any

from migratory_spark import document as d

START = datetime(2026, 3, 1, 10, 0, tzinfo=UTC)
WINDOWS, SECONDS, DEAD, SILENT = 120, 10.0, 60, 20
BROKERS = ("quotes-broker-0", "quotes-broker-1", "quotes-broker-2")
BOUNDS = [round(1.25**step, 4) for step in range(32)]


def moment(window: float) -> str:
    at = START + timedelta(seconds=window * SECONDS)
    return at.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def summary(count: int, middle: float, spread: float = 1.6) -> d.DistributionSummary:
    """Return a summary of a log-normal distribution, in the unit of `middle`. Without observations all values are
    None."""
    if not count:
        return d.DistributionSummary(
            count=0, median=None, mean=None, stdev=None, p90=None, p95=None, p99=None, max=None
        )
    values = [round(middle * spread**step, 3) for step in (0, 0.3, 0.7, 1.28, 1.64, 2.33, 4)]
    return d.DistributionSummary(
        count=count, median=values[0], mean=values[1], stdev=values[2], p90=values[3], p95=values[4], p99=values[5],
        max=values[6],
    )  # fmt: skip


def sample_report(seed: int = 1, *, slower: float = 1.0, lost: int = 0, verdict: d.Verdict = "met") -> d.SlaReport:
    """Return a report. Latencies are multiplied by `slower`. With `lost`, the objective `complete` is missed."""
    draw = random.Random(seed)
    over_time: list[d.WindowSummary] = []
    by_window: list[d.WindowSummary] = []
    counts: list[list[int]] = []
    rows: list[d.WindowRow] = []
    for window in range(WINDOWS):
        middle = slower * (11 + 3 * math.sin(window / 9) + draw.random() + (40 if DEAD <= window < DEAD + 3 else 0))
        delivered = 0 if window == SILENT else 3000
        whole = summary(delivered, middle)
        if delivered:
            over_time.append(d.WindowSummary(start=moment(window), broker="", **_values(whole)))
            alive = BROKERS if window < DEAD else BROKERS[:2]
            for place, broker in enumerate(alive):
                values = _values(summary(delivered // len(alive), middle * (1 + 0.1 * place)))
                by_window.append(d.WindowSummary(start=moment(window), broker=broker, **values))
        counts.append(_spread(delivered, middle))
        rows.append(
            d.WindowRow(
                start=moment(window), seconds=SECONDS, attempts=300, failures=2 if window == DEAD else 0,
                availability=298 / 300 if window == DEAD else 1.0, expected=delivered, received=delivered,
                lost=lost if window == DEAD else 0, reconnects=333 if window == DEAD else 0, latency_ms=whole,
            )
        )  # fmt: skip
    total = sum(row.received for row in rows)
    everything = summary(total, 11.8 * slower)
    columns = [sum(row[place] for row in counts) for place in range(len(BOUNDS) + 1)]
    cumulative, below = [], 0
    for bound, count in zip(BOUNDS, columns[:-1], strict=True):
        below += count
        cumulative.append((bound, below))
    share = (DEAD * 1.0) / WINDOWS
    before, after = round(total * share), round(total * (1 - share))
    return d.SlaReport(
        cluster="quotes",
        window=d.ReportWindow(start=moment(0), end=moment(WINDOWS), seconds=WINDOWS * SECONDS, zone="UTC"),
        coverage=d.WindowCoverage(
            share=0.998, scrape_interval_seconds=1.0, longest_gap_seconds=2.4, scrapes=1200,
            targets=[
                d.ReportTarget(
                    name="127.0.0.1:9100", first=moment(0), last=moment(WINDOWS), scrapes=1200, interval_seconds=1.0,
                    longest_gap_seconds=2.4, restarts=0, ended_early=False, uncertain_seconds=0.0,
                )
            ],
        ),
        samples=d.SampleCounts(
            series=4200, samples=2_400_000, older=0, repeated=0, stale=3, nan=0, restarts=1,
            different_buckets=[],
        ),
        notes=["One exporter began again at zero; what it counted since its last scrape is not in the totals."],
        delivery=d.DeliveryCounts(
            expected=total, received=total - lost, lost=lost, duplicates=0, reordered=0, reconnects=333,
            publish_errors=2, gaps=d.GapCounts(truncated=0, reset=0),
            by_broker={
                broker: d.BrokerDeliveryCounts(
                    received=total // 3, lost=0, reconnects=333 if broker == BROKERS[2] else 0
                )
                for broker in BROKERS
            },
        ),
        availability=d.AvailabilityCounts(
            attempts=36_000, failures=2, share=35_998 / 36_000, windows_without_traffic=0,
            errors_by_reason={"unavailable": 2},
        ),
        latency_ms=d.LatencySection(
            all=everything,
            by_broker={
                broker: summary(total // 3, slower * (11.8 + place)) for place, broker in enumerate(BROKERS)
            },
            by_window=by_window, window_seconds=SECONDS, over_time=over_time, cumulative=cumulative,
            heat=d.LatencyHeatmap(
                starts=[moment(window) for window in range(WINDOWS)], bounds_ms=BOUNDS, counts=counts
            ),
        ),
        estimated_latency_ms=summary(0, 1),
        replay_latency_ms=summary(700, 900),
        resume_seconds=summary(333, 0.9),
        publish_gap_seconds=summary(20, 1.4),
        publish_ms=summary(36_000, 7),
        windows=rows,
        calendar=d.Calendar(unit="hour", zone="UTC", rows=[_hour(rows, everything)]),
        connections=[
            d.BrokerConnections(
                broker=broker, mean=333, max=500, last=None if broker == BROKERS[2] else 500,
                by_window=[_clients(broker, window) for window in range(WINDOWS)],
            )
            for broker in BROKERS
        ],
        incidents=[_incident(before, after, slower)],
        objectives=_objectives(total, lost, slower),
        verdict="missed" if lost else verdict,
    )  # fmt: skip


def _values(found: d.DistributionSummary) -> dict[str, Any]:
    return {name: getattr(found, name) for name in ("count", "median", "mean", "stdev", "p90", "p95", "p99", "max")}


def _spread(delivered: int, middle: float) -> list[int]:
    """Return bucket counts for `delivered` deliveries: a bell curve over the logarithms of the bounds."""
    weights = [math.exp(-((math.log(bound / middle) / 0.5) ** 2)) for bound in BOUNDS]
    counts = [round(delivered * weight / sum(weights)) for weight in weights]
    return [*counts, 0]


def _clients(broker: str, window: int) -> float | None:
    if window < DEAD:
        return 333.0
    return None if broker == BROKERS[2] else 500.0


def _hour(rows: list[d.WindowRow], whole: d.DistributionSummary) -> d.CalendarRow:
    return d.CalendarRow(
        start=rows[0].start, local="2026-03-01T10:00:00+00:00", seconds=WINDOWS * SECONDS,
        attempts=sum(row.attempts for row in rows), failures=sum(row.failures for row in rows),
        availability=35_998 / 36_000, expected=sum(row.expected for row in rows),
        received=sum(row.received for row in rows), lost=sum(row.lost for row in rows), reconnects=333,
        latency_ms=whole,
    )  # fmt: skip


def _incident(before: int, after: int, slower: float) -> d.Incident:
    at, until = moment(DEAD), moment(DEAD + 0.4)
    return d.Incident(
        kind="broker died", broker=BROKERS[2], at=at, until=until, at_uncertain_seconds=1.0, found=True,
        happenings=[
            d.IncidentStepRow(kind="silent", at=at, until=moment(WINDOWS), broker=BROKERS[2], count=None),
            d.IncidentStepRow(kind="reconnects", at=at, until=until, broker="", count=333),
            d.IncidentStepRow(kind="takeover", at=at, until=until, broker=BROKERS[0], count=17),
        ],
        affected=d.IncidentImpact(
            clients_by_broker={BROKERS[2]: 333}, clients=333, publish_gaps=20, publish_errors=2, takeovers=33
        ),
        latency_ms=d.LatencyAround(
            before=summary(before, 11 * slower), during=summary(2000, 52 * slower), after=summary(after, 11.4 * slower)
        ),
        resume_seconds=summary(333, 0.9), publish_gap_seconds=summary(20, 1.4),
        connections=d.ConnectionsAround(
            before=dict.fromkeys(BROKERS, 333.0), after={BROKERS[0]: 500.0, BROKERS[1]: 499.0}
        ),
    )  # fmt: skip


def _objectives(total: int, lost: int, slower: float) -> list[d.ObjectiveResult]:
    late = round(total * 0.0004 * slower)
    found = []
    for name, kind, target, threshold, bad, of, unit in (
        ("fast", "latency", "99.9", 250.0, late, total, "deliveries"),
        ("complete", "delivery", "100", None, lost, total, "expected deliveries"),
        ("back", "resume", "99", 5000.0, 1, 333, "resumes"),
    ):
        allowed = 1 - float(target) / 100

        def left(bad: int, of: int, allowed: float = allowed) -> float:
            if not allowed:
                return 0.0 if bad else 1.0
            return 1 - bad / of / allowed

        points = [
            d.BudgetPoint(
                end=moment(window), good=of - (bad if window > DEAD else bad // 4), total=of,
                budget_left=left(bad if window > DEAD else bad // 4, of),
            )
            for window in range(1, WINDOWS + 1)
        ]  # fmt: skip
        found.append(
            d.ObjectiveResult(
                name=name, type=kind, target=target, good=of - bad, total=of, compliance=(of - bad) / of,
                budget_left=left(bad, of), verdict="met" if (of - bad) / of >= 1 - allowed else "missed",
                reason=f"{bad} lost" if bad and kind == "delivery" else "", threshold_ms=threshold,
                counts="occurrences", unit=unit, silent_slices=None, bad_slices=[],
                window=d.ObjectiveWindow(
                    kind="report", start=moment(0), end=moment(WINDOWS), zone="UTC", coverage=0.998
                ),
                burn=[
                    d.BurnRate(
                        window_seconds=300.0, good=of - bad, total=of,
                        rate=None if not allowed else round(bad / of / allowed, 4),
                    )
                ],
                budget_over_time=points,
            )
        )  # fmt: skip
    return found


def empty_report() -> d.SlaReport:
    """Return a report without any counts: its verdicts are insufficient data, and its numbers null."""
    full = sample_report()
    nothing = summary(0, 1)
    unknown = d.ObjectiveResult(
        name="fast", type="latency", target="99.9", good=None, total=None, compliance=None, budget_left=None,
        verdict="insufficient", reason="no metrics of clients were recorded in the window", threshold_ms=250.0,
        counts="occurrences", unit="deliveries", silent_slices=None, bad_slices=[],
        window=full.objectives[0].window, burn=[], budget_over_time=[],
    )  # fmt: skip
    return d.SlaReport(
        cluster="", window=full.window,
        coverage=d.WindowCoverage(
            share=0.0, scrape_interval_seconds=None, longest_gap_seconds=1200, scrapes=0, targets=[]
        ),
        samples=d.SampleCounts(
            series=0, samples=0, older=0, repeated=0, stale=0, nan=0, restarts=0, different_buckets=[]
        ),
        notes=[],
        delivery=d.DeliveryCounts(
            expected=None, received=None, lost=None, duplicates=None, reordered=None, reconnects=None,
            publish_errors=None, gaps=d.GapCounts(truncated=None, reset=None), by_broker={},
        ),
        availability=d.AvailabilityCounts(
            attempts=None, failures=None, share=None, windows_without_traffic=0, errors_by_reason={}
        ),
        latency_ms=d.LatencySection(
            all=nothing, by_broker={}, by_window=[], window_seconds=10.0, over_time=[], cumulative=[],
            heat=d.LatencyHeatmap(starts=[], bounds_ms=[], counts=[]),
        ),
        estimated_latency_ms=nothing, replay_latency_ms=nothing, resume_seconds=nothing, publish_gap_seconds=nothing,
        publish_ms=nothing, windows=[], calendar=d.Calendar(unit="hour", zone="UTC", rows=[]), connections=[],
        incidents=[], objectives=[unknown], verdict="insufficient",
    )  # fmt: skip
