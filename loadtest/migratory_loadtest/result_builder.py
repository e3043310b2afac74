"""Builds the result of a run from the workers' measurements and the verifier's findings, and judges it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from migratory_loadtest.histogram import Histogram, nearest_rank
from migratory_loadtest.meter import AFTER, BEFORE, DURING, merge_histograms
from migratory_loadtest.result import (
    ConnectionCounts,
    DurationSummary,
    FaultRecovery,
    GeneratorUsage,
    LatencyPhases,
    LatencySummary,
    LoadResult,
)
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.verifier import Verification
from migratory_loadtest.worker_messages import FaultSummary, MarkFault, WorkerSummary
from migratory_loadtest.workload import LATE_SECONDS, is_generator_late

MAX_LISTED = 100
"""Problems and errors that a result lists, so that it stays readable. All counts are exact."""


@dataclass(frozen=True, slots=True)
class RunData:
    """The data of a run from which its result is built, besides the verification of its deliveries."""

    scenario: Scenario
    bounds: tuple[float, ...]
    """Bucket bounds of the workers' histograms."""
    summaries: Sequence[WorkerSummary]
    marks: Sequence[MarkFault]
    before: dict[str, int]
    """Connected subscribers by broker before the first mark."""
    seconds: float
    """Seconds from the first scheduled publication to the end of the verification."""
    measured: float | None = None
    """Measured seconds, if they differ from the scenario's duration."""


def build_result(data: RunData, verification: Verification) -> LoadResult:
    """Return the result of a run, with its verdict and the reasons for which it is not `met`. The scenario in it has no
    token."""
    scenario, summaries = data.scenario, data.summaries
    published = sum(summary.published for summary in summaries)
    late = sum(summary.late for summary in summaries)
    after: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    changes: Counter[int] = Counter()
    for summary in summaries:
        after.update(summary.connections)
        reasons.update(summary.reconnects)
        changes.update(summary.changes)
    publish = merge_histograms(data.bounds, (summary.publish for summary in summaries))
    marks = [_fault_recovery(data, mark) for mark in data.marks]
    result = LoadResult(
        published=published,
        acknowledged=verification.acknowledged,
        unanswered=verification.unanswered,
        failed=verification.failed,
        expected=verification.expected,
        delivered=verification.delivered,
        received=verification.received,
        lost=verification.lost,
        gaps=verification.gaps,
        duplicates=verification.duplicates,
        reordered=verification.reordered,
        unexpected=verification.unexpected,
        conflicts=verification.conflicts,
        unknown=verification.unknown,
        repeated=sum(summary.repeated for summary in summaries),
        reconnects=reasons.total(),
        reconnect_reasons=dict(sorted(reasons.items())),
        clients_by_reconnects={str(count): clients for count, clients in sorted(changes.items())},
        resume_seconds=summarize_durations(value for summary in summaries for value in summary.resumes),
        publish_gap_seconds=summarize_durations(
            gap for summary in summaries for mark in summary.marks for gap in mark.gaps
        ),
        publish_seconds=DurationSummary(
            count=publish.count,
            p50=publish.quantile(0.5),
            p99=publish.quantile(0.99),
            max=publish.largest if publish.count else None,
        ),
        latency_ms=LatencyPhases(
            before=_latency(data, BEFORE), during=_latency(data, DURING), after=_latency(data, AFTER)
        ),
        connections=ConnectionCounts(before=data.before, after=dict(sorted(after.items()))),
        traffic_gbps=sum(summary.measured_bytes for summary in summaries) * 8 / 1e9 / _measured(data),
        scheduled=sum(summary.scheduled for summary in summaries),
        late_sends=late,
        latest_send_ms=max((summary.latest for summary in summaries), default=0.0) * 1e3,
        generator_late=is_generator_late(published, late),
        generator=_generator(summaries, verification.received),
        marks=marks,
        problems=verification.problems[:MAX_LISTED],
        errors=sorted({error for summary in summaries for error in summary.errors})[:MAX_LISTED],
        scenario=msgspec.to_builtins(msgspec.structs.replace(scenario, token=None)),  # results are shown and stored
        seconds=data.seconds,
    )
    _judge(result, verification, scenario, marks)
    return result


def _measured(data: RunData) -> float:
    """Return the length of the measured time in seconds, above 0."""
    return data.scenario.duration if data.measured is None else max(data.measured, 1e-3)


