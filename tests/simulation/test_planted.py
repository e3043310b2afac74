"""Planted faults as data, edits of code by its structure, and the search for trial runs. Correct code passes every
directed schedule. `make planted` tries all faults."""

from __future__ import annotations

import ast
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest
from migratory_simulation import detection, patches, planted, schedules
from migratory_simulation.detection import Trial

NAME = "coordinator delivers before a confirmation"


def test_every_planted_fault_applies() -> None:
    faults = planted.load()
    assert len(faults) >= 231
    assert len({fault.name for fault in faults}) == len(faults)
    for fault in faults:
        assert fault.breaks
        assert set(fault.breaks) <= set(range(1, 8))
        for module, source in patches.patched(fault.edits).items():
            compile(source, module, "exec")
        assert fault.hint == "" or Trial.parse(fault.hint).schedule in ("", *schedules.ALL)


@pytest.mark.parametrize(
    ("at", "old", "message"),
    [
        ("GroupRecord.as_source", "no_such_text", "occurs 0 times"),
        ("records.SourceEpoch", "self", "occurs [1-9][0-9]* times"),
        ("Source.no_such_method", "x", "0 symbols"),
        ("__init__", "x", "symbols of the product have this name, not one"),
    ],
)
def test_stale_edit_is_refused(at: str, old: str, message: str) -> None:
    edit = patches.Edit(at, old, "")
    with pytest.raises(ValueError, match=message):
        edit.applied()
    verdict = detection.attempt(planted.PlantedFault("stale", "takeover", (1,), (edit,)), 1, False)
    assert verdict.by is None
    assert at in verdict.message


SOURCE = '''
LIMIT = 5
class Gate:
    """A gate."""
    def check(self, name: str) -> int:
        """Check."""
        if name in self.names and (
            len(name) < LIMIT  # a comment
        ):
            a = 1
            self.note("x")
        elif name:
            return 3
        return 2
'''


@pytest.mark.parametrize(
    ("name", "old", "new", "line", "becomes"),
    [
        ("LIMIT", None, "6", "LIMIT = 5", "LIMIT = 6"),
        ("LIMIT", None, "A = 1\nLIMIT = A", "LIMIT = 5", "A = 1\nLIMIT = A"),
        ("Gate.check", "len(name)<LIMIT", "True", "(\n            len(name) < LIMIT  # a comment\n        )", "True"),
        ("Gate.check", "a = 1\nself.note('x')", "", "a = 1\n            self.note(\"x\")", "pass"),
        ("Gate.check", "self.note('x')", "", "            self.note(\"x\")\n", ""),
        ("Gate", "elif_ = 0", "", "", ""),
        ("Gate.check", "if name: ...", "if self: ...", "elif name", "elif self"),
        ("Gate.check", "if name in self.names and len(name) < LIMIT: ...", "if LIMIT: ...",
         "name in self.names and (\n            len(name) < LIMIT  # a comment\n        )", "LIMIT"),
        ("Gate.check", "if name: ...", "...", "elif name:\n            return 3", "else:\n            return 3"),
    ],
)  # fmt: skip
def test_edit_compares_syntax_trees(name: str, old: str | None, new: str, line: str, becomes: str) -> None:
    tree = ast.parse(SOURCE)
    if not line:
        with pytest.raises(ValueError, match="occurs 0 times"):
            patches.replace(tree, name, patches.Edit(name, old, new))
        return
    patches.replace(tree, name, patches.Edit(name, old, new))
    assert ast.unparse(tree) == ast.unparse(ast.parse(SOURCE.replace(line, becomes, 1)))


def test_edit_replaces_a_body_below_its_docstring() -> None:
    tree = ast.parse(SOURCE)
    patches.replace(tree, "Gate.check", patches.Edit("Gate.check", None, "return 7"))
    assert ast.unparse(tree).endswith('"""Check."""\n        return 7')


def test_assertions_can_be_removed() -> None:
    must, expect = (edit.applied() for edit in planted.WITHOUT_ASSERTIONS)
    assert "raise InvariantError" not in must
    assert "raise PeerError" not in expect


