"""Real runs, short: a cluster of real processes under faults of every kind, whatever can be had on this machine; and
runs that must fail, for a run that can't fail shows nothing."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from migratory_chaos import history, network
from migratory_chaos.checker import check

pytestmark = [pytest.mark.real, pytest.mark.alone]


def chaos(folder: Path, *words: str, within: float) -> tuple[int, str]:
    """A command of `migratory_chaos`: its exit code and what it said."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-m", "migratory_chaos", *words],
        capture_output=True, text=True, timeout=within, env=environment, cwd=folder, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.timeout(600)
def test_two_minutes_of_every_fault_lose_double_and_reorder_nothing(tmp_path: Path) -> None:
    """At a rate that a machine with other tests on it can hold; `make chaos` is the place for more."""
    file, kept = tmp_path / "result.json", tmp_path / "kept"
    code, said = chaos(
        tmp_path, "run", "--minutes=1.8", "--seed=6", "--rate=400", f"--json={file}", f"--keep={kept}", within=570
    )
    assert code == 0, said
    result = json.loads(file.read_text())
    verdict = result["verdict"]
    assert (verdict["lost"], verdict["duplicate"], verdict["reordered"], verdict["unexpected"]) == (0, 0, 0, 0)
    assert verdict["told"] == 0
    assert verdict["acknowledged"] > 10_000
    assert result["faults"]
    for struck in result["faults"]:
        assert struck["proofs"], struck
        assert all(proof["holds"] for proof in struck["proofs"]), struck
    assert result["namespaces"] == (not network.missing())
    assert bool(result["left_out"]) == bool(network.missing())
    judged_again(kept / "histories", tmp_path)


def judged_again(histories: Path, folder: Path) -> None:
    """The histories of the real run, broken in one place: the command finds it and names it."""
    assert chaos(folder, "check", str(histories), within=120)[0] == 0
    topic = min(path for path in histories.iterdir())
    file = min(topic.glob("s-*"))
    lines = file.read_text().splitlines(keepends=True)
    place = next(number for number in range(len(lines) // 2, len(lines)) if lines[number].startswith("d "))
    _, epoch, sequence, _ = lines[place].split()
    file.write_text("".join(lines[:place] + lines[place + 1 :]))
    code, said = chaos(folder, "check", str(histories), within=120)
    assert code == 1
    assert f"{file.name}, line {len(lines) - 1}" in said  # so many lines are not there
    lines[-1] = f"e {len(lines) - 2}\n"
    file.write_text("".join(lines[:place] + lines[place + 1 :]))
    code, said = chaos(folder, "check", str(histories), within=120)
    assert code == 1
    assert f"lost {topic.name} {epoch}:{sequence} {file.name.removeprefix('s-')}" in said
    verdict, _ = check([history.read_topic(topic)])
    assert verdict.lost == 1


@pytest.mark.timeout(300)
def test_a_run_that_does_not_hold_its_rate_fails_and_keeps_what_it_saw(tmp_path: Path) -> None:
    """Without namespaces, as where nobody is root: what is left out is said."""
    file, kept = tmp_path / "result.json", tmp_path / "kept"
    words = ["run", "--minutes=0.1", "--seed=1", "--rate=50", "--least-rate=5000", "--no-network"]
    code, said = chaos(tmp_path, *words, f"--json={file}", f"--keep={kept}", within=280)
    assert code == 1, said
    result: dict[str, Any] = json.loads(file.read_text())
    assert result["passed"] is False
    (problem,) = result["problems"]
    assert "publications a second, not 5000" in problem
    assert f"PROBLEM {problem}" in said
    assert result["namespaces"] is False
    assert len(result["left_out"]) == 6
    assert list((kept / "logs").glob("*.log"))
    assert list((kept / "histories").iterdir())
