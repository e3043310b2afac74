"""Checks this machine before anything is started: the platform, disk space, and file descriptors, whose limit is
raised."""

from __future__ import annotations

import resource
import shutil
import sys
from pathlib import Path

from migratory_local import LocalError

MEMBER_BYTES = 24 * 2**20
"""Bytes of disk per ZooKeeper member: its transaction logs, and its share of the logs of a run."""
SPARE_DESCRIPTORS = 300
"""Descriptors of a broker besides its clients: peers, ZooKeeper, listeners, libraries, connections that are closing."""


def check_platform(platform: str = sys.platform) -> None:
    """Check that the platform can end processes with their runner.

    :raises LocalError: the platform is not Linux.
    """
    if platform != "linux":
        raise LocalError(f"the local runner needs Linux (prctl, /proc), not {platform}; run it in a Linux container")


def check_disk_space(folder: Path, members: int) -> None:
    """Check that the disk of the work folder has `MEMBER_BYTES` free for each of the `members` ZooKeeper members. The
    folder need not exist.

    :raises LocalError: there is too little space, or the folder cannot be used.
    """
    existing = next(parent for parent in (folder, *folder.absolute().parents) if parent.exists())
    try:
        total, _, free = shutil.disk_usage(existing)
    except OSError as error:
        raise LocalError(f"cannot use {folder} as work folder: {error.strerror}") from error
    if not total:
        raise LocalError(f"cannot use {folder} as work folder: the filesystem of {existing} holds no files")
    needed = MEMBER_BYTES * members
    if free < needed:
        raise LocalError(
            f"{folder}: {free // 2**20} MiB are free, but {needed // 2**20} MiB are needed; free some space or choose "
            "--workdir"
        )


def raise_descriptor_limit(clients: int) -> None:
    """Raise this process's soft limit of open files to `clients` + `SPARE_DESCRIPTORS`, so that a broker can hold
    `clients` sockets: child processes inherit the limit. Never lower it.

    :raises LocalError: the hard limit is too low; the message names the number of clients that it allows.
    """
    needed = clients + SPARE_DESCRIPTORS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard != resource.RLIM_INFINITY and hard < needed:
        possible = max(0, hard - SPARE_DESCRIPTORS)
        raise LocalError(
            f"a process may open {hard:,} files here (ulimit -Hn), but {needed:,} may be needed for {clients:,} "
            f"clients on one broker: raise the limit, or use fewer subscribers (at most {possible:,} per broker)"
        )
    if soft != resource.RLIM_INFINITY and soft < needed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))
