"""Planted faults as data, and what plants them. `make planted` tries them all."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest
from migratory_simulation import hunt, planted, planted_unit, schedules
from migratory_simulation.hunt import Found, Trial, Verdict

NAME = "coordinator delivers before a confirmation"


def simulation(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(planted.ROOT / "tests" / "support"))
    command = [sys.executable, "-m", "migratory_simulation", *arguments]
    return subprocess.run(
        command, cwd=planted.ROOT, env=environment, capture_output=True, text=True, check=False, timeout=100
    )


def test_every_planted_fault_still_applies() -> None:
    found = planted.load()
    assert len(found) >= 60
    assert len({fault.name for fault in found}) == len(found)
    assert hunt.stale(found) == []
    for fault in found:
        assert fault.breaks
        assert set(fault.breaks) <= set(range(1, 8))
        sources: dict[str, str] = {}
        for edit in fault.edits:
            source = sources.get(edit.file) or edit.applied()
            sources[edit.file] = source.replace(edit.old, edit.new)
            compile(sources[edit.file], edit.file, "exec")


def test_a_stale_edit_is_refused() -> None:
    edit = planted.Edit("broker/migratory_broker/core/logic/records.py", "no such text", "")
    with pytest.raises(ValueError, match="occurs 0 times"):
        edit.applied()
    fault = planted.PlantedFault("stale", "takeover", (1,), (edit,))
    assert [text.split(":")[0] for text in hunt.stale([fault])] == ["stale"]


def test_the_assertions_can_be_taken_out() -> None:
    assert "raise InvariantError" not in planted.WITHOUT_ASSERTIONS.applied()


def test_a_planted_fault_is_caught_and_its_seed_named() -> None:
    done = simulation("run", "--planted", NAME, "--seeds", "5")
    assert done.returncode == 1
    assert "VIOLATION seed" in done.stdout
    assert f"--planted '{NAME}'" in done.stdout  # the line that reruns it
    assert "invariant 5" in done.stdout


def test_the_verdict_names_the_invariant_and_the_trial() -> None:
    done = simulation("planted", "--only", NAME, "--limit", "3")
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{NAME}      5  seed" in done.stdout
    assert "1 of 1 planted faults caught" in done.stdout


def test_right_code_is_not_caught() -> None:
    harmless = planted.PlantedFault("harmless", "edge", (1,), ())
    verdict = hunt.judge(harmless, [Trial("", 1)], 0)
    assert (verdict.by, verdict.trials) == (None, 1)
    assert verdict.said == "SURVIVED 1 trials"


def test_a_fault_that_survives_fails_the_run(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def survives(fault: planted.PlantedFault, hints: Sequence[Trial], limit: int) -> Verdict:
        return Verdict(fault, limit, None, 0, "SURVIVED")

    monkeypatch.setattr(hunt, "_apart", survives)
    assert hunt.show([planted.named(NAME)], 3, 1, find=False) == 1
    assert "NOT CAUGHT" in capsys.readouterr().out
    assert hunt.show([], 3, 1, find=False) == 1


def test_trials_are_text_and_back() -> None:
    for trial in (Trial("", 17), Trial("tail cut", 3)):
        assert Trial.parse(str(trial)) == trial
    assert str(Trial("", 17)) == "seed 17"


def test_the_search_brings_the_schedules_behind_the_first_seeds() -> None:
    trials = list(hunt.order(40, ("a", "b")))
    assert trials[:6] == [Trial("", seed) for seed in range(1, 7)]
    assert trials[6:9] == [Trial("a", 1), Trial("b", 1), Trial("", 7)]
    assert [trial.seed for trial in trials if trial.schedule == "b"] == [1, 2, 3, 4]
    assert [trial.seed for trial in trials if not trial.schedule] == list(range(1, 41))
    assert list(hunt.order(0, ("a",))) == []


def test_what_was_found_is_kept(tmp_path: Path) -> None:
    path = tmp_path / "found.toml"
    assert hunt.load_found(path) == {}
    _, second = planted.load()[:2]
    found = {second.name: Found(Trial("tail cut", 3), 4, 31), "gone": Found(Trial("", 1), 1, 1)}
    hunt.save_found(found, path)
    assert hunt.load_found(path) == {second.name: found[second.name]}


def test_every_fault_has_a_trial_to_begin_with() -> None:
    found = hunt.load_found()
    for fault in planted.load():
        assert fault.name in found, f"python -m migratory_simulation planted --find --new: {fault.name}"
        assert found[fault.name].trial.schedule in ("", *schedules.ALL)
        assert found[fault.name].broke in range(1, 8)


def test_a_unit_test_that_is_said_to_catch_a_fault_is_there() -> None:
    for fault, result in planted_unit.load().items():
        if result.failed:
            file, *inner = re.split(r"::|\[| ", result.failed)
            text = (planted.ROOT / file).read_text()
            assert any(re.search(rf"(def|class) {name}\b", text) for name in inner), f"{fault}: no {result.failed}"


@pytest.mark.parametrize("name", schedules.ALL)
def test_right_code_stands_every_schedule(name: str) -> None:
    """And the script comes to its end: the circumstances that it is for did come about."""
    reports = [schedules.run_trial(name, seed) for seed in (1, 2)]
    assert [report.violation for report in reports] == ["", ""]
    assert any(report.coverage[f"schedule {name}"] for report in reports)
