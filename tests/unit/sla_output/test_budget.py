"""Rolling error budgets from kept reports: which reports are added up, verdicts, and the command."""

from __future__ import annotations

import itertools
import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner
from migratory_spark.document import ObjectiveWindow, SlaReport
from migratory_spark.jobs.sla_budget import main
from migratory_spark.report.budget import KeptResult, RollingBudget, choose, load_results, rolling_budgets
from migratory_spark.report.history import append
from migratory_spark.times import iso
from migratory_testing.reports import sample_report

HOUR, DAY = 3_600_000, 86_400_000
END = 1_767_225_600_000 + 60 * DAY


def kept(start: int, end: int, good: int = 1000, total: int = 1000, **values: Any) -> KeptResult:
    """Return the result of a report of the objective `fast` with a target of 99%. Times are ms before END."""
    definition = ("latency", "99", 250.0, None)
    result = KeptResult("quotes", "fast", definition, END - start, END - end, good, total, 0, 0, 1.0, False)
    return replace(result, **values)


def budget(*results: KeptResult, days: int = 28) -> RollingBudget:
    (only,) = rolling_budgets(results, END, days * DAY).budgets
    return only


def hourly(days: int, bad: int = 0) -> list[KeptResult]:
    return [kept(start, start - HOUR, 1000 - bad) for start in range(HOUR, days * DAY + 1, HOUR)]


def test_each_hour_of_the_window_counts_once() -> None:
    result = budget(*hourly(40, bad=5))
    assert (result.good, result.total, result.reports) == (28 * 24 * 995, 28 * 24 * 1000, 28 * 24)
    assert (result.budget_left, result.coverage, result.verdict) == (0.5, 1.0, "met")
    assert (result.overlapping, result.different, result.provisional) == (0, 0, 0)


def test_the_budget_recovers_when_an_outage_leaves_the_window() -> None:
    # One bad hour, 20 days ago, spends 1000 of the 6720 bad events of 28 days.
    results = [kept(start, start - HOUR, 0 if start == 20 * DAY else 1000) for start in range(HOUR, 60 * DAY + 1, HOUR)]
    result = budget(*results)
    assert result.budget_left == pytest.approx(1 - 1000 / 6720)
    course = [point.budget_left for point in result.over_time]
    assert course[:7] == [1.0] * 7  # The outage is reported an hour after the seventh point.
    assert course[8:] == [pytest.approx(1 - 1000 / 6720, abs=1e-6)] * 20
    later = rolling_budgets(results, END + 9 * DAY, 28 * DAY).budgets[0]
    assert later.good == later.total
    # Nine days without a report are missing.
    assert (later.coverage, later.verdict) == (round(19 / 28, 4), "insufficient")