def test_run_reports_the_seed_that_detects_a_planted_fault() -> None:
    done = planted.run_command("run", "--planted", NAME, "--profile", "long", "--seeds", "5")
    assert done.returncode == 1
    assert "VIOLATION seed" in done.stdout
    assert f"--planted '{NAME}'" in done.stdout  # the line that reruns it
    assert "invariant 5" in done.stdout


def test_a_trial_that_fails_without_a_fault_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A trial that breaks an invariant in the right version detects nothing, so its line says which trial it is."""
    run_trial = schedules.run_trial

    def run(name: str, seed: int) -> Any:
        report = run_trial(name, seed)
        return replace(report, violation="invariant 7: wrong") if name == "idle" else report

    monkeypatch.setattr(schedules, "run_trial", run)
    assert detection.failing([Trial("alone", 1), Trial("idle", 1)]) == ["idle 1: invariant 7: wrong"]


def test_a_trial_that_fails_without_a_fault_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fault = planted.PlantedFault("fault", "takeover", (5,), ())
    tried: list[Trial] = []

    def failing(trials: list[Trial]) -> list[str]:
        tried.extend(trials)
        return [f"{trial}: wrong" for trial in trials if trial.schedule]

    monkeypatch.setattr(planted, "fresh_processes", ThreadPoolExecutor)
    monkeypatch.setattr(detection, "failing", failing)
    for by, code in ((Trial("", 3), 0), (Trial("idle", 1), 1)):
        monkeypatch.setattr(
            detection, "attempt", lambda fault, limit, hints, by=by: detection.Verdict(1, by, 5, "lost")
        )
        assert detection.run([fault], 1, 1) == code
        assert ("FAILS WITHOUT A FAULT: idle 1: wrong" in capsys.readouterr().out) == bool(code)
    assert tried == [Trial("", 3), Trial("idle", 1)]


def test_detection_reports_the_invariant_and_the_trial() -> None:
    done = planted.run_command("planted", "--only", NAME, "--limit", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NAME}      5  seed" in done.stdout
    assert "1 of 1 planted faults caught" in done.stdout


def test_correct_code_is_not_detected() -> None:
    verdict = detection.search([Trial("", 1)])
    assert (verdict.by, verdict.trials) == (None, 1)
    assert verdict.message == "SURVIVED 1 trials"


def test_trial_that_runs_for_ever_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    def run_for_ever(schedule: str, seed: int) -> None:
        while True:
            pass

    monkeypatch.setattr(detection, "TRIAL_LIMIT", 0.1)
    monkeypatch.setattr(schedules, "run_trial", run_for_ever)
    with pytest.raises(TimeoutError, match=r"did not end within 0\.1 s of CPU time"):
        detection.search([Trial("", 1)])


def test_surviving_fault_fails_the_run(capsys: pytest.CaptureFixture[str]) -> None:
    harmless = planted.PlantedFault(
        "harmless", "takeover", (1,), (patches.Edit("PUBLISHER_COUNT_INTERVAL", None, "1.0"),)
    )
    assert detection.run([harmless], 1, 1) == 1
    assert "NOT CAUGHT  SURVIVED 1 trials" in capsys.readouterr().out


def test_trial_round_trips_as_text() -> None:
    for trial in (Trial("", 17), Trial("tail cut", 3)):
        assert Trial.parse(str(trial)) == trial
    assert str(Trial("", 17)) == "seed 17"


def test_search_tries_schedules_after_the_first_seeds() -> None:
    trials = list(detection.order(40, ("a", "b")))
    assert trials[:6] == [Trial("", seed) for seed in range(1, 7)]
    assert trials[6:9] == [Trial("a", 1), Trial("b", 1), Trial("", 7)]
    assert [trial.seed for trial in trials if trial.schedule == "b"] == [1, 2, 3, 4]
    assert [trial.seed for trial in trials if not trial.schedule] == list(range(1, 41))
    assert list(detection.order(0, ("a",))) == []


@pytest.mark.parametrize("name", schedules.ALL)
def test_correct_code_passes_every_schedule(name: str) -> None:
    """The correct code passes each schedule with two seeds, and in at least one run the situation that the schedule
    aims at did occur."""
    reports = [schedules.run_trial(name, seed) for seed in (1, 2)]
    assert [report.violation for report in reports] == ["", ""]
    assert any(report.coverage[f"schedule {name}"] for report in reports)
