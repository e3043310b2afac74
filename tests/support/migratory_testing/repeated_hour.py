"""Days on which an hour is repeated (the end of daylight saving time), and reports of them.

A test makes the samples. `TZ=ZONE python -m migratory_testing.repeated_hour FOLDER` makes a report of each day of which
FOLDER has samples, as a machine in another time zone would.
"""

from __future__ import annotations

import json
import sys
from datetime import datetime
from pathlib import Path
from typing import NamedTuple

from migratory_local.processes.java import find_java, spark_home
from migratory_resources.objectives import Objective
from migratory_spark.report.build import sla_report
from migratory_spark.session import local_session
from pyspark.sql import SparkSession

from migratory_testing.recordings import Sample, write_parquet

ATTEMPTS = 25 * 240
"""Publications of a day, one every 15 s."""


class RepeatedHour(NamedTuple):
    """A day on which an hour is repeated. Publishing fails for a quarter of an hour from `down` on, in the first of the
    two hours. `repeated` are the local times at which the two hours start."""

    zone: str
    start: str
    down: str
    repeated: tuple[str, str]

    @property
    def first(self) -> float:
        return datetime.fromisoformat(self.start).timestamp()

    def folder(self, below: Path) -> Path:
        return below / self.zone.replace("/", "-")


REPEATED_HOURS = (
    RepeatedHour(
        "Europe/Bucharest", "2025-10-25T21:00:00Z", "2025-10-26T00:30:00Z", ("T03:00:00+03:00", "T03:00:00+02:00")
    ),
    RepeatedHour(
        "America/New_York", "2025-11-02T04:00:00Z", "2025-11-02T05:30:00Z", ("T01:00:00-04:00", "T01:00:00-05:00")
    ),
)


def record(day: RepeatedHour, below: Path) -> None:
    """Write the samples of the day below a folder."""
    failing = datetime.fromisoformat(day.down).timestamp()
    labels = {"cluster": "c", "broker": "b0", "job": "load", "instance": "w"}
    samples: list[Sample] = []
    good = bad = 0
    for slot in range(ATTEMPTS + 1):
        at = day.first + 15 * slot
        samples += [
            Sample("migratory_publish_seconds_count", labels, round(at * 1000), good),
            Sample("migratory_publish_errors_total", labels | {"reason": "timeout"}, round(at * 1000), bad),
        ]
        is_down = failing <= at < failing + 900
        good, bad = good + (not is_down), bad + is_down
    write_parquet(samples, day.folder(below))


def report(session: SparkSession, day: RepeatedHour, below: Path) -> str:
    """Return the day's report as JSON."""
    objectives = [
        {"name": "open", "type": "availability", "target": "99",
         "window": {"calendar": "day", "zone": day.zone}},
        {"name": "slots", "type": "availability", "target": "99.5", "slices": {"length": "15s", "share": "100"}},
    ]  # fmt: skip
    made = sla_report(
        session,
        day.folder(below),
        day.first,
        day.first + 25 * 3600,
        [Objective.model_validate(objective) for objective in objectives],
        zone=day.zone,
    )
    return json.dumps(made, indent=1, allow_nan=False)


def main(below: Path) -> None:
    with local_session(spark_home(find_java(), below), below, cores=2) as session:
        for day in REPEATED_HOURS:
            (day.folder(below) / "report.json").write_text(report(session, day, below))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
