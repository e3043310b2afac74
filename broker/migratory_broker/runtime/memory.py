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
        if pid not in self._read or now - self._read[pid][0] >= KEPT:
            # those that are gone are asked about no more
            self._read = {other: kept for other, kept in self._read.items() if now - kept[0] < KEPT}
            self._read[pid] = (now, pss(pid))
        return self._read[pid][1]

    def total(self, others: Iterable[int] = ()) -> int:
        """Of this process and others."""
        return sum(self.pss(pid) for pid in {os.getpid(), *others})
