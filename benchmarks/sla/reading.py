"""The measurement of the reader alone, without Spark: samples per second of one process, and the server's CPU time."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass

import msgspec

from benchmarks.machine import cpu
from benchmarks.sla.samples import START_MS, Fleet

INTERFACES = ("remote_read", "remote_read_samples", "range_selector")
MATCHERS = '{__name__=~"migratory_.*"}'

# In a process of its own: what is measured is its whole CPU time for the work, begun with nothing remembered.
_CHILD = """
import json, sys, time
from migratory_spark.prometheus import partitions
from migratory_spark.prometheus.arrow import ArrowBatches
from migratory_spark.prometheus.options import parse_options
url, matchers, api, shape, start, end = sys.argv[1:]
options = parse_options({"url": url, "matchers": matchers, "api": api, "shape": shape})
batches = ArrowBatches(options.shape, options.columns)
began, used, samples, total = time.perf_counter(), time.process_time(), 0, 0.0
for begin, until in partitions.cut(int(start), int(end)):
    for block in partitions.read(options, begin, until):
        samples += len(block)
        total += float(block.values.sum())
        for batch in batches.from_blocks([block]):
            pass
print(json.dumps({"samples": samples, "total": total, "wall": time.perf_counter() - began,
                  "cpu": time.process_time() - used}))
"""


@dataclass(slots=True)
class ReaderResult:
    interface: str
    shape: str
    samples: int
    wall: float
    cpu: float
    server_cpu: float

    @property
    def per_cpu_second(self) -> float:
        return self.samples / self.cpu


class _ChildResult(msgspec.Struct):
    samples: int
    total: float
    wall: float
    cpu: float


def measure(fleet: Fleet, url: str, server: int, interface: str, shape: str) -> ReaderResult:
    """Read all samples of the fleet from the server (URL, process id `server`), and return the costs.

    Raise RuntimeError when the samples read are not those of the fleet.
    """
    before = cpu([server])
    command = [sys.executable, "-c", _CHILD, url, MATCHERS, interface, shape, str(START_MS), str(fleet.end_ms + 1)]
    completed = subprocess.run(command, capture_output=True, text=True, check=False)
    if completed.returncode:
        raise RuntimeError(f"reading failed: {completed.stderr[-2000:]}")
    result = msgspec.json.decode(completed.stdout, type=_ChildResult)
    expected = float(sum(int(block.values.sum()) for block in fleet.blocks()))
    if (result.samples, result.total) != (fleet.samples, expected):
        raise RuntimeError(
            f"{interface} read {result.samples} samples, sum {result.total}; there are {fleet.samples}, {expected}"
        )
    return ReaderResult(interface, shape, result.samples, result.wall, result.cpu, (cpu([server]) - before).total)
