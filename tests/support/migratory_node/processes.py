"""The processes of the tests' Kubernetes node: started and stopped by name. They outlive the command that started them,
and are found again by their process ids.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from migratory_node.paths import NodeError

_POLL = 0.2


class Processes:
    """Named processes with NAME.log and NAME.pid in `folder`. A recorded id counts only with the recorded start time,
    as ids are reused."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def start(self, name: str, command: Sequence[str], environment: dict[str, str] | None = None) -> None:
        """Start a process, unless it runs already."""
        if self.running(name):
            return
        log = self._folder / f"{name}.log"
        # Not by subprocess, whose objects warn when their process outlives them.
        pid = os.posix_spawnp(
            command[0],
            list(command),
            {**os.environ, **(environment or {})},
            setsid=True,
            file_actions=[
                (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
                (os.POSIX_SPAWN_OPEN, 1, str(log), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644),
                (os.POSIX_SPAWN_DUP2, 1, 2),
            ],
        )
        (self._folder / f"{name}.pid").write_text(f"{pid} {_started(pid)}\n")

    def running(self, name: str) -> bool:
        return self._pid(name) is not None

    def stop(self, name: str, limit: float = 10.0) -> None:
        """Send SIGTERM to a process, and SIGKILL if it still runs after `limit` seconds. Do nothing if it does not
        run."""
        pid = self._pid(name)
        if pid is not None:
            os.kill(pid, signal.SIGTERM)
            deadline = time.monotonic() + limit
            while self.running(name) and time.monotonic() < deadline:
                _reap(pid)
                time.sleep(_POLL)
            if self.running(name):
                os.kill(pid, signal.SIGKILL)
                _reap(pid)
        (self._folder / f"{name}.pid").unlink(missing_ok=True)

    def tail(self, name: str) -> str:
        path = self._folder / f"{name}.log"
        return path.read_bytes()[-2000:].decode(errors="replace") if path.exists() else ""

    def wait(self, what: str, ready: Callable[[], bool], limit: float, name: str) -> None:
        """Poll `ready` until it returns true, while the process runs. :raises NodeError: it timed out, or the process
        ended; the text has the end of its log."""
        deadline = time.monotonic() + limit
        while not ready():
            if not self.running(name):
                raise NodeError(f"{name} ended before there was {what}; its log ends:\n{self.tail(name)}")
            if time.monotonic() > deadline:
                raise NodeError(f"no {what} within {limit:g} s; the log of {name} ends:\n{self.tail(name)}")
            time.sleep(_POLL)

    def _pid(self, name: str) -> int | None:
        try:
            pid, started = (self._folder / f"{name}.pid").read_text().split()
        except (OSError, ValueError):
            return None
        return int(pid) if _started(int(pid)) == started else None


def run(command: Sequence[str], **options: object) -> str:
    """Return a command's output. :raises NodeError: it failed; the text has its error output."""
    result = subprocess.run(command, check=False, capture_output=True, text=True, **options)  # type: ignore[call-overload]
    if result.returncode:
        raise NodeError(f"{' '.join(command[:6])} failed: {result.stderr.strip() or result.stdout.strip()}")
    return str(result.stdout)


def succeeds(command: Sequence[str]) -> bool:
    """Return whether a command exits with 0."""
    return subprocess.run(command, check=False, capture_output=True).returncode == 0


def unmount_below(root: Path) -> None:
    """Unmount everything below `root`, deepest first."""
    points = [line.split()[1] for line in Path("/proc/mounts").read_text().splitlines()]
    for point in sorted((point for point in points if point.startswith(f"{root}{os.sep}")), reverse=True):
        succeeds(["umount", "--lazy", point])


def _started(pid: int) -> str:
    """Return when a process was started, in clock ticks since boot; empty when it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return ""
    return "" if fields[0] == "Z" else fields[19]


def _reap(pid: int) -> None:
    with contextlib.suppress(ChildProcessError):
        os.waitpid(pid, os.WNOHANG)
