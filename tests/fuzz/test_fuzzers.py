"""A short campaign of each fuzzer, and checks that a fuzzer detects planted mistakes."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from migratory_fuzz import campaign, corpus, targets

LIMIT = 120
EXECUTIONS = {
    "frames": 5000, "codec": 5000, "handshake": 5000, "peer": 5000, "peers": 60, "clusterfile": 2000, "zookeeper": 60,
    "tokens": 20_000,
}  # fmt: skip
"""New inputs that the fuzzer tries for each target, beside the stored ones: some ten seconds each, and nearly the
same inputs each time. `make fuzz` tries other ones."""
FOLDER = Path(__file__).parent
SUPPORT = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}

pytestmark = [pytest.mark.usefixtures("atheris"), pytest.mark.timeout(240)]


@pytest.mark.parametrize("name", targets.FUZZED)
def test_short_campaign_finds_nothing(name: str, tmp_path: Path) -> None:
    output: list[str] = []
    target = targets.load(name)
    executions = len(corpus.inputs(target)) + EXECUTIONS[name]
    outcome = campaign.run(target, name, LIMIT, say=output.append, regressions=tmp_path, executions=executions)
    assert not outcome.failure, "\n".join([*output, outcome.line])
    assert outcome.executions >= executions
    assert outcome.coverage > 50
    assert outcome.memory, "too short for its growth to be judged"
    print(outcome.line)


def test_short_search_finds_nothing() -> None:
    """A search of 300 inputs finds none above the cost bound. It runs in a process of its own, because it must lower
    the limits before the decoders are built with them."""
    command = [sys.executable, "-m", "migratory_fuzz", "run", "cost", "--inputs", "300"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT, check=False, env=SUPPORT)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "300 inputs, none above the bound" in done.stdout


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, int], campaign.Outcome]:
    """Return a function that fuzzes tests/fuzz/planted/NAME.py for at most a number of seconds and returns the
    outcome."""
    monkeypatch.syspath_prepend(str(FOLDER))
    monkeypatch.setenv("PYTHONPATH", str(FOLDER))

    def run(name: str, seconds: int) -> campaign.Outcome:
        module = f"planted.{name}"
        return campaign.run(targets.load(module), module, seconds, say=print, regressions=tmp_path / "regressions")

    return run


def test_exception_is_detected_and_its_input_stored(planted: Callable[[str, int], campaign.Outcome]) -> None:
    outcome = planted("crash", 60)
    assert outcome.failure == "exception"
    assert outcome.artifact is not None
    assert outcome.artifact.name.startswith("exception-")
    data = outcome.artifact.read_bytes()
    assert data.startswith(b"Mq7")
    with pytest.raises(ValueError, match="planted"):
        targets.load("planted.crash").run(data)


def test_hang_is_detected_and_its_input_stored(planted: Callable[[str, int], campaign.Outcome]) -> None:
    outcome = planted("hang", 60)
    assert outcome.failure == "hang"
    assert outcome.artifact is not None
    assert outcome.artifact.read_bytes().startswith(b"M")


def test_growth_of_memory_is_detected(
    planted: Callable[[str, int], campaign.Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(campaign, "RSS_LIMIT", 300)
    outcome = planted("leak", 30)
    assert outcome.failure == "memory"
    monkeypatch.setattr(campaign, "RSS_LIMIT", 0)  # none: what grows is seen from outside as well
    monkeypatch.setattr(campaign, "GROWTH_LIMIT", 20)
    assert planted("leak", 2).failure == "growth"


def test_fuzzer_that_does_not_run_is_a_failure(
    planted: Callable[[str, int], campaign.Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", "")
    assert planted("crash", 1).failure == "status 1"
