"""The comparison of two reports, its verdicts and table, and reading reports from files."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest
from migratory_spark.document import JudgedSlices, SlaReport, Verdict
from migratory_spark.render.comparison_tables import render
from migratory_spark.report.comparison import ComparedFigure, Comparison, NotAReport, compare, load_report
from migratory_testing.reports import empty_report, sample_report
from rich.console import Console


def figure(comparison: Comparison, section: str, name: str) -> ComparedFigure:
    return next(each for each in comparison.figures if (each.section, each.name) == (section, name))


def test_a_report_is_the_same_as_itself() -> None:
    comparison = compare(sample_report(), sample_report())
    assert comparison.verdict == "same"
    assert {each.change for each in comparison.objectives} == {"same"}
    # There are too few publications, replays and publish gaps, and the spread of resume times is not recorded.
    few = {"publish", "replay", "resume", "publish gap"}
    assert {each.change for each in comparison.figures if each.section not in few} == {"same"}
    assert {each.change for each in comparison.figures} == {"same", "unknown"}
    assert figure(comparison, "publish gap", "p99").change == "unknown"


def test_losses_and_a_missed_objective_are_worse_and_the_other_way_round_better() -> None:
    good, bad = sample_report(), sample_report(slower=3.0, lost=7)
    worse, better = compare(good, bad), compare(bad, good)
    assert (worse.verdict, better.verdict) == ("worse", "better")
    assert {each.name: each.change for each in worse.objectives} == {
        "fast": "worse",
        "complete": "worse",
        "back": "same",
    }
    assert {each.name: each.change for each in better.objectives}["complete"] == "better"
    lost_figure = figure(worse, "delivery", "lost")
    assert lost_figure.first == 0
    assert lost_figure.second == pytest.approx(7 / 4400 * 1e6, abs=0.001)
    assert lost_figure.change == "worse"
    slower = figure(worse, "latency", "p99")
    assert slower.change == "worse"
    assert (slower.first, slower.second) == (good.latency_ms.all.p99, bad.latency_ms.all.p99)
    assert figure(better, "latency", "p99").change == "better"


def slowed(factor: float) -> SlaReport:
    """Return the sample report with the summary over all deliveries multiplied by the factor; other latencies stay."""
    report = sample_report()
    latency = report.latency_ms
    values = {name: getattr(latency.all, name) * factor for name in ("median", "mean", "p90", "p95", "p99", "max")}
    slow = msgspec.structs.replace(latency, all=msgspec.structs.replace(latency.all, **values))
    return msgspec.structs.replace(report, latency_ms=slow)


def test_slower_deliveries_alone_do_not_change_the_verdict() -> None:
    comparison = compare(sample_report(), slowed(1.5))
    assert figure(comparison, "latency", "p99").change == "worse"
    assert figure(comparison, "latency", "p99").ratio == pytest.approx(1.5, abs=0.001)
    assert comparison.verdict == "same"


def test_small_differences_are_noise() -> None:
    assert figure(compare(sample_report(), slowed(1.04)), "latency", "median").change == "same"
    assert figure(compare(sample_report(), slowed(1.06)), "latency", "median").change == "worse"


def test_unmeasured_figures_are_unknown() -> None:
    comparison = compare(empty_report(), sample_report())
    assert comparison.verdict == "unknown"
    assert {each.change for each in comparison.figures} == {"unknown"}
    assert {each.name: each.change for each in comparison.objectives} == {
        "fast": "unknown", "complete": "unknown", "back": "unknown",
    }  # fmt: skip
    assert any("different clusters" in note for note in comparison.notes)


def deliveries(report: SlaReport, **counts: int | None) -> SlaReport:
    return msgspec.structs.replace(report, delivery=msgspec.structs.replace(report.delivery, **counts))


@pytest.mark.parametrize(("first", "second"), [("met", "insufficient"), ("insufficient", "met"), ("insufficient",) * 2])
def test_comparison_with_insufficient_data_is_unknown(first: Verdict, second: Verdict) -> None:
    """When an objective has insufficient data in one or both reports, their comparison is "unknown" and notes why:
    neither "the same or better", which is exit code 0, nor "worse". With a lost delivery it is "worse" nevertheless."""

    def judged(verdict: Verdict) -> SlaReport:
        report = sample_report()
        return msgspec.structs.replace(
            report, objectives=[msgspec.structs.replace(report.objectives[0], verdict=verdict), *report.objectives[1:]]
        )

    comparison = compare(judged(first), judged(second))
    assert comparison.verdict == "unknown"
    assert any("insufficient data for fast" in note for note in comparison.notes)
    # A loss is worse all the same.
    assert compare(judged(first), deliveries(judged(second), lost=1)).verdict == "worse"


def test_one_loss_in_billions_is_worse_than_none() -> None:
    many = {"expected": 40_000_000_000}
    first, second = deliveries(sample_report(), **many, lost=0), deliveries(sample_report(), **many, lost=1)
    assert (compare(first, second).verdict, compare(second, first).verdict) == ("worse", "better")
    assert figure(compare(first, second), "delivery", "lost").second == pytest.approx(2.5e-5)


@pytest.mark.parametrize(
    ("before", "after", "change"),
    [(0, 1, "worse"), (3, 0, "better"), (0, 0, "same"), (2, 3, "unknown"), (None, 3, "unknown")],
)
def test_losses_without_an_expected_count_are_compared_with_none_only(
    before: int | None, after: int | None, change: str
) -> None:
    """Without the number of expected deliveries, losses are only compared with no losses: from none to some is
    worse, from some to none better, and from some to some unknown."""
    first = deliveries(sample_report(), expected=None, lost=before)
    assert figure(compare(first, deliveries(first, lost=after)), "delivery", "lost").change == change


def test_different_objectives_with_one_name_are_not_compared() -> None:
    first = sample_report()
    strict = msgspec.structs.replace(first.objectives[0], threshold_ms=10.0, verdict="missed")
    second = msgspec.structs.replace(first, objectives=[strict, *first.objectives[1:]])
    change = compare(first, second).objectives[0]
    assert not change.comparable
    assert change.change == "unknown"


def test_objectives_with_other_slices_are_not_compared() -> None:
    report = sample_report()
    counted = msgspec.structs.replace(report.objectives[0], counts="slices")
    first, same, second = (
        msgspec.structs.replace(report, objectives=[msgspec.structs.replace(counted, slices=slices)])
        for slices in (
            JudgedSlices(length_seconds=10.0, percentile="99", share=None),
            JudgedSlices(length_seconds=10.0, percentile="99", share=None),
            JudgedSlices(length_seconds=60.0, percentile="99", share=None),
        )
    )
    assert [compare(first, other).objectives[0].comparable for other in (same, second)] == [True, False]
    assert compare(first, second).objectives[0].change == "unknown"


def test_table_shows_names_verdict_and_figures() -> None:
    console = Console(width=10_000)
    with console.capture() as captured:
        console.print(render(compare(sample_report(), sample_report(lost=7), ("old.json", "new.json"))))
    shown = captured.get()
    for text in ("old.json", "new.json", "the second is worse", "1,590.91", "latency b1", "99.8409%"):
        assert text in shown


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"nonsense", "is not JSON"),
        (b"[1]", "schema"),
        (b'{"schema": "migratory.dev/sla-report/v1alpha1"}', "v1alpha1"),
        (b'{"schema": "migratory.dev/sla-report/v1alpha2"}', "cluster"),
        (b"\xff\xfe", "is not JSON"),
    ],
)
def test_a_file_that_is_not_a_report_is_named_with_the_reason(tmp_path: Path, content: bytes, reason: str) -> None:
    path = tmp_path / "odd.json"
    path.write_bytes(content)
    with pytest.raises(NotAReport, match="odd.json.*" + reason):
        load_report(path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(NotAReport, match=r"none.json.*No such file"):
        load_report(tmp_path / "none.json")


def test_a_report_that_was_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_bytes(msgspec.json.encode(sample_report()))
    assert load_report(path) == sample_report()
