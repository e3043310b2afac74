"""The process that `jobs.py` measures. It makes a report of all samples, which it reads as `migratory sla report`
does."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from migratory_local.processes.java import find_java, spark_home
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_spark.jobs.inputs import PrometheusServers, RecorderFolder
from migratory_spark.report.build import as_plain, build_report
from migratory_spark.session import local_session


def main(source: str, location: str, start_ms: int, end_ms: int, cores: int, work: Path, result: Path) -> None:
    with local_session(spark_home(find_java(), work), work, cores) as session:
        sample_input = (
            RecorderFolder(Path(location), None)
            if source == "parquet"
            else PrometheusServers(location, None, start_ms, end_ms, {})
        )
        samples = sample_input.samples(session)
        # The first samples are all zero, so a window that begins a step before them has the same truth.
        report = as_plain(build_report(session, samples, start_ms / 1000 - 1, end_ms / 1000, DEFAULT_OBJECTIVES))
    result.write_text(json.dumps(report, allow_nan=False))


if __name__ == "__main__":
    source, location, start, end, cores, work, result = sys.argv[1:]
    main(source, location, int(start), int(end), int(cores), Path(work), Path(result))
