"""What the kernel says about processes: CPU time, memory, and where they may run. Linux only."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import NamedTuple

TICK = os.sysconf("SC_CLK_TCK")


class Cpu(NamedTuple):
    """Seconds."""

    user: float
    system: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.user - other.user, self.system - other.system)

    @property
    def total(self) -> float:
        return self.user + self.system


def family(pid: int) -> list[int]:
    """The process and everything below it."""
    found = [pid]
    for task in Path(f"/proc/{pid}/task").iterdir():
        for child in (task / "children").read_text().split():
            found += family(int(child))
    return found


def cpu(pid: int) -> Cpu:
    """Of a process and all below it."""
    user = system = 0
    for one in family(pid):
        fields = Path(f"/proc/{one}/stat").read_text().rsplit(") ", 1)[1].split()
        user += int(fields[11])
        system += int(fields[12])
    return Cpu(user / TICK, system / TICK)


def pss(pid: int) -> int:
    """Proportional set size in bytes, of a process and all below it."""
    total = 0
    for one in family(pid):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            # It ended just now, or nobody waits for it: a process that is only an entry in the table has no memory.
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


def pin(pid: int, core: int) -> None:
    """Every thread that the process and those below it have now, and all that these will start."""
    for one in family(pid):
        for task in os.listdir(f"/proc/{one}/task"):
            os.sched_setaffinity(int(task), {core})


def cores() -> tuple[int, int]:
    """(for the server, for everything else); the same one on a machine with a single core."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[min(1, len(allowed) - 1)]


def describe() -> dict[str, object]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }
