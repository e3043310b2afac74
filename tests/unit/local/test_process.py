"""Processes: started, logged, ended in time, and never longer-lived than their runner."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from migratory_local.errors import LocalError
from migratory_local.process import Process, stop_all
from migratory_testing.waiting import poll

STUBBORN = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(*command: str, name: str = "child") -> Process:
        made.append(Process(name, command, tmp_path / "logs" / f"{name}{len(made)}.log"))
        return made[-1]

    yield make
    for process in made:
        process.kill()


def test_a_life(make: Callable[..., Process]) -> None:
    process = make("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (process.alive, process.pid, process.exit_code) == (False, None, None)
    process.start()
    assert process.wait(10)
    assert process.exit_code == 7
    assert process.tail() == "out\nerr"
    process.start()
    assert process.wait(10)
    assert (process.starts, process.tail()) == (2, "out\nerr\nout\nerr")


def test_it_becomes_the_command_itself(make: Callable[..., Process]) -> None:
    process = make("sleep", "60")
    process.start()
    poll(lambda: psutil.Process(process.pid).name() == "sleep")
    assert os.getsid(process.pid or 0) == process.pid
    with pytest.raises(LocalError, match="child runs already"):
        process.start()
    process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_a_command_that_is_not_there(make: Callable[..., Process]) -> None:
    process = make("/no/such/command")
    process.start()
    assert process.wait(10)
    assert process.exit_code == 1
    assert "No such file" in process.tail()


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match=r"cannot start x: .*(File exists|Not a directory)"):
        Process("x", ["true"], tmp_path / "file" / "x.log").start()


def test_a_full_disk_is_named() -> None:
    # /dev/full takes the place of a log on a full disk: opening works, each write fails.
    process = Process("x", ["sh", "-c", "echo hello"], Path("/dev/full"))
    process.start()
    assert process.wait(10)
    assert process.exit_code not in (0, None)


def test_stop_all_insists(make: Callable[..., Process]) -> None:
    gentle, stubborn, frozen, never = (
        make("sleep", "60"),
        make("sh", "-c", STUBBORN),
        make("sleep", "60"),
        make("sleep", "60"),
    )
    for process in (gentle, stubborn, frozen):
        process.start()
    poll(lambda: stubborn.tail() == "ready")
    poll(lambda: psutil.Process(frozen.pid).name() == "sleep")
    frozen.signal(signal.SIGSTOP)
    stop_all([gentle, stubborn, frozen, never], 0.5)
    assert gentle.exit_code == -signal.SIGTERM
    assert stubborn.exit_code == -signal.SIGKILL
    assert frozen.exit_code == -signal.SIGTERM


RUNNER = """
import sys, time
from pathlib import Path
from migratory_local.process import Process
for number in range(3):
    process = Process(f"child-{number}", ["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.05; done"],
                      Path(sys.argv[1]) / f"{number}.log")
    process.start()
    print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_nothing_outlives_a_runner_that_was_killed(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        children = [psutil.Process(int(runner.stdout.readline())) for _ in range(3)]
        runner.send_signal(number)
        runner.wait(10)
        _, left = psutil.wait_procs(children, timeout=10)
        assert left == []
