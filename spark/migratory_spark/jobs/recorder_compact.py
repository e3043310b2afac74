"""`recorder_compact.py --samples DIR --to DIR`: the recorder's many small files as few large ones, by day.

Sorted by series and time, which is how reports read them, and about a tenth in size. The samples stay as they are:
their number and the sum of their values are compared before the job says that it is done. The source is left alone.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from migratory_spark.jobs.command_line import BadInput, Ending, Unreadable, options
from migratory_spark.jobs.inputs import Folder

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

    from migratory_spark.jobs.sla_report import OpenSession

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

    files, size = _size(samples)
    try:
        with _all_or_nothing(to), open_session() as session:
            table = source.read(session)
            _say(f"reading {files:,} files of {size:,} bytes")
            before = content(table)
            _say(f"writing {before.rows:,} samples to {to}")
            _write(table, to)
            _say("comparing what was written")
            after = content(Folder(to, None).read(session))
    except (PySparkException, Py4JError) as error:
        raise Unreadable(f"Spark could not read or write: {str(error).splitlines()[0]}") from error
    if before != after:
        raise Unreadable(f"{to} holds {after.rows:,} samples, not the {before.rows:,} of {samples}: don't use it")
    files_after, size_after = _size(to)
    click.echo(f"{before.rows:,} samples: {files:,} files of {size:,} bytes to {files_after:,} of {size_after:,}")
    return 0


@contextmanager
def _all_or_nothing(to: Path) -> Iterator[None]:
    """A folder of which somebody who interrupts, or an error, leaves some days would be taken for the whole."""
    there = to.exists()
    try:
        yield
    except BaseException:
        for day in to.glob("day=*"):
            shutil.rmtree(day)
        if to.exists() and not there:
            to.rmdir()
        raise


def _say(text: str) -> None:
    """A minute or more may pass: what it goes by with."""
    click.echo(text, err=True)


def content(table: DataFrame) -> Content:
    from pyspark.sql import functions as F

    labels = F.sort_array(F.map_entries("labels"))
    # To Spark all NaN are one. The bits tell stale markers apart; of NaN alone, for it costs a call by reflection.
    bits = F.when(F.isnan("value"), F.expr("java_method('java.lang.Double', 'doubleToRawLongBits', value)"))
    source = ["source"] if "source" in table.columns else []
    row_hash = F.xxhash64("metric", labels, "timestamp", "value", bits, *source).cast("decimal(38,0)")
    # Sums take no call by reflection: it is made before.
    hashes = table.select(row_hash.alias("hash"))
    found = hashes.agg(F.count("*"), F.coalesce(F.sum("hash"), F.lit(0))).first()
    assert found is not None  # an aggregate without grouping always answers
    return Content(found[0], int(found[1]))


def _write(table: DataFrame, to: Path) -> None:
    from pyspark.sql import functions as F

    series = F.xxhash64("metric", F.sort_array(F.map_entries("labels")))
    day = F.to_date(F.timestamp_millis("timestamp"))
    to.mkdir(parents=True, exist_ok=True)
    (
        table.withColumn("day", day)
        # One file a day; a day of a large cluster in one task is sorted on disk.
        .repartition("day")
        .sortWithinPartitions("day", "metric", series, "timestamp")
        .mapInArrow(partial(_days, to), "rows bigint")
        .collect()
    )


def _days(to: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Writes rows in the order of days, a file for each. By Arrow, for Spark's own writer makes one NaN of all: of the
    end of a series a sample without a number."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows, day, writer, path = 0, None, None, to
    for batch in batches:
        for found in pc.unique(batch.column("day")).to_pylist():
            if found != day:
                _close(writer, path)
                day, path = found, to / f"day={found}" / "samples.parquet"
                path.parent.mkdir(exist_ok=True)
                schema = batch.schema.remove(batch.schema.get_field_index("day"))
                writer = pq.ParquetWriter(path.with_suffix(".part"), schema, compression="zstd")
            assert writer is not None  # there is one for every day
            chosen = batch.filter(pc.equal(batch.column("day"), pa.scalar(found)))
            writer.write_batch(chosen.drop_columns(["day"]))
            rows += chosen.num_rows
    _close(writer, path)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


def _close(writer: pq.ParquetWriter | None, path: Path) -> None:
    if writer is not None:
        writer.close()
        # A file appears whole or not at all.
        path.with_suffix(".part").replace(path)


def _size(folder: Path) -> tuple[int, int]:
    found = [path.stat().st_size for path in folder.rglob("*.parquet")]
    return len(found), sum(found)


@click.command()
@options(*COMPACT)
def main(**values: Any) -> None:
    """Write the recorder's samples anew in few files, one for each day."""
    from migratory_spark.session import submitted_session

    with Ending():
        code = run_compact(**values, open_session=partial(submitted_session, "migratory-recorder-compact"))
    sys.exit(code)


if __name__ == "__main__":
    main()
