"""The SLA report as a process of its own: `python -m migratory_local.report_job REQUEST.json REPORT.json`.

Spark's JVM then lives no longer than that process, and a Ctrl-C in the middle of it ends both.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
) -> None:
    """`incidents`: kind, broker, at, until. Times are wall-clock seconds."""
    request = {
        "samples": str(samples),
        "start": start,
        "end": end,
        "objectives": [objective.model_dump(mode="json", by_alias=True, exclude_none=True) for objective in objectives],
        "incidents": list(incidents),
        "java_home": str(java_home),
    }
    path.write_text(json.dumps(request))


def main(request_path: Path, report_path: Path) -> None:
    from migratory_spark.report import Incident, sla_report
    from migratory_spark.session import local_session

    request = json.loads(request_path.read_text())
    with local_session(Path(request["java_home"]), report_path.parent) as session:
        report = sla_report(
            session,
            Path(request["samples"]),
            request["start"],
            request["end"],
            [Objective.model_validate(objective) for objective in request["objectives"]],
            [Incident(**incident) for incident in request["incidents"]],
        )
    report_path.write_text(json.dumps(report, allow_nan=False))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
