"""Puts a run together: what the workers measured and what the verifier found become the result and its verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from migratory_loadtest.control import Mark, MarkSummary, Summary
from migratory_loadtest.histogram import Histogram, nearest_rank
from migratory_loadtest.meter import AFTER, BEFORE, DURING, merged
from migratory_loadtest.result import Connections, Generator, Latency, LoadResult, Phases, Resumed, Spread
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.schedule import LATE, generator_late
from migratory_loadtest.verifier import Verdict

NAMED = 100  # problems listed; the counts are exact


@dataclass(frozen=True, slots=True)
class RunFacts:
    """What the parent knows besides the verdict on the deliveries."""

    scenario: Scenario
    bounds: tuple[float, ...]
    summaries: Sequence[Summary]
    marks: Sequence[Mark]
    before: dict[str, int]
    seconds: float
    measured: float | None = None
    """Seconds that were measured, when they are not the scenario's."""


def assemble(facts: RunFacts, verdict: Verdict) -> LoadResult:
    scenario, summaries = facts.scenario, facts.summaries
    published = sum(summary.published for summary in summaries)
    late = sum(summary.late for summary in summaries)
    after: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    changes: Counter[int] = Counter()
    for summary in summaries:
        after.update(summary.connections)
        reasons.update(summary.reconnects)
        changes.update(summary.changes)
    publish = merged(facts.bounds, (summary.publish for summary in summaries))
    marks = [_resumed(facts, mark) for mark in facts.marks]
    result = LoadResult(
        published=published,
        acknowledged=verdict.acknowledged,
        unanswered=verdict.unanswered,
        failed=verdict.failed,
        expected=verdict.expected,
        delivered=verdict.delivered,
        received=verdict.received,
        lost=verdict.lost,
        gaps=verdict.gaps,
        duplicates=verdict.duplicates,
        reordered=verdict.reordered,
        unexpected=verdict.unexpected,
        conflicts=verdict.conflicts,
        unknown=verdict.unknown,
        repeated=sum(summary.repeated for summary in summaries),
        reconnects=reasons.total(),
        reconnect_reasons=dict(sorted(reasons.items())),
        clients_by_reconnects={str(count): clients for count, clients in sorted(changes.items())},
        resume_seconds=spread(value for summary in summaries for value in summary.resumes),
        publish_gap_seconds=spread(gap for summary in summaries for mark in summary.marks for gap in mark.gaps),
        publish_seconds=Spread(
            count=publish.count,
            p50=publish.quantile(0.5),
            p99=publish.quantile(0.99),
            max=publish.largest if publish.count else None,
        ),
        latency_ms=Phases(before=_latency(facts, BEFORE), during=_latency(facts, DURING), after=_latency(facts, AFTER)),
        connections=Connections(before=facts.before, after=dict(sorted(after.items()))),
        traffic_gbps=sum(summary.measured_bytes for summary in summaries) * 8 / 1e9 / _measured(facts),
        scheduled=sum(summary.scheduled for summary in summaries),
        late_sends=late,
        latest_send_ms=max((summary.latest for summary in summaries), default=0.0) * 1e3,
        generator_late=generator_late(published, late),
        generator=_generator(summaries, verdict.received),
        marks=marks,
        problems=verdict.problems[:NAMED],
        errors=sorted({error for summary in summaries for error in summary.errors})[:NAMED],
        scenario=msgspec.to_builtins(scenario),
        seconds=facts.seconds,
    )
    _judge(result, verdict, scenario, marks)
    return result


def _measured(facts: RunFacts) -> float:
    return facts.scenario.duration if facts.measured is None else max(facts.measured, 1e-3)


def _generator(summaries: Sequence[Summary], received: int) -> Generator:
    seconds = sum(summary.cpu for summary in summaries)
    return Generator(
        workers=len(summaries),
        cpu_seconds=round(seconds, 3),
        cpu_us_per_delivery=round(seconds / received * 1e6, 2) if received else None,
        peak_mib=round(sum(summary.peak_bytes for summary in summaries) / 2**20, 1),
    )


def spread(values: Iterable[float]) -> Spread:
    found = sorted(values)
    return Spread(
        count=len(found),
        p50=nearest_rank(found, 0.5),
        p99=nearest_rank(found, 0.99),
        max=found[-1] if found else None,
    )


def _latency(facts: RunFacts, window: str) -> Latency:
    histogram = merged(
        facts.bounds, (summary.latency[window] for summary in facts.summaries if window in summary.latency)
    )
    return latency(histogram)


def latency(histogram: Histogram) -> Latency:
    def ms(seconds: float | None) -> float | None:
        return None if seconds is None else round(seconds * 1e3, 4)

    return Latency(
        count=histogram.count,
        median=ms(histogram.quantile(0.5)),
        mean=ms(histogram.mean()),
        stdev=ms(histogram.deviation()),
        p90=ms(histogram.quantile(0.9)),
        p95=ms(histogram.quantile(0.95)),
        p99=ms(histogram.quantile(0.99)),
        max=ms(histogram.largest) if histogram.count else None,
    )


def _resumed(facts: RunFacts, mark: Mark) -> Resumed:
    parts: list[MarkSummary] = [
        part for summary in facts.summaries for part in summary.marks if part.number == mark.number
    ]
    times = [seconds for part in parts for seconds in part.resumes]
    changes: Counter[int] = Counter()
    for part in parts:
        changes.update(part.changes)
    limit = facts.scenario.resume_limit
    return Resumed(
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
        publish_gap_seconds=spread(gap for part in parts for gap in part.gaps),
    )


def _judge(result: LoadResult, verdict: Verdict, scenario: Scenario, marks: Sequence[Resumed]) -> None:
    """Fills in verdict and reasons. `missed` before `insufficient`: what was seen to fail, failed."""
    missed, lacking = result.reasons, []
    missed += verdict.wrong
    if scenario.qos == 1 and verdict.unanswered:  # with QoS 0 nobody waits for an answer
        missed.append(f"{verdict.unanswered} publications were never answered")
    for mark in marks:
        if mark.broker is None:
            continue
        if mark.resumed < mark.disconnected:
            missed.append(f"{mark.disconnected - mark.resumed} clients of {mark.broker} never resumed")
        if mark.within_limit < mark.resumed:
            late = mark.resumed - mark.within_limit
            missed.append(f"{late} clients of {mark.broker} took longer than {scenario.resume_limit:g} s to resume")
        if mark.disconnected < mark.clients:
            lacking.append(f"{mark.clients - mark.disconnected} clients of {mark.broker} never lost their link")
        if not mark.clients:
            lacking.append(f"no client was on {mark.broker}")
    if not scenario.alone:
        lacking += [f"there were no {name}" for name in ("subscribers", "publishers") if not getattr(scenario, name)]
    if scenario.publisher_count() and scenario.qos == 1 and not verdict.acknowledged:
        lacking.append("nothing was acknowledged")
    if scenario.subscribers and not verdict.received:
        lacking.append("nothing was delivered")
    if result.generator_late:
        lacking.append(
            f"the load generator itself was late: {result.late_sends} of {result.published} publications left more "
            f"than {LATE * 1e3:.0f} ms behind their time"
        )
    result.verdict = "missed" if missed else "insufficient" if lacking else "met"
    missed += lacking
