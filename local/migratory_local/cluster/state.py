"""Files of a runner for itself and other commands: the state file of each cluster that runs on this machine, the lock
of a work folder, and files with secrets."""

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

from migratory_local import LocalError

DRAINED_FOLDER = "drained"
"""The folder in the work folder with a file for each drained broker, which the runner does not start again."""


@dataclass(frozen=True)
class BrokerState:
    """Name and addresses of one broker in a state file."""

    name: str
    url: str
    """The URL to which clients connect."""
    admin: str
    """The base URL of /healthz, /readyz, /metrics, /v1/status."""


@dataclass(frozen=True)
class ClusterState:
    """The content of a state file: a cluster that `migratory up` or `migratory demo` runs. `pid` and `started` (seconds
    since 1970) identify the runner's process. `zookeeper` is ZooKeeper's connection string."""

    name: str
    pid: int
    started: float
    workdir: str
    zookeeper: str
    brokers: list[BrokerState] = field(default_factory=list)
    metrics: str = ""
    """The folder of the recorder's Parquet files, or the URL of Prometheus; empty if metrics are not recorded."""
    authority: str = ""
    """The file of the authority that `--dev-tls` made, which clients have to trust; empty without that option."""

    token_file: str = ""
    """The file with the token for the brokers' status pages; empty if they need none."""

    @property
    def token(self) -> str:
        """The token for the brokers' status pages; empty if they need none.

        :raises LocalError: `token_file` cannot be read.
        """
        try:
            return Path(self.token_file).read_text() if self.token_file else ""
        except OSError as error:
            raise LocalError(f"cannot read {self.token_file}: {error.strerror}") from error

    def is_drained(self, broker: str) -> bool:
        """Return whether `migratory drain` took this broker out of service, so that the runner does not start it
        again."""
        return Path(self.workdir, DRAINED_FOLDER, broker).exists()

    @property
    def running(self) -> bool:
        """True if the runner's process lives. A later process with the same pid does not count."""
        try:
            return abs(psutil.Process(self.pid).create_time() - self.started) < 1.0
        except psutil.Error:
            return False


def state_folder(environment: Mapping[str, str] | None = None) -> Path:
    """Return the folder of state files: $XDG_STATE_HOME/migratory, by default ~/.local/state/migratory.

    :param environment: the environment variables; by default those of this process.
    :raises LocalError: the user has no home folder, such as a container's numeric user.
    """
    environment = os.environ if environment is None else environment
    base = environment.get("XDG_STATE_HOME")
    if base and Path(base).is_absolute():
        return Path(base) / "migratory"
    try:
        return Path.home() / ".local" / "state" / "migratory"
    except RuntimeError:
        raise LocalError(
            f"user {os.getuid()} has no home folder: set HOME, or set XDG_STATE_HOME to a folder"
        ) from None


def own_start_time() -> float:
    """Return the time at which this process started, in seconds since 1970."""
    return float(psutil.Process().create_time())


def write_state(state: ClusterState, folder: Path | None = None) -> Path:
    """Write the state file that `running_clusters` reads, and return its path. The caller removes the file when the
    runner ends.

    :param folder: the folder of state files; by default `state_folder()`.
    :raises LocalError: the file cannot be written.
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


def write_secret(path: Path, content: str | bytes) -> None:
    """Write a file that only this user may read, in place of an earlier one, whose permissions it does not take over.

    :raises LocalError: it cannot be written.
    """
    part = path.with_name(f"{path.name}.part")  # a broker that reads its key again finds the old file or the new one
    try:
        part.unlink(missing_ok=True)
        with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(content.encode() if isinstance(content, str) else content)
        part.replace(path)
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from error


def running_clusters(folder: Path | None = None) -> list[ClusterState]:
    """Return the clusters whose runner lives, newest first. Remove the state files of runners that were killed, and
    unreadable ones.

    :param folder: the folder of state files; by default `state_folder()`. A user without a home folder has no clusters.
    """
    clusters = []
    try:
        paths = sorted((folder or state_folder()).glob("*.json"))
    except LocalError:
        return []
    for path in paths:
        state = _read(path)
        if state is None or not state.running:
            with contextlib.suppress(OSError):  # another user's file, or a read-only disk
                path.unlink(missing_ok=True)
        else:
            clusters.append(state)
    return sorted(clusters, key=lambda state: -state.started)


def _read(path: Path) -> ClusterState | None:
    """Return the state in a file, or None for a file that cannot be read or is not a state of this release."""
    try:
        data: dict[str, Any] = json.loads(path.read_text())
        return ClusterState(**{**data, "brokers": [BrokerState(**broker) for broker in data["brokers"]]})
    except (OSError, ValueError, TypeError, KeyError):
        return None


_CLEARED = ("logs", "samples", "drained", "zookeeper-*")
"""The names in a work folder that a runner removes, or empties of its files (`samples`), when it starts a cluster."""


class WorkdirLock:
    """A lock on a work folder, because a runner clears what earlier runs left there.

    It keeps a second runner out, and every runner out of a folder that was never a work folder but holds names that a
    start would clear. The kernel releases the lock when the process ends, however it ends. The lock file stays and
    marks the folder as a work folder.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / "lock"
        self._descriptor = -1

    def acquire(self) -> None:
        """Lock the folder, which is created if it does not exist, and write this process's pid into the lock file.

        :raises LocalError: another runner holds the lock (the message names its pid), the folder cannot be written, or
            it has files that would be cleared but was never a work folder.
        """
        if not self._path.exists():
            folder = self._path.parent
            others = sorted(path.name for pattern in _CLEARED for path in folder.glob(pattern))
            if others:
                raise LocalError(
                    f"{folder} holds {', '.join(others)}, which a start would remove, but was never a work folder: "
                    "choose another --workdir"
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
                f"{self._path.parent} is in use by another runner (pid {other}): end it, or choose another --workdir"
            ) from None
        except OSError as error:
            os.close(descriptor)
            raise LocalError(f"cannot write into {self._path.parent}: {error.strerror}") from error
        self._descriptor = descriptor

    def release(self) -> None:
        """Unlock the folder, if this object holds the lock."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1
