"""Runs one process of the cluster: it is started so that it cannot outlive the runner, and its output goes to a log
file.

Start processes from a thread that lives as long as the runner (the main thread): for Linux the parent of a process is
the *thread* that started it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from migratory_local import LocalError
from migratory_local.processes import launcher

_TAIL_BYTES = 4096
"""Bytes at the end of a log that are read for an error message; enough for `_TAIL_LINES`."""
_TAIL_LINES = 8
_KILL_TIMEOUT = 10.0
"""Seconds that the kernel may take to remove a killed process."""


class Process:
    """A command and its process, which may be started again after it ended. `starts` is the number of starts so far.

    The process has a session of its own: Ctrl-C in a terminal reaches only the runner, which ends its processes in
    order.

    :param log: the file to which the output is appended.
    :param environment: the environment variables; None for those of the runner.
    """

    def __init__(
        self, name: str, command: Sequence[str], log: Path, *, environment: Mapping[str, str] | None = None
    ) -> None:
        self.name = name
        self.command = list(command)
        self.log = log
        self.starts = 0
        self._environment = environment
        self._popen: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process. The kernel kills it when the thread that calls this method ends.

        :raises LocalError: it is already running, or cannot be started (full disk, no permission for the log). A
            command that does not exist raises nothing: the process ends at once, with the reason in its log.
        """
        if self.alive:
            raise LocalError(f"{self.name} is already running")
        try:
            self.log.parent.mkdir(parents=True, exist_ok=True)
            with self.log.open("ab") as output:
                self._popen = subprocess.Popen(
                    [sys.executable, "-I", "-S", launcher.__file__, str(os.getpid()), *self.command],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    env=None if self._environment is None else dict(self._environment),
                    start_new_session=True,
                )
        except OSError as error:
            raise LocalError(f"cannot start {self.name}: {error}") from error
        self.starts += 1

    @property
    def pid(self) -> int | None:
        """The process id, or None if the process is not running."""
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """The exit code of the last run, negative for a signal. None while the process runs and before the first
        start."""
        return None if self._popen is None else self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Send a signal. Do nothing if the process has ended or was never started."""
        if self._popen is not None:
            # Popen first checks that the process was not reaped, so another process with the same pid is never hit.
            self._popen.send_signal(number)

    def kill(self) -> None:
        """Send SIGKILL and wait until the process is gone, at most _KILL_TIMEOUT seconds."""
        self.signal(signal.SIGKILL)
        self.wait(_KILL_TIMEOUT)

    def wait(self, timeout: float) -> bool:
        """Wait at most `timeout` seconds for the end of the process. Return whether it has ended; True if it was never
        started."""
        if self._popen is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, timeout))
        return not self.alive

    def tail(self) -> str:
        """Return the last lines of the log for an error message: at most `_TAIL_LINES`, from the last `_TAIL_BYTES`. If
        it cannot be read, return the reason in brackets."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(text.splitlines()[-_TAIL_LINES:])


def stop_all(processes: Sequence[Process], grace: float) -> None:
    """Continue stopped processes and send SIGTERM to all of them, then wait. Kill those that still run after `grace`
    seconds, and wait for their end too."""
    for process in processes:
        # A stopped (frozen) process would not handle the SIGTERM.
        process.signal(signal.SIGCONT)
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        if not process.wait(deadline - time.monotonic()):
            process.kill()


def describe_exit(exit_code: int | None) -> str:
    """Return in words how a process ended: "ended with 1", "was ended by signal 9", "never ran" for None."""
    if exit_code is None:
        return "never ran"
    return f"was ended by signal {-exit_code}" if exit_code < 0 else f"ended with {exit_code}"
