"""The SLA report as a process of its own: `python -m migratory_local.report_job REQUEST.json REPORT.json`.

Spark's JVM then lives no longer than that process, and a Ctrl-C in the middle of it ends both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
from migratory_resources import Objective


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
    """`incidents`: kind, broker, at, until. Times are wall-clock seconds. `page`: where the report goes as HTML.
    `notes`: what its reader should know besides."""
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
    from migratory_spark.report import Incident, as_plain, build_report
    from migratory_spark.session import local_session

    request = json.loads(request_path.read_text())
    with local_session(Path(request["java_home"]), report_path.parent) as session:
        report = build_report(
            session,
            Path(request["samples"]),
            request["start"],
            request["end"],
            [Objective.model_validate(objective) for objective in request["objectives"]],
            [Incident(**incident) for incident in request["incidents"]],
        )
    report = msgspec.structs.replace(report, notes=[*request["notes"], *report.notes])
    if request["page"] is not None:
        from migratory_spark.html.page import render_page

        Path(request["page"]).write_text(render_page(report))
    report_path.write_text(json.dumps(as_plain(report)))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
