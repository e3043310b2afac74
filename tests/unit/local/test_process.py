"""Processes of the local runner: they start, log, end in time, and never outlive the runner."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from migratory_local import LocalError
from migratory_local.cluster.brokers import MIGRATORY_COMMAND
from migratory_local.processes.process import Process, stop_all
from migratory_testing.waiting import poll

ROOT = Path(__file__).parents[3]
IGNORES_SIGTERM = "trap '' TERM; echo ready; while :; do sleep 0.05; done"


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Callable[..., Process]]:
    made: list[Process] = []

    def make(*command: str, name: str = "child") -> Process:
        made.append(Process(name, command, tmp_path / "logs" / f"{name}{len(made)}.log"))
        return made[-1]

    yield make
    for process in made:
        process.kill()


def test_process_starts_logs_and_ends_more_than_once(make: Callable[..., Process]) -> None:
    process = make("sh", "-c", "echo out; echo err >&2; exit 7")
    assert (process.alive, process.pid, process.exit_code) == (False, None, None)
    process.start()
    assert process.wait(10)
    assert process.exit_code == 7
    assert process.tail() == "out\nerr"
    process.start()
    assert process.wait(10)
    assert (process.starts, process.tail()) == (2, "out\nerr\nout\nerr")


def test_process_is_the_command_in_a_session_of_its_own(make: Callable[..., Process]) -> None:
    process = make("sleep", "60")
    process.start()
    poll(lambda: psutil.Process(process.pid).name() == "sleep")
    assert os.getsid(process.pid or 0) == process.pid
    with pytest.raises(LocalError, match="child is already running"):
        process.start()
    process.kill()
    assert process.exit_code == -signal.SIGKILL


def test_missing_command_is_named_in_the_log(make: Callable[..., Process]) -> None:
    process = make("/no/such/command")
    process.start()
    assert process.wait(10)
    assert process.exit_code == 1
    assert "No such file" in process.tail()


def test_unwritable_log_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match=r"cannot start x: .*(File exists|Not a directory)"):
        Process("x", ["true"], tmp_path / "file" / "x.log").start()


def test_full_disk_ends_the_process() -> None:
    # /dev/full acts as a log on a full disk: it can be opened, but each write fails.
    process = Process("x", ["sh", "-c", "echo hello"], Path("/dev/full"))
    process.start()
    assert process.wait(10)
    assert process.exit_code not in (0, None)


def test_stop_all_kills_a_process_that_ignores_sigterm(make: Callable[..., Process]) -> None:
    gentle, stubborn, frozen, never = (
        make("sleep", "60"),
        make("sh", "-c", IGNORES_SIGTERM),
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
from migratory_local.processes.process import Process
for number in range(3):
    process = Process(f"child-{number}", ["sh", "-c", "trap '' TERM HUP INT; while :; do sleep 0.05; done"],
                      Path(sys.argv[1]) / f"{number}.log")
    process.start()
    print(process.pid, flush=True)
time.sleep(600)
"""


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_no_process_outlives_a_killed_runner(tmp_path: Path, number: signal.Signals) -> None:
    with subprocess.Popen([sys.executable, "-c", RUNNER, str(tmp_path)], stdout=subprocess.PIPE, text=True) as runner:
        assert runner.stdout is not None
        children = [psutil.Process(int(runner.stdout.readline())) for _ in range(3)]
        runner.send_signal(number)
        runner.wait(10)
        _, alive = psutil.wait_procs(children, timeout=10)
        assert alive == []


# ---- the folder in which a program was started


def test_command_of_brokers_imports_nothing_of_the_current_folder(tmp_path: Path) -> None:
    (tmp_path / "uuid.py").write_text("raise SystemExit(3)\n")
    command = [*MIGRATORY_COMMAND, "--version"]
    ended = subprocess.run(command, check=False, cwd=tmp_path, capture_output=True, timeout=60.0)
    assert ended.returncode == 0


@pytest.mark.parametrize("folder", ["broker", "local", "loadtest", "operator", "cli", "spark", "clients"])
def test_no_program_is_started_with_the_current_folder_as_import_path(folder: str) -> None:
    """Regression: a broker imported a file `uuid.py` or `http.py` of the folder in which `migratory up` ran."""
    starts = re.compile(r'sys\.executable,\s*"(-[mc])"')
    found = [path for path in (ROOT / folder).rglob("*.py") if starts.search(path.read_text("utf-8"))]
    assert found == [], "give -P or -I before -m and -c"
