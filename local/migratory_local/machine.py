"""What this machine must have before anything is started: room in the work folder, descriptors, Linux."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path

from migratory_local.errors import LocalError

MEMBER_BYTES = 24 * 2**20
"""Room for a ZooKeeper member's transaction logs and for logs of a run."""
SPARE_DESCRIPTORS = 300
"""Of a broker besides its clients: peers, ZooKeeper, listeners, libraries, connections that are being closed."""


def check_platform(platform: str = sys.platform) -> None:
    """:raises LocalError: elsewhere than on Linux, where processes can't be tied to the runner's life."""
    if platform != "linux":
        raise LocalError(f"the local runner needs Linux (prctl, /proc), not {platform}; a container will do")


def check_room(folder: Path, members: int) -> None:
    """:raises LocalError: when the disk of the work folder is (almost) full."""
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        total, _, free = shutil.disk_usage(existing)
    except OSError as error:
        raise LocalError(f"cannot use {folder} as work folder: {error.strerror}") from error
    if not total:
        raise LocalError(f"cannot use {folder} as work folder: {existing} is no place for files")
    needed = MEMBER_BYTES * members
    if free < needed:
        raise LocalError(
            f"{folder}: {free // 2**20} MiB free, {needed // 2**20} MiB are needed; make room or choose --workdir"
        )


def allow_descriptors(clients: int) -> None:
    """Raises the soft limit of this process, which its children inherit: one process can then hold `clients` sockets.

    :raises LocalError: when the hard limit is too low, naming the number that would be possible.
    """
    needed = clients + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        possible = max(0, hard - SPARE_DESCRIPTORS)
        raise LocalError(
            f"a process may open {hard:,} files here (ulimit -Hn), but {needed:,} may be needed for {clients:,} "
            f"clients on one broker: raise the limit, or ask for fewer ({possible:,})"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
