"""`recorder_compact.py --samples DIR --to DIR` rewrites the recorder's many small files as few large ones, one a day.

The new files are sorted by series and time, as reports read them, and have about a tenth of the size. The job compares
number and digest of the samples of source and copy before it succeeds. The source is not changed.
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

from migratory_spark.jobs.command_line import BadInput, ExitOnError, SamplesUnreadable, options
from migratory_spark.jobs.inputs import RecorderFolder
from migratory_spark.jobs.spark_errors import spark_session

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq
    from pyspark.sql import DataFrame

    from migratory_spark.jobs.spark_errors import OpenSession

COMPACT = (
    click.option("--samples", type=click.Path(path_type=Path), required=True, metavar="DIR",
                 help="Folder of the recorder's Parquet files."),
    click.option("--to", type=click.Path(path_type=Path), required=True, metavar="DIR",
                 help="A folder that is empty or does not exist yet."),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class ContentDigest:
    """Number and digest of a table's samples, which a copy must match. The digest is a sum of the rows' hashes, so the
    order of the rows does not matter."""

    rows: int
    digest: int


def run_compact(samples: Path, to: Path, open_session: OpenSession) -> int:
    """Compact `samples` into `to`, print the sizes before and after, and return exit code 0. `samples` is not changed.

    :raises BadInput: `samples` has no files, `to` is not an empty folder, or `to` is `samples` or inside it.
    :raises SamplesUnreadable: Spark fails, or the copy differs from the source. After an error of Spark the written
        days are removed; a copy that differs stays.
    """
    source = RecorderFolder(samples, None)
    source.check()
    if to.exists() and (not to.is_dir() or any(to.iterdir())):
        raise BadInput(f"--to: {to} is not an empty folder")
    if samples.resolve() in (to.resolve(), *to.resolve().parents):
        raise BadInput(f"--to: {to} is inside {samples}: its files would be samples of the source")
    files, size = _size(samples)
    with _remove_on_error(to), spark_session(open_session) as session:
        table = source.read(session)
        _log(f"reading {files:,} files of {size:,} bytes")
        before = content_digest(table)
        _log(f"writing {before.rows:,} samples to {to}")
        _write(table, to)
        _log("comparing what was written")
        after = content_digest(RecorderFolder(to, None).read(session))
    if before != after:
        raise SamplesUnreadable(
            f"{to} holds {after.rows:,} samples, not the {before.rows:,} of {samples}: do not use it"
        )
    files_after, size_after = _size(to)
    click.echo(f"{before.rows:,} samples: {files:,} files of {size:,} bytes to {files_after:,} of {size_after:,}")
    return 0


@contextmanager
def _remove_on_error(to: Path) -> Iterator[None]:
    """A context that removes the written days after an error or an interrupt: a folder with some days would be taken
    for the whole."""
    existed = to.exists()
    try:
        yield
    except BaseException:
        for day in to.glob("day=*"):
            shutil.rmtree(day)
        if to.exists() and not existed:
            to.rmdir()
        raise


def _log(text: str) -> None:
    """Print progress to the standard error, because the job may take minutes."""
    click.echo(text, err=True)


def content_digest(table: DataFrame) -> ContentDigest:
    """Run a Spark job that counts and hashes the rows in a table of samples, and return number and digest. Different
    bits of NaN are different values."""
    from pyspark.sql import functions as F

    labels = F.sort_array(F.map_entries("labels"))
    # Spark treats all NaN as equal; their bits distinguish stale markers. Only of NaN, because it costs a reflection
    # call.
    bits = F.when(F.isnan("value"), F.expr("java_method('java.lang.Double', 'doubleToRawLongBits', value)"))
    source = ["source"] if "source" in table.columns else []
    row_hash = F.xxhash64("metric", labels, "timestamp", "value", bits, *source).cast("decimal(38,0)")
    # Aggregates accept no reflection call, so hashes are computed before.
    hashes = table.select(row_hash.alias("hash"))
    row = hashes.agg(F.count("*"), F.coalesce(F.sum("hash"), F.lit(0))).first()
    assert row is not None  # an aggregate without grouping always answers
    return ContentDigest(row[0], int(row[1]))


def _write(table: DataFrame, to: Path) -> None:
    """Write the table's samples to one file for each day (UTC) in the folder `to`, sorted by series and time. Make the
    folder."""
    from pyspark.sql import functions as F

    series = F.xxhash64("metric", F.sort_array(F.map_entries("labels")))
    day = F.to_date(F.timestamp_millis("timestamp"))
    to.mkdir(parents=True, exist_ok=True)
    (
        table.withColumn("day", day)
        # One file a day. A day of a large cluster in one task is sorted on disk.
        .repartition("day")
        .sortWithinPartitions("day", "metric", series, "timestamp")
        .mapInArrow(partial(_write_days, to), "rows bigint")
        .collect()
    )


def _write_days(to: Path, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Write rows, which come in the order of days, to one file for each day. Yield one batch with the number of rows.

    Each file appears whole or not at all. Arrow writes them, because Spark's own writer turns every NaN into the same
    one and so loses stale markers.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    rows, day, writer, path = 0, None, None, to
    for batch in batches:
        for day_of_row in pc.unique(batch.column("day")).to_pylist():
            if day_of_row != day:
                _close(writer, path)
                day, path = day_of_row, to / f"day={day_of_row}" / "samples.parquet"
                path.parent.mkdir(exist_ok=True)
                schema = batch.schema.remove(batch.schema.get_field_index("day"))
                writer = pq.ParquetWriter(
                    path.with_suffix(".part"), schema, compression="zstd", write_page_checksum=True
                )
            assert writer is not None  # there is one for every day
            rows_of_day = batch.filter(pc.equal(batch.column("day"), pa.scalar(day_of_row)))
            writer.write_batch(rows_of_day.drop_columns(["day"]))
            rows += rows_of_day.num_rows
    _close(writer, path)
    yield pa.RecordBatch.from_pydict({"rows": pa.array([rows], pa.int64())})


def _close(writer: pq.ParquetWriter | None, path: Path) -> None:
    """Finish the file that the writer writes, and give it the name `path`. Do nothing without a writer."""
    if writer is not None:
        writer.close()
        # A file appears whole or not at all.
        path.with_suffix(".part").replace(path)


def _size(folder: Path) -> tuple[int, int]:
    """Return number and bytes of the Parquet files in a folder and below."""
    sizes = [path.stat().st_size for path in folder.rglob("*.parquet")]
    return len(sizes), sum(sizes)


@click.command()
@options(*COMPACT)
def main(**values: Any) -> None:
    """Rewrite the recorder's samples as few files, one for each day.

    Exit code: 0 done, 2 a folder is wrong, 4 samples unreadable or the copy differs, 70 a fault of this software, 130
    interrupted.
    """
    from migratory_spark.session import submitted_session

    with ExitOnError():
        code = run_compact(**values, open_session=partial(submitted_session, "migratory-recorder-compact"))
    sys.exit(code)


if __name__ == "__main__":
    main()
