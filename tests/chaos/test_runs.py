"""Short chaos runs: a cluster of real processes under all kinds of faults that this machine allows, and runs that
fail."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from migratory_chaos.processes import history, network
from migratory_chaos.processes.checker import check

pytestmark = [pytest.mark.real, pytest.mark.alone]


def chaos(folder: Path, *words: str, timeout: float) -> tuple[int, str]:
    """Run a command of `migratory_chaos`. Return its exit code and output."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    ended = subprocess.run(
        [sys.executable, "-m", "migratory_chaos", *words],
        capture_output=True, text=True, timeout=timeout, env=environment, cwd=folder, check=False,
    )  # fmt: skip
    return ended.returncode, ended.stdout + ended.stderr


@pytest.mark.timeout(600)
def test_run_of_all_faults_loses_duplicates_and_reorders_nothing(tmp_path: Path) -> None:
    """In a run of 1.8 minutes with all kinds of faults that this machine allows, every fault is proved to have
    worked, and nothing is lost, repeated or reordered. `make chaos` publishes at a higher rate, which a machine that
    runs other tests would not reach."""
    file, data_folder = tmp_path / "result.json", tmp_path / "kept"
    code, output = chaos(
        tmp_path,
        "run",
        "--minutes=1.8",
        "--seed=6",
        "--rate=400",
        f"--json={file}",
        f"--keep={data_folder}",
        timeout=570,
    )
    assert code == 0, output
    result = json.loads(file.read_text())
    verdict = result["verdict"]
    assert (verdict["lost"], verdict["duplicate"], verdict["reordered"], verdict["unexpected"]) == (0, 0, 0, 0)
    assert verdict["told"] == 0
    assert verdict["acknowledged"] > 10_000
    assert result["faults"]
    for fault in result["faults"]:
        assert fault["proofs"], fault
        assert all(proof["holds"] for proof in fault["proofs"]), fault
    assert result["namespaces"] == (not network.explain_missing())
    assert bool(result["left_out"]) == bool(network.explain_missing())
    check_again(data_folder / "histories", tmp_path)


def check_again(histories: Path, folder: Path) -> None:
    """Check that the command `check` accepts the histories of a real run, and then, with one delivery removed from a
    file, names that file; when the file's end line agrees again, it names the lost position."""
    assert chaos(folder, "check", str(histories), timeout=120)[0] == 0
    topic = min(path for path in histories.iterdir())
    file = min(topic.glob("s-*"))
    lines = file.read_text().splitlines(keepends=True)
    place = next(number for number in range(len(lines) // 2, len(lines)) if lines[number].startswith('["d"'))
    _, (epoch, sequence), _ = json.loads(lines[place])
    file.write_text("".join(lines[:place] + lines[place + 1 :]))
    code, output = chaos(folder, "check", str(histories), timeout=120)
    assert code == 1
    assert f"{file.name}, line {len(lines) - 1}" in output  # which says that there is one line more
    lines[-1] = f'["e",{len(lines) - 2}]\n'
    file.write_text("".join(lines[:place] + lines[place + 1 :]))
    code, output = chaos(folder, "check", str(histories), timeout=120)
    assert code == 1
    assert f"lost {topic.name} {epoch}:{sequence} {file.name.removeprefix('s-')}" in output
    verdict, _ = check([history.read_topic(topic)])
    assert verdict.lost == 1


@pytest.mark.timeout(300)
def test_run_that_does_not_hold_its_rate_fails_and_keeps_its_files(tmp_path: Path) -> None:
    """A run without network namespaces that does not reach its least rate fails with this one problem, names the six
    faults that it left out, and keeps its logs and histories."""
    file, data_folder = tmp_path / "result.json", tmp_path / "kept"
    words = ["run", "--minutes=0.1", "--seed=1", "--rate=50", "--least-rate=5000", "--no-network"]
    code, output = chaos(tmp_path, *words, f"--json={file}", f"--keep={data_folder}", timeout=280)
    assert code == 1, output
    result: dict[str, Any] = json.loads(file.read_text())
    assert result["passed"] is False
    (problem,) = result["problems"]
    assert "publications a second, not 5000" in problem
    assert f"PROBLEM {problem}" in output
    assert result["namespaces"] is False
    assert len(result["left_out"]) == 6
    assert list((data_folder / "logs").glob("*.log"))
    assert list((data_folder / "histories").iterdir())
