"""The measurement of a whole SLA report in a process of its own: its time, and the memory of all its processes."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks import machine
from benchmarks.sla.samples import START_MS, Fleet

LIMIT = 6 * 3600.0
_EVERY = 0.25  # seconds between two looks at memory


@dataclass(slots=True)
class ReportCosts:
    """The result of one report. `memory` is bytes: the highest sum of PSS of driver, executors and Python workers at
    one moment. `seconds` is the wall-clock time. `cpu` is the CPU seconds of all these processes, by which sizes can be
    compared on a busy machine. Both begin when Spark has started; `start_seconds` and `start_cpu` are those before."""

    source: str
    samples: int
    cores: int
    seconds: float
    cpu: float
    memory: int
    start_seconds: float
    start_cpu: float
    report: dict[str, Any]


def measure(fleet: Fleet, source: str, location: str, cores: int, work: Path) -> ReportCosts:
    """Make a report of the fleet's samples, check it, and return its costs.

    `source` is "prometheus" (`location` is its URL) or "parquet" (`location` is the folder). Raise RuntimeError when
    the report fails, or its counts differ from the samples.
    """
    work.mkdir(parents=True, exist_ok=True)
    result = work / "report.json"
    command = [
        sys.executable,
        "-m",
        "benchmarks.sla.report",
        source,
        location,
        str(START_MS),
        str(fleet.end_ms),
        str(cores),
    ]
    began = time.monotonic()
    with (work / "report.log").open("wb") as log:
        process = subprocess.Popen([*command, str(work), str(result)], stdout=log, stderr=log)
    memory = 0
    try:
        while process.poll() is None:
            memory = max(memory, _memory(process.pid))
            if time.monotonic() - began > LIMIT:
                raise RuntimeError(f"the report took longer than {LIMIT:g} s")
            time.sleep(_EVERY)
    finally:
        if process.poll() is None:
            process.kill()
            process.wait(30)
    if process.returncode:
        raise RuntimeError(f"the report failed: {(work / 'report.log').read_text()[-3000:]}")
    found: dict[str, Any] = json.loads(result.read_text())
    report, start, rest = found["report"], found["start_up"], found["rest"]
    _compare(fleet, report)
    return ReportCosts(
        source, fleet.samples, cores, rest["seconds"], rest["cpu"], memory, start["seconds"], start["cpu"], report
    )


def _compare(fleet: Fleet, report: dict[str, Any]) -> None:
    truth = fleet.truth()
    delivery = report["delivery"]
    for name in ("expected", "received", "lost", "duplicates", "reordered"):
        if delivery[name] != truth[f"migratory_{name}_total"]:
            raise RuntimeError(
                f"{name}: the report says {delivery[name]}, the truth is {truth[f'migratory_{name}_total']}"
            )
    count = report["latency_ms"]["all"]["count"]
    if count != truth["migratory_delivery_latency_seconds_count"]:
        raise RuntimeError(f"latencies: the report counts {count}")


def _memory(pid: int) -> int:
    """Return the bytes of PSS of a process and its descendants. Memory that forked workers share counts once."""
    try:
        return machine.pss([pid])
    except (FileNotFoundError, ProcessLookupError):
        # One ended between being listed and being looked at; the next look is soon.
        return 0
