"""Readings of the Linux kernel about processes and the machine: CPU time, memory, system calls (by strace), and the
description of the machine for results.

Also two settings: CPU affinity, and the limit of descriptors.
"""

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

PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_CPUCLOCK_SCHED = 2
"""The kind of clock that counts a process's CPU time, as in the kernel's posix-timers.h."""


class Cpu(NamedTuple):
    """CPU seconds in user mode and in the kernel."""

    user: float
    system: float

    def __sub__(self, other: Cpu) -> Cpu:
        return Cpu(self.user - other.user, self.system - other.system)

    @property
    def total(self) -> float:
        return self.user + self.system


def process_tree(pid: int) -> list[int]:
    """Return the ids of the process and all its descendants."""
    tree = [pid]
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                tree += process_tree(int(child))
    except (FileNotFoundError, ProcessLookupError):
        pass  # it has just ended
    return tree


def process_trees(pids: Iterable[int]) -> list[int]:
    """Return the ids of the processes and all their descendants."""
    return [number for pid in pids for number in process_tree(pid)]


def _process_cpu(pid: int) -> Cpu:
    """Return the CPU time of a process.

    The kernel separates user and system time in ticks of 10 ms only, but has their sum in nanoseconds, in the process's
    CPU clock, whose number is computed from the pid (clock_getcpuclockid(3)). The sum is divided by the ticks'
    ratio."""
    fields = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    user, system = int(fields[11]), int(fields[12])
    total = time.clock_gettime((~pid << 3) | _CPUCLOCK_SCHED)
    share = user / (user + system) if user + system else 0.0
    return Cpu(total * share, total * (1 - share))


def cpu(pids: Iterable[int]) -> Cpu:
    """Return the CPU time of processes and their descendants."""
    user = system = 0.0
    for number in process_trees(pids):
        try:
            own = _process_cpu(number)
        except OSError:
            continue  # it has just ended
        user += own.user
        system += own.system
    return Cpu(user, system)


def pss(pids: Iterable[int]) -> int:
    """Return the proportional set size in bytes of processes and their descendants."""
    total = 0
    for number in process_trees(pids):
        try:
            text = Path(f"/proc/{number}/smaps_rollup").read_text()
        except (FileNotFoundError, ProcessLookupError):
            # It has just ended, or is a zombie, which has no memory.
            continue
        for line in text.splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1]) * 1024
    return total


_KERNEL = ("Slab", "KernelStack", "PageTables")


def kernel_memory() -> int:
    """Return the bytes of the kernel's own memory, mainly sockets and their buffers. It includes both ends of every
    connection on this machine."""
    table = dict(
        re.findall(r"^(\w+):\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    )  # fmt: skip
    buffers = re.search(r"^TCP: .* mem (\d+)", Path("/proc/net/sockstat").read_text(), re.MULTILINE)
    return sum(int(table.get(name, 0)) for name in _KERNEL) * 1024 + (int(buffers[1]) * PAGE_BYTES if buffers else 0)


def pin(pids: Iterable[int], allowed: Iterable[int]) -> None:
    """Pin every thread of the processes and their descendants, and so all threads that these will start, to the
    cores `allowed`."""
    places = set(allowed)
    for number in process_trees(pids):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            for task in os.listdir(f"/proc/{number}/task"):
                os.sched_setaffinity(int(task), places)


def cores() -> tuple[int, int]:
    """Return (core of the server, core of everything else), the same one on a machine with a single core."""
    allowed = sorted(os.sched_getaffinity(0))
    return allowed[0], allowed[min(1, len(allowed) - 1)]


def allow_descriptors() -> None:
    """Raise the limit of descriptors to the maximum, for this process and those that it starts: a connection takes
    one."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def memory_available() -> int:
    """Return the bytes of memory that new processes can use."""
    match = re.search(r"^MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text(), re.MULTILINE)
    return int(match[1]) * 1024 if match else 0


def _tracer(pid: int) -> int:
    """Return the id of the process that traces this one, or 0."""
    try:
        match = re.search(r"^TracerPid:\s+(\d+)", Path(f"/proc/{pid}/status").read_text(), re.MULTILINE)
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return int(match[1]) if match else 0


class CallCounter:
    """A counter of the system calls of processes between `start` and `stop`, by `strace -c`. It slows the processes
    down several times, so nothing else may be measured meanwhile."""

    def __init__(self, pids: Iterable[int]) -> None:
        self._pids = process_trees(pids)
        self._process: subprocess.Popen[str] | None = None

    @staticmethod
    def available() -> bool:
        """Return whether strace is installed."""
        return shutil.which("strace") is not None

    def start(self) -> None:
        """Start strace, which counts calls once it has `attached`."""
        options = [part for pid in self._pids for part in ("-p", str(pid))]
        self._process = subprocess.Popen(
            ["strace", "-c", "-f", *options], stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True
        )

    @property
    def attached(self) -> bool:
        """True once strace has attached to all processes. Earlier calls are not counted."""
        return all(_tracer(pid) for pid in self._pids)

    def stop(self) -> dict[str, int] | None:
        """Stop strace. Return the calls by name, or None when it could not attach, which needs the permission to
        trace."""
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
    """Return the calls by name from the summary of `strace -c`, None if there are none. The fourth column is the
    number, the last the name."""
    calls = {}
    for line in text.splitlines():
        fields = line.split()
        if len(fields) >= 5 and re.fullmatch(r"[\d.]+", fields[0]) and fields[3].isdigit() and fields[-1] != "total":
            calls[fields[-1]] = int(fields[3])
    return calls or None


def describe() -> dict[str, object]:
    """Return the description of this machine for results."""
    model = "unknown"
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": model,
        "memory_gib": round(os.sysconf("SC_PHYS_PAGES") * PAGE_BYTES / 2**30, 1),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "load_average": os.getloadavg()[0],
    }
