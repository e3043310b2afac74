"""`recorder_compact.py --samples DIR --to DIR`: the recorder's many small files as few large ones, by day.

Sorted by series and time, which is how reports read them, and about a tenth in size. The samples stay as they are:
their number and the sum of their values are compared before the job says that it is done. The source is left alone.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migratory_spark.jobs.exits import BadInput, Ending, Unreadable
from migratory_spark.jobs.inputs import Folder
from migratory_spark.jobs.options import options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from migratory_spark.jobs.run import OpenSession

COMPACT = (
    click.option("--samples", type=click.Path(path_type=Path), required=True, metavar="DIR",
                 help="Folder of the recorder's files."),
    click.option("--to", type=click.Path(path_type=Path), required=True, metavar="DIR",
                 help="A folder that is empty or not there yet."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Content:
    """What a copy must have, too. `digest` is a sum over the rows' hashes: their order does not matter."""

    rows: int
    digest: int


def run_compact(samples: Path, to: Path, open_session: OpenSession) -> int:
    """Raises BadInput, or Unreadable where Spark fails or the copy is not what the source was."""
    source = Folder(samples, None)
    source.check()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise BadInput(f"--to: {to} is not an empty folder")
    if samples.resolve() in (to.resolve(), *to.resolve().parents):
        raise BadInput(f"--to: {to} is inside {samples}: its files would be samples of the source")
    from py4j.protocol import Py4JError
    from pyspark.errors import PySparkException

    try:
        with open_session() as session:
            table = source.read(session)
            before = content(table)
            _write(table, to)
            after = content(Folder(to, None).read(session))
    except (PySparkException, Py4JError) as error:
        raise Unreadable(f"Spark could not read or write: {str(error).splitlines()[0]}") from error
    if before != after:
        raise Unreadable(f"{to} holds {after.rows:,} samples, not the {before.rows:,} of {samples}: don't use it")
    files, size = _size(samples)
    files_after, size_after = _size(to)
    click.echo(f"{before.rows:,} samples: {files:,} files of {size:,} bytes to {files_after:,} of {size_after:,}")
    return 0


def content(table: DataFrame) -> Content:
    from pyspark.sql import functions as F

    labels = F.array_sort(F.map_entries("labels"))
    row_hash = F.xxhash64("metric", labels, "timestamp", "value").cast("decimal(38,0)")
    found = table.agg(F.count("*"), F.coalesce(F.sum(row_hash), F.lit(0))).first()
    assert found is not None  # an aggregate without grouping always answers
    return Content(found[0], int(found[1]))


def _write(table: DataFrame, to: Path) -> None:
    from pyspark.sql import functions as F

    series = F.xxhash64("metric", F.array_sort(F.map_entries("labels")))
    day = F.to_date(F.timestamp_millis("timestamp"))
    (
        table.withColumn("day", day)
        # One file a day; a day of a large cluster in one task is sorted on disk.
        .repartition("day")
        .sortWithinPartitions("day", "metric", series, "timestamp")
        .write.partitionBy("day")
        .option("compression", "zstd")
        .parquet(str(to))
    )


def _size(folder: Path) -> tuple[int, int]:
    found = [path.stat().st_size for path in folder.rglob("*.parquet")]
    return len(found), sum(found)


@click.command()
@options(*COMPACT)
def main(**values: Any) -> None:
    """Write the recorder's samples anew in few files, one for each day."""
    from migratory_spark.jobs.sessions import submitted_session

    with Ending():
        code = run_compact(**values, open_session=partial(submitted_session, "migratory-recorder-compact"))
    sys.exit(code)


if __name__ == "__main__":
    main()
