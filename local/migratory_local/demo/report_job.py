"""Makes the demo's SLA report, with Spark in a process of its own.

Spark's JVM then lives no longer than that process, and a Ctrl-C ends both. The process is `python -m
migratory_local.demo.report_job REQUEST.json REPORT.json`; `make_report` starts it and waits.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from migratory_resources import Objective

from migratory_local import LocalError
from migratory_local.processes.java import find_java, spark_home
from migratory_local.processes.process import Process, describe_exit

JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of the report's JVM, which lives for half a minute. With the second compiler it took 52 s of CPU time,
without it 28."""
_TIMEOUT = 300.0
"""Seconds for the report. It takes half a minute on an idle machine."""


async def make_report(
    workdir: Path,
    *,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[dict[str, Any]],
    page: Path | None,
    notes: Sequence[str],
) -> dict[str, Any]:
    """Make the report from the samples in the work folder, in a process of its own, and return it as plain data. The
    other parameters are those of `write_request`. The process has ended when this returns or raises.

    :raises LocalError: there is no Java, the report fails or takes too long, or the folder cannot be written.
    """
    request, answer = workdir / "report-request.json", workdir / "report.json"
    try:
        answer.unlink(missing_ok=True)
        java_home = spark_home(await asyncio.to_thread(find_java), workdir)
        write_request(
            request,
            samples=workdir / "samples",
            start=start,
            end=end,
            objectives=objectives,
            incidents=incidents,
            java_home=java_home,
            page=page,
            notes=notes,
        )
    except OSError as error:
        raise LocalError(f"cannot write into {workdir}: {error.strerror}") from error
    command = [sys.executable, "-P", "-m", "migratory_local.demo.report_job", str(request), str(answer)]
    environment = {**os.environ, "JDK_JAVA_OPTIONS": JAVA_OPTIONS}
    job = Process("sla-report", command, workdir / "logs" / "sla-report.log", environment=environment)
    job.start()
    try:
        deadline = time.monotonic() + _TIMEOUT
        while job.alive:
            if time.monotonic() > deadline:
                raise LocalError(f"the SLA report took more than {_TIMEOUT:g} s; its log ends:\n{job.tail()}")
            await asyncio.sleep(0.1)
    finally:
        job.kill()
    if job.exit_code != 0:
        raise LocalError(f"the SLA report {describe_exit(job.exit_code)}; its log ends:\n{job.tail()}")
    report: dict[str, Any] = json.loads(answer.read_text())
    return report


def write_request(
    path: Path,
    *,
    samples: Path,
    start: float,
    end: float,
    objectives: Sequence[Objective],
    incidents: Sequence[dict[str, Any]],
    java_home: Path,
    page: Path | None = None,
    notes: Sequence[str] = (),
) -> None:
    """Write the input of the report process to the file `path`. Raise OSError if it cannot be written.

    :param samples: the folder of the recorder's files.
    :param start: start of the window in seconds since 1970; likewise `end`.
    :param objectives: the objectives that the report judges.
    :param incidents: incidents that the demo caused: kind, broker, at, until (seconds since 1970).
    :param java_home: the value of JAVA_HOME for Spark.
    :param page: file for the report as HTML; None for no page.
    :param notes: sentences that the report shows to its reader.
    """
    request = {
        "samples": str(samples),
        "start": start,
        "end": end,
        "objectives": [objective.model_dump(mode="json", by_alias=True, exclude_none=True) for objective in objectives],
        "incidents": list(incidents),
        "java_home": str(java_home),
        "notes": list(notes),
        "page": None if page is None else str(page.absolute()),
    }
    path.write_text(json.dumps(request))


def main(request_path: Path, report_path: Path) -> None:
    """Make the report that the file `request_path` describes (`write_request`). Write it as JSON to `report_path`, and
    as HTML if the request names a page. This is the body of the report process."""
    from migratory_spark.report.build import KnownIncident, as_plain, build_report
    from migratory_spark.session import local_session

    request = json.loads(request_path.read_text())
    with local_session(Path(request["java_home"]), report_path.parent) as session:
        report = build_report(
            session,
            Path(request["samples"]),
            request["start"],
            request["end"],
            [Objective.model_validate(objective) for objective in request["objectives"]],
            [KnownIncident(**incident) for incident in request["incidents"]],
        )
    report = msgspec.structs.replace(report, notes=[*request["notes"], *report.notes])
    if request["page"] is not None:
        from migratory_spark.render.page import render_page

        Path(request["page"]).write_text(render_page(report))
    report_path.write_text(json.dumps(as_plain(report)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
