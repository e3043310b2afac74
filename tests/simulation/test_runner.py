"""Runs of many seeds: several processes give the same outcome as one, and a last line and a file report the sums."""

from __future__ import annotations

import json
import re
import subprocess
from pathlib import Path

import pytest
from migratory_simulation import planted
from migratory_simulation.coverage import REQUIRED, Coverage
from migratory_simulation.runner import Run, outcomes_of
from migratory_simulation.summary import Outcome, Summary


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    return planted.run_command("run", *arguments, timeout=300)


def outcome(seed: int, *, events: int = 1000, faults: int = 5, violation: str = "") -> Outcome:
    return Outcome(seed, violation, 1 if violation else -1, 500, events, faults, 36.0, 2.0)


def test_several_processes_report_the_same_as_one(tmp_path: Path) -> None:
    found = []
    for jobs in ("1", "2"):
        file = tmp_path / f"{jobs}.json"
        words = ("--profile", "short", "--first", "7", "--seeds", "6", "--no-coverage", "--json", str(file))
        done = command(*words, "--jobs", jobs)
        assert done.returncode == 0, done.stdout + done.stderr
        last = done.stdout.splitlines()[-1]
        assert re.fullmatch(r"6 seeds, [\d.]+ simulated hours, \d+ events per second, violations: 0", last)
        result = json.loads(file.read_text())
        assert result["finished"] is True
        found.append({name: result[name] for name in ("seeds", "events", "steps", "exercised", "median_faults")})
    assert found[0] == found[1]


def test_outcomes_are_in_the_order_of_seeds() -> None:
    run = Run(first=11, seeds=5, profile="short", jobs=2)
    seeds = [outcome.seed for outcomes, _ in outcomes_of(run) for outcome in outcomes]
    assert seeds == [11, 12, 13, 14, 15]


def test_run_fails_when_a_required_counter_is_zero() -> None:
    done = command("--profile", "short", "--seeds", "1", "--jobs", "1")
    assert done.returncode == 3
    assert "never exercised: " in done.stderr
    assert done.stdout.splitlines()[-1].endswith("violations: 0")


def test_violation_fails_the_run_in_every_process() -> None:
    name = "coordinator delivers before a confirmation"
    done = command("--planted", name, "--profile", "short", "--seeds", "8", "--jobs", "2", "--quiet")
    assert done.returncode == 1
    assert re.search(r"^seed \d+: invariant \d: ", done.stdout, re.MULTILINE)
    kept_going = command("--planted", name, "--profile", "short", "--seeds", "8", "--jobs", "2", "--keep-going")
    assert kept_going.returncode == 1
    assert len(re.findall(r"^seed \d+: ", kept_going.stdout, re.MULTILINE)) > 1
    assert re.findall(r"^seed \d+: ", kept_going.stderr, re.MULTILINE)
    assert kept_going.stdout.splitlines()[-1].startswith("8 seeds")


@pytest.mark.parametrize(
    ("events", "faults", "thin"),
    [([300, 300, 9000], [3, 3, 3], False), ([299, 299, 9000], [9, 9, 9], True), ([300, 300, 300], [2, 2, 9], True)],
)
def test_sparse_mixture_of_seeds_is_reported(events: list[int], faults: list[int], thin: bool) -> None:
    summary = Summary()
    outcomes = [outcome(seed, events=events[seed], faults=faults[seed]) for seed in range(3)]
    summary.add(outcomes, Coverage())
    assert bool(summary.thin()) == thin


def test_summary_adds_outcomes_up(tmp_path: Path) -> None:
    summary = Summary()
    summary.add([outcome(1, events=100), outcome(2, events=300)], Coverage({"takeovers": 2}))
    summary.add([outcome(3, events=500, violation="invariant 1: gone\nmore")], Coverage({"takeovers": 1}))
    summary.spent = 9.0
    assert summary.line() == "3 seeds, 0.0 simulated hours, 100 events per second, violations: 1"
    summary.write(tmp_path / "all.json", profile="short")
    result = json.loads((tmp_path / "all.json").read_text())
    assert (result["seeds"], result["events"], result["median_events"], result["steps"]) == (3, 900, 300, 1500)
    assert result["violations"] == [{"seed": 3, "invariant": 1, "text": "invariant 1: gone\nmore"}]
    assert result["exercised"] == {"takeovers": 3}
    assert set(result["never_exercised"]) == set(REQUIRED) - {"takeovers"}
    assert [path.name for path in tmp_path.iterdir()] == ["all.json"]
