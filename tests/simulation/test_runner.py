"""Runs of many seeds: several processes give the same outcome as one, and the last line reports the sums."""

from __future__ import annotations

import re

import pytest
from migratory_simulation.coverage import REQUIRED, Coverage
from migratory_simulation.planted import run_command
from migratory_simulation.runner import Batch, reports
from migratory_simulation.summary import Summary
from migratory_simulation.world import Report


def report(seed: int, *, events: int = 1000, faults: int = 5, takeovers: int = 1, violation: str = "") -> Report:
    coverage = Coverage({"fault crash": faults, "takeovers": takeovers})
    return Report(seed, violation, 1 if violation else -1, coverage, 500, events, 36.0, 2.0)


def test_several_processes_report_the_same_as_one() -> None:
    in_process, in_processes = ([*reports(Batch(range(7, 13), "short", jobs))] for jobs in (1, 2))
    assert [report.seed for report in in_process] == [7, 8, 9, 10, 11, 12]
    assert in_process == in_processes


def test_run_fails_when_a_required_counter_is_zero() -> None:
    words = ("run", "--profile", "short", "--first", "7", "--seeds", "2", "--jobs", "1")
    done = run_command(*words)
    assert done.returncode == 3
    assert "never exercised: " in done.stderr
    last = done.stdout.splitlines()[-1]
    assert re.fullmatch(
        r"2 seeds of interpreted cores, [\d.]+ simulated hours, \d+ events per second, violations: 0", last
    )
    assert run_command(*words, "--no-coverage").returncode == 0


def test_run_can_continue_after_a_violation() -> None:
    name = "coordinator delivers before a confirmation"
    done = run_command("run", "--planted", name, "--profile", "short", "--seeds", "8", "--jobs", "2", "--keep-going")
    assert done.returncode == 1
    assert len(re.findall(r"^seed \d+: invariant \d: ", done.stdout, re.MULTILINE)) > 1
    assert done.stdout.splitlines()[-1].startswith("8 seeds")


@pytest.mark.parametrize(
    ("events", "faults", "sparse"),
    [([300, 300, 9000], [3, 3, 3], 0), ([299, 299, 9000], [9, 9, 9], 1), ([300, 300, 300], [2, 2, 9], 1)],
)
def test_sparse_mixture_of_seeds_is_reported(events: list[int], faults: list[int], sparse: int) -> None:
    summary = Summary()
    summary.coverage.update(dict.fromkeys(REQUIRED, 1))
    for seed in range(3):
        summary.add(report(seed, events=events[seed], faults=faults[seed]))
    assert len(summary.shortages()) == sparse


def test_summary_adds_reports_up() -> None:
    summary = Summary()
    summary.add(report(1, events=100))
    summary.add(report(2, events=300, takeovers=2, violation="invariant 1: gone\nmore"))
    assert summary.line().startswith("2 seeds of interpreted cores, 0.0 simulated hours, ")
    assert summary.line().endswith(" violations: 1")
    (missing,) = [text for text in summary.shortages() if "never exercised" in text]
    assert "takeovers" not in missing
    assert summary.coverage["takeovers"] == 3
    assert "median 200 events (100 to 300)" in summary.report()
