"""Compares two reports: finds what became better or worse, and whether the difference is more than noise.

A comparison is data, so that it can be stored and judged; `render/` prints it. Counts are compared by share, because
two runs are seldom of the same size. The docstrings of the types are descriptions in the JSON Schema.
"""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import msgspec

from migratory_spark.document import SCHEMA as REPORT_SCHEMA
from migratory_spark.document import DistributionSummary, ObjectiveResult, SlaReport, Verdict

SCHEMA = "migratory.dev/sla-comparison/v1alpha2"

Change = Literal["better", "worse", "same", "unknown"]
DISTRIBUTION_COLUMNS = ("median", "mean", "stdev", "p90", "p95", "p99", "max")
NOISE = 0.05
"""Relative difference of a latency up to which it is the same: quantiles of histograms are exact within 5%."""
ENOUGH = 100
"""Observations from which on quantiles are compared."""


class NotAReport(Exception):
    """Raised when a file cannot be read, or is not a report of the version that can be compared. The message names the
    file and what is wrong."""


class ComparedFigure(msgspec.Struct, frozen=True, kw_only=True):
    """A figure of both reports, null where a report does not have it. `ratio` is second / first, null if either is
    missing or the first is zero. `change` says whether the second is better or worse; it is "same" also for a
    difference that is no more than noise and for reconnects, and "unknown" if there is too little data."""

    section: str
    name: str
    unit: str
    first: float | None
    second: float | None
    ratio: float | None
    change: Change


class ObjectiveChange(msgspec.Struct, frozen=True, kw_only=True):
    """An objective that is in one or both reports, by name. Its verdict and figures are null where a report has no
    objective of that name; figures are also null where they are unknown. `comparable` is false if only one report has
    it, or if type, target, threshold, counting or slices differ, because the verdicts are then on different objectives.
    `change` is "unknown" if it is not comparable, or a verdict is insufficient."""

    name: str
    first: Verdict | None
    second: Verdict | None
    first_compliance: float | None
    second_compliance: float | None
    first_budget_left: float | None
    second_budget_left: float | None
    comparable: bool
    change: Change


class ComparedReport(msgspec.Struct, frozen=True, kw_only=True):
    """One of the two reports: the name that the caller gives it (such as its file), its cluster, window and verdict."""

    name: str
    cluster: str
    start: str
    end: str
    verdict: Verdict


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
    """A comparison of two reports. `verdict` is "worse" if an objective that was met is missed, or a larger share of
    deliveries is lost, duplicated or out of order. Otherwise it is "unknown" if an objective that can be compared has
    insufficient data in either report, or if nothing could be compared. Otherwise it is "better" if an objective or
    such a share became better, else "same". Latencies do not count for it. `figures` has shares of deliveries and
    publications, and latencies."""

    schema: str = SCHEMA
    first: ComparedReport
    second: ComparedReport
    objectives: list[ObjectiveChange]
    figures: list[ComparedFigure]
    notes: list[str]
    verdict: Change


def load_report(path: Path) -> SlaReport:
    """Return the report in a JSON file.

    :raises NotAReport: the file cannot be read, is not JSON, or is not a report of this version.
    """
    try:
        content = path.read_bytes()
    except OSError as error:
        raise NotAReport(f"{path}: {error.strerror or error}") from None
    try:
        document = msgspec.json.decode(content)
        if not isinstance(document, dict) or document.get("schema") != REPORT_SCHEMA:
            schema = document.get("schema") if isinstance(document, dict) else None
            raise NotAReport(f"{path}: its schema is {schema!r}, and {REPORT_SCHEMA!r} is what can be compared")
        return msgspec.convert(document, SlaReport)
    except msgspec.ValidationError as error:
        raise NotAReport(f"{path}: is not an SLA report: {error}") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise NotAReport(f"{path}: is not JSON: {error}") from None