def test_overlapping_reports_are_not_added_twice() -> None:
    # Every half hour a report of an hour, and one of a day by hand.
    results = [kept(start, start - HOUR) for start in range(HOUR, 28 * DAY + 1, HOUR // 2)]
    result = budget(*results, kept(3 * DAY, 2 * DAY, 24_000, 24_000))
    assert (result.total, result.coverage) == (28 * 24 * 1000, 1.0)
    assert result.reports + result.overlapping == len(results) + 1


def test_the_choice_is_the_longest_without_overlap() -> None:
    source = random.Random(20)
    for _ in range(200):
        results = []
        for _ in range(source.randint(0, 7)):
            start = source.randrange(1, 30)
            results.append(kept(start, source.randrange(start)))
        chosen = choose(results)
        assert all(first.end <= second.start for first, second in itertools.pairwise(chosen))
        longest = max(
            sum(result.end - result.start for result in subset)
            for size in range(len(results) + 1)
            for subset in itertools.combinations(sorted(results, key=lambda result: result.start), size)
            if all(first.end <= second.start for first, second in itertools.pairwise(subset))
        )
        assert sum(result.end - result.start for result in chosen) == longest


def test_reports_of_another_objective_of_that_name_are_left_out() -> None:
    other = ("latency", "99", 500.0, None)
    results = hourly(28, bad=5)
    result = budget(
        *results[:600], *(kept(END - each.start, END - each.end, definition=other) for each in results[600:])
    )
    assert (result.total, result.different, result.verdict) == (600_000, 72, "insufficient")
    assert result.reason == "reports cover 89.3% of the window, less than 95%"


@pytest.mark.parametrize(
    ("results", "verdict", "reason"),
    [
        ([kept(DAY, 0, 990)], "met", ""),
        ([kept(DAY, 0, 989)], "missed", ""),
        ([kept(DAY, 0, 989, possibly_good=1)], "insufficient", "1 more of them may have been good"),
        ([kept(DAY, 0, 989, possibly_good=0, possibly_bad=5)], "missed", ""),
        ([kept(DAY, 0, 995, possibly_bad=6)], "insufficient", "6 of them may have been bad"),
        ([kept(DAY, 0, 995, possibly_bad=5)], "met", ""),
        ([kept(DAY, 0, 99, 99)], "insufficient", "99 events are too few to show 99%"),
        ([kept(DAY, 0, 0, 0)], "insufficient", "the reports counted no event"),
        ([kept(DAY, 0, 0, covered=0.94)], "insufficient", "reports cover 94.0% of the window, less than 95%"),
        ([kept(DAY, 0, 999, definition=("delivery", "100", None, None), covered=0.1)], "missed", ""),
        ([kept(DAY, 0, definition=("delivery", "100", None, None))], "met", ""),
    ],
)  # fmt: skip
def test_verdicts_follow_the_rules_of_reports(results: list[KeptResult], verdict: str, reason: str) -> None:
    result = budget(*results, days=1)
    assert (result.verdict, result.reason) == (verdict, reason)


def test_events_of_few_reports_add_up_to_enough() -> None:
    # Each alone is too few to show 99%.
    quarters = [kept(start, start - DAY // 4, 60, 60) for start in range(DAY // 4, DAY + 1, DAY // 4)]
    assert budget(*quarters, days=1).verdict == "met"


def moved(report: SlaReport, start_ms: int, end_ms: int) -> SlaReport:
    """Return a report with its window, and those of its objectives, moved."""
    changed = msgspec.structs.replace
    window = ObjectiveWindow(kind="report", start=iso(start_ms), end=iso(end_ms), zone="UTC", coverage=1.0)
    return changed(
        report,
        window=changed(report.window, start=iso(start_ms), end=iso(end_ms)),
        objectives=[changed(result, window=window) for result in report.objectives],
    )


def invoke(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, arguments, env={"COLUMNS": "200"})
    return result.exit_code, result.output


def test_the_command_adds_up_kept_reports(tmp_path: Path) -> None:
    history, target = tmp_path / "history", tmp_path / "budget.json"
    for number in range(8):
        end = END - number * 6 * HOUR
        append(moved(sample_report(lost=9 if number == 0 else 0), end - 6 * HOUR, end), history)
    arguments = ["--history", str(history), "--end", iso(END), "--rolling", "1d", "--json", str(target)]
    code, output = invoke(*arguments)
    assert code == 1
    assert "missed" in output
    budgets = {each["objective"]: each for each in json.loads(target.read_text())["budgets"]}
    assert {name: each["verdict"] for name, each in budgets.items()} == {
        "fast": "met", "complete": "missed", "back": "met",
    }  # fmt: skip
    assert (budgets["fast"]["total"], budgets["fast"]["reports"]) == (4 * 4400, 4)
    assert [point["total"] for point in budgets["fast"]["over_time"]][-1] == 4 * 4400
    code, _ = invoke(*arguments[:4], "--rolling", "1d", "--cluster", "other")
    assert code == 2


def test_unusable_histories_are_named(tmp_path: Path) -> None:
    code, output = invoke("--history", str(tmp_path))
    assert (code, "there is no history of reports" in output) == (2, True)
    append(moved(sample_report(), END - DAY, END), tmp_path)
    code, output = invoke("--history", str(tmp_path))
    assert (code, "has no report that ends between" in output) == (2, True)
    (file,) = (tmp_path / "objectives").rglob("*.parquet")
    assert len(load_results(tmp_path, END - 1)) == 3
    assert load_results(tmp_path, END) == []
    pq.write_table(pa.table({"cluster": ["quotes"]}), file)
    code, output = invoke("--history", str(tmp_path), "--end", iso(END))
    assert (code, f"{file}: it has not all columns" in output.replace("\n", "")) == (2, True)
    file.write_bytes(b"PAR1")
    code, output = invoke("--history", str(tmp_path), "--end", iso(END))
    assert (code, "not a Parquet file of this history" in output) == (2, True)
    code, output = invoke("--history", str(tmp_path), "--rolling", "0s")
    assert (code, "is not from 1s to 3650d" in output) == (2, True)
    code, output = invoke("--history", str(tmp_path), "--rolling", "month")
    assert (code, "'month' is not" in output) == (2, True)
