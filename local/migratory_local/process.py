"""One process of the cluster: started so that it can't outlive the runner, logged into a file, ended in good time.

Start processes from a thread that lives as long as the runner (the main thread): Linux counts the death of the starting
*thread* as the parent's.
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

from migratory_local import launcher
from migratory_local.errors import LocalError

_TAIL_BYTES = 4096


class Process:
    """A command, and its current life if it has one. It may be started again after it ended.

    It gets a session of its own: Ctrl-C in a terminal reaches the runner only, which ends its processes in order.
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
        """:raises LocalError: when it runs already, or the log can't be written (full disk, no permission)."""
        if self.alive:
            raise LocalError(f"{self.name} runs already")
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
        """The process id while it lives."""
        return self._popen.pid if self._popen is not None and self._popen.poll() is None else None

    @property
    def alive(self) -> bool:
        return self.pid is not None

    @property
    def exit_code(self) -> int | None:
        """How the last life ended (negative: by that signal); None while it runs and before the first start."""
        return None if self._popen is None else self._popen.poll()

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal; to a process that is gone already it does nothing."""
        if self._popen is not None:
            # Popen itself checks first that the process was not reaped, so that no stranger with the pid is hit.
            self._popen.send_signal(number)

    def kill(self) -> None:
        """SIGKILL, and waits until the kernel has taken it away."""
        self.signal(signal.SIGKILL)
        self.wait(10.0)

    def wait(self, timeout: float) -> bool:
        """True when it ended within `timeout` seconds."""
        if self._popen is None:
            return True
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._popen.wait(max(0.0, timeout))
        return not self.alive

    def tail(self) -> str:
        """The last lines of its log, for an error message."""
        try:
            with self.log.open("rb") as file:
                file.seek(max(0, self.log.stat().st_size - _TAIL_BYTES))
                text = file.read().decode(errors="replace")
        except OSError as error:
            return f"(no log: {error})"
        return "\n".join(text.splitlines()[-8:])


def stop_all(processes: Sequence[Process], grace: float) -> None:
    """SIGTERM to all at once, SIGKILL to what is left after `grace` seconds. Returns when none lives."""
    for process in processes:
        # A stopped (frozen) process would not see the SIGTERM.
        process.signal(signal.SIGCONT)
        process.signal(signal.SIGTERM)
    deadline = time.monotonic() + grace
    for process in processes:
        if not process.wait(deadline - time.monotonic()):
            process.kill()