def compare(first: SlaReport, second: SlaReport, names: tuple[str, str] = ("first", "second")) -> Comparison:
    """Return the comparison of two reports, in which `change` and `verdict` say what the second is beside the first.

    :param names: the names of the two reports in the comparison, such as those of their files.
    """
    objectives = _objectives(first, second)
    figures = [*_deliveries(first, second), *_distributions(first, second)]
    judged = [figure.change for figure in objectives if figure.comparable]
    return Comparison(
        first=_side(first, names[0]),
        second=_side(second, names[1]),
        objectives=objectives,
        figures=figures,
        notes=_notes(first, second),
        verdict=_overall_change(judged, [figure.change for figure in figures if figure.section == "delivery"]),
    )


def _overall_change(objectives: list[Change], deliveries: list[Change]) -> Change:
    """Return the change of the whole report: worse if an objective or a figure of deliveries is worse; else unknown if
    an objective is, or if nothing could be compared; else better if one of them is better, else same. Deliveries of
    unknown change are ignored.

    :param objectives: the changes of the objectives that can be compared.
    """
    changes = {*objectives, *deliveries}
    if "worse" in changes:
        return "worse"
    if "unknown" in objectives or not changes - {"unknown"}:
        return "unknown"
    return "better" if "better" in changes else "same"


_WRONG = ("lost", "duplicates", "reordered")


def _side(report: SlaReport, name: str) -> ComparedReport:
    return ComparedReport(
        name=name, cluster=report.cluster, start=report.window.start, end=report.window.end, verdict=report.verdict
    )


def _objectives(first: SlaReport, second: SlaReport) -> list[ObjectiveChange]:
    firsts, seconds = ({result.name: result for result in report.objectives} for report in (first, second))
    return [_objective(name, firsts.get(name), seconds.get(name)) for name in dict.fromkeys([*firsts, *seconds])]


def _objective(name: str, first: ObjectiveResult | None, second: ObjectiveResult | None) -> ObjectiveChange:
    """Return the change of the objective `name` from one result to the other; a result is None if its report has no
    objective of that name."""
    comparable = first is not None and second is not None and _promise(first) == _promise(second)
    verdicts = (first.verdict if first else None, second.verdict if second else None)
    return ObjectiveChange(
        name=name,
        first=verdicts[0],
        second=verdicts[1],
        first_compliance=first.compliance if first else None,
        second_compliance=second.compliance if second else None,
        first_budget_left=first.budget_left if first else None,
        second_budget_left=second.budget_left if second else None,
        comparable=comparable,
        change=_verdicts(*verdicts) if comparable else "unknown",
    )


def _promise(result: ObjectiveResult) -> tuple[object, ...]:
    """Return what an objective asks for, which must be equal in two results that are compared."""
    return result.type, result.target, result.threshold_ms, result.counts, result.slices


def _verdicts(first: Verdict | None, second: Verdict | None) -> Change:
    """Return the change between two verdicts: unknown if one is insufficient or missing."""
    if "insufficient" in (first, second) or None in (first, second):
        return "unknown"
    if first == second:
        return "same"
    return "better" if second == "met" else "worse"


def _deliveries(first: SlaReport, second: SlaReport) -> list[ComparedFigure]:
    """Return lost, duplicated and reordered deliveries and reconnects, each per million expected deliveries, and the
    acknowledged share of publications. Reconnects are no fault, so they are never better or worse. Any difference of
    the others is more than noise."""
    figures = []
    for name in (*_WRONG, "reconnects"):
        counts = [(getattr(report.delivery, name), report.delivery.expected) for report in (first, second)]
        before, after = (_per_million(count, expected) for count, expected in counts)
        change = _shares(*counts)
        if name not in _WRONG and change != "unknown":
            change = "same"
        figures.append(_figure("delivery", name, "per million", before, after, change))
    before, after = first.availability.share, second.availability.share
    if before is None or after is None:
        change = "unknown"
    else:
        change = "same" if before == after else _more_is_better(before, after)
    return [*figures, _figure("availability", "acknowledged", "share", before, after, change)]