def _generator(summaries: Sequence[WorkerSummary], received: int) -> GeneratorUsage:
    """Return what all workers used together. `received` is the number of all deliveries."""
    seconds = sum(summary.cpu for summary in summaries)
    return GeneratorUsage(
        workers=len(summaries),
        cpu_seconds=round(seconds, 3),
        cpu_us_per_delivery=round(seconds / received * 1e6, 2) if received else None,
        peak_mib=round(sum(summary.peak_bytes for summary in summaries) / 2**20, 1),
    )


def summarize_durations(values: Iterable[float]) -> DurationSummary:
    """Return number, P50, P99 and maximum of durations in seconds, by nearest rank; None for all but the number without
    durations."""
    durations = sorted(values)
    return DurationSummary(
        count=len(durations),
        p50=nearest_rank(durations, 0.5),
        p99=nearest_rank(durations, 0.99),
        max=durations[-1] if durations else None,
    )


def _latency(data: RunData, window: str) -> LatencySummary:
    """Return the latencies of all workers' deliveries in one measurement window."""
    histogram = merge_histograms(
        data.bounds, (summary.latency[window] for summary in data.summaries if window in summary.latency)
    )
    return summarize_latency(histogram)


def summarize_latency(histogram: Histogram) -> LatencySummary:
    """Return number, percentiles, mean and deviation of a histogram's values in milliseconds; None for all but the
    number if nothing was observed."""

    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1e3, 4)

    return LatencySummary(
        count=histogram.count,
        median=ms(histogram.quantile(0.5)),
        mean=ms(histogram.mean()),
        stdev=ms(histogram.deviation()),
        p90=ms(histogram.quantile(0.9)),
        p95=ms(histogram.quantile(0.95)),
        p99=ms(histogram.quantile(0.99)),
        max=ms(histogram.largest) if histogram.count else None,
    )


def _fault_recovery(data: RunData, mark: MarkFault) -> FaultRecovery:
    """Return the recovery from a mark, from the parts of all workers."""
    parts: list[FaultSummary] = [
        part for summary in data.summaries for part in summary.marks if part.number == mark.number
    ]
    times = [seconds for part in parts for seconds in part.resumes]
    changes: Counter[int] = Counter()
    for part in parts:
        changes.update(part.changes)
    limit = data.scenario.resume_limit
    return FaultRecovery(
        name=mark.name,
        broker=mark.broker,
        clients=sum(part.clients for part in parts),
        disconnected=sum(part.disconnected for part in parts),
        resumed=len(times),
        within_limit=sum(seconds <= limit for seconds in times),
        slowest=max(times, default=None),
        others_disconnected=sum(part.others_disconnected for part in parts),
        clients_by_reconnects={str(count): clients for count, clients in sorted(changes.items())},
        silent_groups=sum(part.open_gaps for part in parts),
        publish_gap_seconds=summarize_durations(gap for part in parts for gap in part.gaps),
    )


def _judge(result: LoadResult, verification: Verification, scenario: Scenario, marks: Sequence[FaultRecovery]) -> None:
    """Set the verdict and the reasons of the result. An observed failure makes the verdict `missed`, even if data are
    insufficient; the reasons name both, failures first."""
    missed, insufficient = result.reasons, []
    missed += verification.violations
    if scenario.qos == 1 and verification.unanswered:  # QoS 0 has no answers
        missed.append(f"{verification.unanswered} publications were never answered")
    for mark in marks:
        if mark.broker is None:
            continue
        if mark.resumed < mark.disconnected:
            missed.append(f"{mark.disconnected - mark.resumed} clients of {mark.broker} never resumed")
        if mark.within_limit < mark.resumed:
            late = mark.resumed - mark.within_limit
            missed.append(f"{late} clients of {mark.broker} took longer than {scenario.resume_limit:g} s to resume")
        if mark.disconnected < mark.clients:
            insufficient.append(f"{mark.clients - mark.disconnected} clients of {mark.broker} never lost their link")
        if not mark.clients:
            insufficient.append(f"no client was connected to {mark.broker}")
    if not scenario.alone:
        insufficient += [
            f"there were no {name}" for name in ("subscribers", "publishers") if not getattr(scenario, name)
        ]
    if scenario.publisher_count() and scenario.qos == 1 and not verification.acknowledged:
        insufficient.append("nothing was acknowledged")
    if scenario.subscribers and not verification.received:
        insufficient.append("nothing was delivered")
    if result.generator_late:
        insufficient.append(
            f"the load generator itself was late: {result.late_sends} of {result.published} publications were sent "
            f"more than {LATE_SECONDS * 1e3:.0f} ms after their time"
        )
    result.verdict = "missed" if missed else "insufficient" if insufficient else "met"
    missed += insufficient
