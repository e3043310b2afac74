"""What the kernel says about processes and about itself: CPU time, memory, system calls, and where processes may run.
Linux only."""

from __future__ import annotations

import contextlib
import os
import platform
import re
import resource
import shutil
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

PAGE = os.sysconf("SC_PAGE_SIZE")
CPUCLOCK_SCHED = 2


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
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += family(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it ended just now
    return found


def families(pids: Iterable[int]) -> list[int]:
    return [one for pid in pids for one in family(pid)]


def _process_cpu(pid: int) -> Cpu:
    """The kernel tells user and system apart in ticks of 10 ms only, and their sum in nanoseconds: a process's own CPU
    clock (see clock_getcpuclockid(3); the number of the clock is made of the pid). The sum is shared out as the ticks
    are."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    user, system = int(fields[11]), int(fields[12])
    total = time.clock_gettime((~pid << 3) | CPUCLOCK_SCHED)
    share = user / (user + system) if user + system else 0.0
    return Cpu(total * share, total * (1 - share))


def cpu(pids: Iterable[int]) -> Cpu:
    """Of processes and all below them."""
    user = system = 0.0
    for one in families(pids):
        try:
            own = _process_cpu(one)
        except OSError:
            continue  # it ended just now
        user += own.user
        system += own.system
    return Cpu(user, system)


def pss(pids: Iterable[int]) -> int:
    """Proportional set size in bytes, of processes and all below them."""
    total = 0
    for one in families(pids):
        try:
            text = Path(f"/proc/{one}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            # It ended just now, or nobody waits for it: a process that is only an entry in the table has no memory.
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


_KERNEL = ("Slab", "KernelStack", "PageTables")


def kernel_memory() -> int:
    """Bytes that the kernel holds for everybody: sockets and their buffers above all. Both ends of every connection of
    this machine are in it, the receivers' too."""
    table = dict(
        re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    )  # fmt: skip
    buffers = re.search(r"^TCP: .* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    return sum(int(table.get(name, 0)) for name in _KERNEL) * 1024 + (int(buffers[1]) * PAGE if buffers else 0)


def pin(pids: Iterable[int], allowed: Iterable[int]) -> None:
    """Every thread that the processes and those below them have now, and all that these will start."""
    places = set(allowed)
    for one in families(pids):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{one}/task"):
                os.sched_setaffinity(int(task), places)


def cores() -> tuple[int, int]:
    """(for the server, for everything else); the same one on a machine with a single core."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[min(1, len(allowed) - 1)]


def allow_descriptors() -> None:
    """As many as the machine lets this process have, and all that it will start: each connection takes one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_available() -> int:
    found = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(found[1]) * 1024 if found else 0


def _tracer(pid: int) -> int:
    """The process that traces this one; 0: none."""
    try:
        found = re.search(r"^TracerPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(found[1]) if found else 0


class CallCounter:
    """Counts system calls of processes with `strace -c` between `start` and `stop`. It slows them down several times,
    so nothing else is measured meanwhile."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = families(pids)
        self._process: subprocess.Popen[str] | None = None

    @staticmethod
    def available() -> bool:
        return shutil.which("strace") is not None

    def start(self) -> None:
        options = [part for pid in self._pids for part in ("-p", str(pid))]
        self._process = subprocess.Popen(
            ["strace", "-c", "-f", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    @property
    def attached(self) -> bool:
        """To all of them: what they do before is not counted."""
        return all(_tracer(pid) for pid in self._pids)

    def stop(self) -> dict[str, int] | None:
        """Calls by name; None when strace could not attach (it needs the right to trace)."""
        assert self._process is not None
        self._process.send_signal(2)
        try:
            _, text = self._process.communicate(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.communicate()
            return None
        return parse_strace(text)


def parse_strace(text: str) -> dict[str, int] | None:
    """The summary of `strace -c`: the fourth column is the number of calls, the last the name."""
    calls = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 5 and re.fullmatch(r"[\d.]+", fields[0]) and fields[3].isdigit() and fields[-1] != "total":
            calls[fields[-1]] = int(fields[3])
    return calls or None


def describe() -> dict[str, object]:
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * PAGE / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }
