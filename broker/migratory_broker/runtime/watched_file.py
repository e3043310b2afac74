"""Files that are read again while the broker runs, when they were replaced or written: the configuration, keys,
revocations and certificates. It may touch only the file system."""

from __future__ import annotations

import os
from pathlib import Path

FileState = tuple[int, int, int]
"""Inode, size and modification time of a file. One of them changes when the file is written, or replaced as a whole (as
Kubernetes does with Secrets)."""


class WatchedFile:
    """A file that is read when its state differs from that of the last successful read, and at the first time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: FileState | None = None

    def read(self, limit: int = -1) -> bytes | None:
        """Return the content if the file changed since the last successful read, or at the first read, else None.

        Raises OSError. The next call then reads the file again: permissions or the descriptors of the process can
        change while the state of the file stays.

        :param limit: the largest number of bytes to return; the rest of a longer file is left out. -1: no limit.
        """
        before, self._state = self._state, None
        state = file_state(self.path)
        content = None
        if state != before:
            with self.path.open("rb") as file:
                content = file.read(limit)
        self._state = state
        return content


def file_state(path: Path) -> FileState:
    """Return the state of a file. Raises OSError."""
    result = os.stat(path)
    return result.st_ino, result.st_size, result.st_mtime_ns