def _shares(first: tuple[int | None, int | None], second: tuple[int | None, int | None]) -> Change:
    """Return the change between two pairs of count and total; a smaller share is better. The comparison is exact: one
    of a billion is more than none.

    The change is unknown if a count is missing, or if a total is missing or 0 and both counts are above 0. If a total
    is missing or 0 and a count is 0, the counts are compared.
    """
    (count, of), (count_after, of_after) = first, second
    if count is None or count_after is None:
        return "unknown"
    if not of or not of_after:
        # Zero is zero of any total, and one or more is not zero.
        if count and count_after:
            return "unknown"
        of = of_after = 1
    before, after = count * of_after, count_after * of
    return "same" if before == after else "worse" if after > before else "better"


def _distributions(first: SlaReport, second: SlaReport) -> list[ComparedFigure]:
    """Return the figures of each distribution of times: of the latency of all brokers and of each broker in both
    reports, of replays, of publishing, of resumes and of publish gaps."""
    figures = []
    for section, unit, before, after in (
        ("latency", "ms", first.latency_ms.all, second.latency_ms.all),
        *(
            (f"latency {broker}", "ms", summary, second.latency_ms.by_broker[broker])
            for broker, summary in first.latency_ms.by_broker.items()
            if broker in second.latency_ms.by_broker
        ),
        ("replay", "ms", first.replay_latency_ms, second.replay_latency_ms),
        ("publish", "ms", first.publish_ms, second.publish_ms),
        ("resume", "s", first.resume_seconds, second.resume_seconds),
        ("publish gap", "s", first.publish_gap_seconds, second.publish_gap_seconds),
    ):
        figures += [_quantile(section, unit, name, before, after) for name in DISTRIBUTION_COLUMNS]
    return figures


def _quantile(
    section: str, unit: str, name: str, first: DistributionSummary, second: DistributionSummary
) -> ComparedFigure:
    """Return the figure `name` of a distribution in both reports; a lower one is better. The change is unknown if a
    figure is missing or a report has fewer than ENOUGH observations, and same for a difference of at most NOISE."""
    before, after = getattr(first, name), getattr(second, name)
    change: Change = "unknown"
    if before is not None and after is not None and min(first.count, second.count) >= ENOUGH:
        change = "same" if abs(after - before) <= NOISE * before else _more_is_better(after, before)
    return _figure(section, name, unit, before, after, change)


def _more_is_better(first: float, second: float) -> Change:
    return "better" if second > first else "worse"


def _figure(
    section: str, name: str, unit: str, first: float | None, second: float | None, change: Change
) -> ComparedFigure:
    """Return a figure with the ratio of second to first."""
    ratio = round(second / first, 4) if first and second is not None else None
    return ComparedFigure(section=section, name=name, unit=unit, first=first, second=second, ratio=ratio, change=change)


def _per_million(count: int | None, expected: int | None) -> float | None:
    """Return the count per million expected ones, or None if the count is unknown or nothing was expected."""
    return None if count is None or not expected else round(count / expected * 1e6, 6)


def _notes(first: SlaReport, second: SlaReport) -> list[str]:
    """Return sentences on what limits the comparison: different clusters, numbers of deliveries or incidents, and
    objectives with insufficient data."""
    notes = []
    if first.cluster != second.cluster:
        notes.append(
            f"The reports are of different clusters: {first.cluster or 'none'} and {second.cluster or 'none'}."
        )
    firsts, seconds = first.latency_ms.all.count, second.latency_ms.all.count
    if min(firsts, seconds) and max(firsts, seconds) > 2 * min(firsts, seconds):
        notes.append(f"One report has more than twice the deliveries of the other: {firsts:,} and {seconds:,}.")
    if len(first.incidents) != len(second.incidents):
        notes.append(f"The reports have {len(first.incidents)} and {len(second.incidents)} incidents.")
    for word, report in (("first", first), ("second", second)):
        if nothing := [result.name for result in report.objectives if result.verdict == "insufficient"]:
            notes.append(f"The {word} has insufficient data for {', '.join(nothing)}.")
    return notes
