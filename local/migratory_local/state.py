"""What is running on this machine: a file per cluster that `migratory status` reads, and a lock on each work folder."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from migratory_local.errors import LocalError

DRAINED = "drained"
"""A folder in the work folder: a broker with a file of its name in it is not started again."""


@dataclass(frozen=True)
class BrokerState:
    name: str
    url: str
    """Where clients connect."""
    admin: str
    """Base URL of /healthz, /readyz, /metrics, /v1/status."""


@dataclass(frozen=True)
class ClusterState:
    """A cluster that `migratory up` or `migratory demo` runs. `pid` and `started` name the runner's process."""

    name: str
    pid: int
    started: float
    workdir: str
    zookeeper: str
    brokers: list[BrokerState] = field(default_factory=list)
    metrics: str = ""
    """Folder of the recorder's Parquet files, or URL of Prometheus."""

    def stays_away(self, broker: str) -> bool:
        """Whether the runner leaves this broker alone when it ends (`migratory drain`)."""
        return Path(self.workdir, DRAINED, broker).exists()

    @property
    def running(self) -> bool:
        """Whether its runner is there; a later process with the same pid is not taken for it."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started) < 1.0
        except psutil.Error:
            return False


def state_folder(environment: Mapping[str, str] | None = None) -> Path:
    """$XDG_STATE_HOME/migratory, by default ~/.local/state/migratory.

    :raises LocalError: for a user without a home, such as a container's that is a mere number."""
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_STATE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "migratory"
    try:
        return Path.home() / ".local" / "state" / "migratory"
    except RuntimeError:
        raise LocalError(f"user {os.getuid()} has no home: set HOME, or XDG_STATE_HOME to a folder") from None


def own_start_time() -> float:
    return float(psutil.Process().create_time())


def publish(state: ClusterState, folder: Path | None = None) -> Path:
    """Writes the state where `running_clusters` finds it; returns the file, which the runner removes at its end.

    :raises LocalError: when it can't be written.
    """
    folder = folder or state_folder()
    path = folder / f"{state.name}.{state.pid}.json"
    part = path.with_suffix(".part")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        part.write_text(json.dumps(asdict(state), indent=2) + "\n")
        part.replace(path)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from error
    return path


def running_clusters(folder: Path | None = None) -> list[ClusterState]:
    """Clusters whose runner lives, newest first. Files that a killed runner left behind are removed, where that is
    allowed. A user without a home runs none."""
    found = []
    try:
        paths = sorted((folder or state_folder()).glob("*.json"))
    except LocalError:
        return []
    for path in paths:
        state = _read(path)
        if state is None or not state.running:
            with contextlib.suppress(OSError):  # another user's, or a read-only disk
                path.unlink(missing_ok=True)
        else:
            found.append(state)
    return sorted(found, key=lambda state: -state.started)


def _read(path: Path) -> ClusterState | None:
    """None for a file that is not, or no longer, a state (another release's, say)."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        return ClusterState(**{**data, "brokers": [BrokerState(**broker) for broker in data["brokers"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None


_CLEARED = ("logs", "samples", "drained", "zookeeper-*")
"""What a runner removes from its work folder before it begins."""


class FolderLock:
    """Keeps two runners out of one work folder, and any out of a folder of something else: they clear what earlier runs
    left. The kernel ends the lock with the process, however that ends; its file stays, as the mark of a work folder."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._descriptor = -1

    def take(self) -> None:
        """:raises LocalError: when another runner holds it (naming its pid), the folder can't be written, or holds what
        would be cleared and is no runner's."""
        if not self._path.exists():
            folder = self._path.parent
            others = sorted(found.name for pattern in _CLEARED for found in folder.glob(pattern))
            if others:
                raise LocalError(
                    f"{folder} holds {', '.join(others)}, which a start clears, but was never a work folder: choose "
                    "another --workdir"
                )
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LocalError(f"cannot use {self._path.parent} as work folder: {error.strerror}") from error
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            holder = os.getpid()
            os.ftruncate(descriptor, 0)
            os.write(descriptor, str(holder).encode())
        except BlockingIOError:
            other = os.read(descriptor, 32).decode(errors="replace")
            os.close(descriptor)
            raise LocalError(
                f"{self._path.parent} is in use by another runner (pid {other}): end it, or choose --workdir"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise LocalError(f"cannot write into {self._path.parent}: {error.strerror}") from error
        self._descriptor = descriptor

    def release(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
