"""Two reports beside each other: what became better, what worse, and whether that is more than noise.

A comparison is data (`compare`), so that it can be kept and judged; `compare_table.py` prints it. Counts compare by
share, since two runs are seldom of one size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from migratory_spark.document import SCHEMA as REPORT_SCHEMA
from migratory_spark.document import Report, Result, Summary, Verdict

SCHEMA = "migratory.dev/sla-comparison/v1alpha2"

Change = Literal["better", "worse", "same", "unknown"]
DISTRIBUTION_COLUMNS = ("median", "mean", "stdev", "p90", "p95", "p99", "max")
NOISE = 0.05
"""A rise or fall of a latency by less than this share says nothing: quantiles of histograms are within 5%."""
ENOUGH = 100
"""Fewer observations than this give no quantile that could be compared."""


class NotAReport(Exception):
    """A file that is no report; the text names the file and what is wrong."""


class Figure(msgspec.Struct, frozen=True, kw_only=True):
    """`ratio` is second / first, null where either is missing or the first is zero."""

    section: str
    name: str
    unit: str
    first: float | None
    second: float | None
    ratio: float | None
    change: Change


class ObjectiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """An objective of either report; null where a report has none of that name. `comparable` is false where target or
    threshold differ: then the verdicts are about different promises."""

    name: str
    first: Verdict | None
    second: Verdict | None
    first_compliance: float | None
    second_compliance: float | None
    first_budget_left: float | None
    second_budget_left: float | None
    comparable: bool
    change: Change


class Side(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    cluster: str
    start: str
    end: str
    verdict: Verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """`verdict` is "worse" when an objective that was met is not any more, or deliveries are lost, doubled or out of
    order that were not; "better" the other way round; "unknown" where nothing is worse and an objective of both has
    insufficient data, or nothing at all could be compared; else "same". Latencies are for people to weigh."""

    schema: str = SCHEMA
    first: Side
    second: Side
    objectives: list[ObjectiveChange]
    figures: list[Figure]
    notes: list[str]
    verdict: Change


def load_report(path: Path) -> Report:
    """:raises NotAReport: for what can't be read, is no JSON, or is no report of this version."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotAReport(f"{path}: {error.strerror or error}") from None
    try:
        told = msgspec.json.decode(content)
        if not isinstance(told, dict) or told.get("schema") != REPORT_SCHEMA:
            found = told.get("schema") if isinstance(told, dict) else None
            raise NotAReport(f"{path}: its schema is {found!r}, and {REPORT_SCHEMA!r} is what can be compared")
        return msgspec.convert(told, Report)
    except msgspec.ValidationError as error:
        raise NotAReport(f"{path}: is no SLA report: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAReport(f"{path}: is not JSON: {error}") from None


def compare(first: Report, second: Report, names: tuple[str, str] = ("first", "second")) -> Comparison:
    objectives = _objectives(first, second)
    figures = [*_deliveries(first, second), *_distributions(first, second)]
    judged = [each.change for each in objectives if each.comparable]
    return Comparison(
        first=_side(first, names[0]),
        second=_side(second, names[1]),
        objectives=objectives,
        figures=figures,
        notes=_notes(first, second),
        verdict=_worst(judged, [each.change for each in figures if each.section == "delivery"]),
    )


def _worst(objectives: list[Change], deliveries: list[Change]) -> Change:
    """What nobody counted in deliveries says nothing; an objective without data says that nobody knows."""
    told = {*objectives, *deliveries}
    if "worse" in told:
        return "worse"
    if "unknown" in objectives or not told - {"unknown"}:
        return "unknown"
    return "better" if "better" in told else "same"


_WRONG = ("lost", "duplicates", "reordered")


def _side(report: Report, name: str) -> Side:
    return Side(
        name=name, cluster=report.cluster, start=report.window.start, end=report.window.end, verdict=report.verdict
    )


def _objectives(first: Report, second: Report) -> list[ObjectiveChange]:
    ones, others = ({result.name: result for result in report.objectives} for report in (first, second))
    return [_objective(name, ones.get(name), others.get(name)) for name in dict.fromkeys([*ones, *others])]


def _objective(name: str, one: Result | None, other: Result | None) -> ObjectiveChange:
    comparable = one is not None and other is not None and _promise(one) == _promise(other)
    verdicts = (one.verdict if one else None, other.verdict if other else None)
    return ObjectiveChange(
        name=name,
        first=verdicts[0],
        second=verdicts[1],
        first_compliance=one.compliance if one else None,
        second_compliance=other.compliance if other else None,
        first_budget_left=one.budget_left if one else None,
        second_budget_left=other.budget_left if other else None,
        comparable=comparable,
        change=_verdicts(*verdicts) if comparable else "unknown",
    )


def _promise(result: Result) -> tuple[object, ...]:
    return result.type, result.target, result.threshold_ms, result.counts


def _verdicts(one: Verdict | None, other: Verdict | None) -> Change:
    """An insufficient one is neither better nor worse than what it is beside, nor the same."""
    if "insufficient" in (one, other) or None in (one, other):
        return "unknown"
    if one == other:
        return "same"
    return "better" if other == "met" else "worse"


def _deliveries(first: Report, second: Report) -> list[Figure]:
    """Wrong deliveries of a million expected ones; what is not a fault (reconnects) has no better or worse."""
    figures = []
    for name in (*_WRONG, "reconnects"):
        counts = [(getattr(report.delivery, name), report.delivery.expected) for report in (first, second)]
        one, other = (_per_million(count, expected) for count, expected in counts)
        change = _shares(*counts)
        if name not in _WRONG and change != "unknown":
            change = "same"
        figures.append(_figure("delivery", name, "per million", one, other, change))
    one, other = first.availability.share, second.availability.share
    change = "unknown" if one is None or other is None else "same" if one == other else _more_is_better(one, other)
    return [*figures, _figure("availability", "acknowledged", "share", one, other, change)]


def _shares(one: tuple[int | None, int | None], other: tuple[int | None, int | None]) -> Change:
    """Of (how many, of how many), exactly: one of a billion is more than none."""
    (count, of), (count_after, of_after) = one, other
    if count is None or count_after is None:
        return "unknown"
    if not of or not of_after:
        # None is none of however many, and some are some.
        if count and count_after:
            return "unknown"
        of = of_after = 1
    before, after = count * of_after, count_after * of
    return "same" if before == after else "worse" if after > before else "better"


def _distributions(first: Report, second: Report) -> list[Figure]:
    figures = []
    for section, unit, one, other in (
        ("latency", "ms", first.latency_ms.all, second.latency_ms.all),
        *(
            (f"latency {broker}", "ms", found, second.latency_ms.by_broker[broker])
            for broker, found in first.latency_ms.by_broker.items()
            if broker in second.latency_ms.by_broker
        ),
        ("replay", "ms", first.replay_latency_ms, second.replay_latency_ms),
        ("publish", "ms", first.publish_ms, second.publish_ms),
        ("resume", "s", first.resume_seconds, second.resume_seconds),
        ("publish gap", "s", first.publish_gap_seconds, second.publish_gap_seconds),
    ):
        figures += [_quantile(section, unit, name, one, other) for name in DISTRIBUTION_COLUMNS]
    return figures


def _quantile(section: str, unit: str, name: str, one: Summary, other: Summary) -> Figure:
    before, after = getattr(one, name), getattr(other, name)
    change: Change = "unknown"
    if before is not None and after is not None and min(one.count, other.count) >= ENOUGH:
        change = "same" if abs(after - before) <= NOISE * before else _more_is_better(after, before)
    return _figure(section, name, unit, before, after, change)


def _more_is_better(one: float, other: float) -> Change:
    return "better" if other > one else "worse"


def _figure(section: str, name: str, unit: str, one: float | None, other: float | None, change: Change) -> Figure:
    ratio = round(other / one, 4) if one and other is not None else None
    return Figure(section=section, name=name, unit=unit, first=one, second=other, ratio=ratio, change=change)


def _per_million(count: int | None, expected: int | None) -> float | None:
    return None if count is None or not expected else round(count / expected * 1e6, 6)


def _notes(first: Report, second: Report) -> list[str]:
    notes = []
    if first.cluster != second.cluster:
        notes.append(f"They are of different clusters: {first.cluster or 'none'} and {second.cluster or 'none'}.")
    ones, others = first.latency_ms.all.count, second.latency_ms.all.count
    if min(ones, others) and max(ones, others) > 2 * min(ones, others):
        notes.append(f"One has more than twice the deliveries of the other: {ones:,} and {others:,}.")
    if len(first.incidents) != len(second.incidents):
        notes.append(f"They have {len(first.incidents)} and {len(second.incidents)} incidents.")
    for word, report in (("first", first), ("second", second)):
        if nothing := [result.name for result in report.objectives if result.verdict == "insufficient"]:
            notes.append(f"The {word} has insufficient data for {', '.join(nothing)}.")
    return notes
