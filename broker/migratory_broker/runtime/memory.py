"""What processes hold of the machine's memory: pages that several share count for each by its share (PSS)."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable

KEPT = 10.0
"""Seconds; reading it takes the kernel milliseconds of a large process."""


def pss(pid: int) -> int:
    """Bytes; 0 where it can't be read."""
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            for line in file:
                if line.startswith(b"Pss:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass  # it is gone, or this is no Linux
    return 0


class Reader:
    """Reads each process's once in `KEPT` seconds at most."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._read: dict[int, tuple[float, int]] = {}

    def pss(self, pid: int) -> int:
        now = self._clock()
        at, found = self._read.get(pid, (now - KEPT, 0))
        if now - at >= KEPT:
            found = pss(pid)
            self._read[pid] = (now, found)
        return found

    def total(self, others: Iterable[int] = ()) -> int:
        """Of this process and others."""
        pids = {os.getpid(), *others}
        self._read = {pid: kept for pid, kept in self._read.items() if pid in pids}
        return sum(self.pss(pid) for pid in pids)
