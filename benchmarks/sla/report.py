"""The process that `jobs.py` measures. It makes a report of all samples, which it reads as `migratory sla report`
does."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from migratory_local.processes.java import find_java, spark_home
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_spark.jobs.inputs import PrometheusServers, RecorderFolder
from migratory_spark.report.build import as_plain, build_report
from migratory_spark.session import local_session

from benchmarks.machine import cpu


def load_libraries(numbers: Iterable[int]) -> Iterable[int]:
    import pyarrow.parquet  # noqa: F401

    yield from numbers


def main(source: str, location: str, start_ms: int, end_ms: int, cores: int, work: Path, result: Path) -> None:
    began = time.monotonic()
    with local_session(spark_home(find_java(), work), work, cores) as session:
        # An empty task on each core ends the start: the JVM has loaded its classes, and the Python workers run.
        session.sparkContext.parallelize(range(cores), cores).mapPartitions(load_libraries).collect()
        start_up = {"seconds": time.monotonic() - began, "cpu": cpu([os.getpid()]).total}
        began = time.monotonic()
        sample_input = (
            RecorderFolder(Path(location), None)
            if source == "parquet"
            else PrometheusServers(location, None, start_ms, end_ms, {})
        )
        samples = sample_input.samples(session)
        # The first samples are all zero, so a window that begins a step before them has the same truth.
        report = as_plain(build_report(session, samples, start_ms / 1000 - 1, end_ms / 1000, DEFAULT_OBJECTIVES))
        rest = {"seconds": time.monotonic() - began, "cpu": cpu([os.getpid()]).total - start_up["cpu"]}
    result.write_text(json.dumps({"report": report, "start_up": start_up, "rest": rest}, allow_nan=False))


if __name__ == "__main__":
    source, location, start, end, cores, work, result = sys.argv[1:]
    main(source, location, int(start), int(end), int(cores), Path(work), Path(result))
