"""Scraped samples as Spark tables: metric string, labels map<string,string>, timestamp long (ms, UTC), value double; or
a row per series, with arrays timestamps and values.

The first is the schema of the local recorder's Parquet files, both are shapes of the Prometheus data source. Rows may
come in any order and more than once, and hold NaN: what they mean is settled in `merging.py`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, MapType, StringType, StructField, StructType

from migratory_spark.errors import BadSamples, NoSamples

SCHEMA = StructType(
    [
        StructField("metric", StringType(), nullable=False),
        StructField("labels", MapType(StringType(), StringType()), nullable=False),
        StructField("timestamp", LongType(), nullable=False),
        StructField("value", DoubleType(), nullable=False),
    ]
)
SERIES = StructType(
    [
        *SCHEMA.fields[:2],
        StructField("timestamps", ArrayType(LongType()), nullable=False),
        StructField("values", ArrayType(DoubleType()), nullable=False),
    ]
)

_TASK_BYTES = 8 << 20
"""Of Parquet that one task reads: two to ten million samples."""
_BYTES = 3
"""Of Parquet that one sample takes, about: the recorder's small files have four, compacted ones one."""
_ROWS = 100_000

_ARROW = pa.schema(
    [
        pa.field("metric", pa.string()),
        pa.field("labels", pa.map_(pa.string(), pa.string())),
        pa.field("timestamp", pa.int64()),
        pa.field("value", pa.float64()),
    ]
)

Read = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


@dataclass(frozen=True, slots=True)
class Source:
    """`read` makes batches of samples of those of `frame`, where Spark has these. `samples`: about how many there are,
    None where nobody knows."""

    frame: DataFrame
    samples: int | None
    read: Read = iter


def read_parquet(session: SparkSession, directory: Path) -> DataFrame:
    """All samples in the files named `*.parquet` of `directory`. Raises NoSamples."""
    if not any(directory.glob("*.parquet")):
        raise _nothing(directory)
    return session.read.schema(SCHEMA).parquet(str(directory))


def schema_of(paths: Iterable[Path]) -> StructType:
    """Of all of them together. What is no Parquet file is left to who reads it."""
    for path in paths:
        try:
            if "source" in pq.read_schema(path).names:
                return StructType([*SCHEMA.fields, StructField("source", StringType())])
        except (pa.ArrowException, OSError):
            continue
    return SCHEMA


def files(session: SparkSession, directory: Path) -> Source:
    """The same, files of folders below included: read by Arrow, which tells labels apart by the thousand, where Spark's
    own reader makes a map for each sample. A column `source` is read where a file has it. Raises NoSamples."""
    # Spark's own writer makes folders, which may bear such a name, too.
    found = sorted((path, path.stat().st_size) for path in directory.rglob("*.parquet") if path.is_file())
    if not found:
        raise _nothing(directory)
    tasks: list[list[tuple[str, int, int]]] = []
    free = 0
    for path, size in found:
        if not tasks or size > free:
            tasks.append([])
            free = _TASK_BYTES
        # One that is too large for a task is read by several, each of which takes some of its row groups.
        parts = max(1, round(size / _TASK_BYTES))
        tasks[-1].append((str(path), 0, parts))
        tasks.extend([(str(path), part, parts)] for part in range(1, parts))
        free -= size
    numbers = session.range(0, len(tasks), 1, len(tasks))
    return Source(numbers, sum(size for _, size in found) // _BYTES, partial(_of_files, tasks))


def table(samples: DataFrame) -> Source:
    """Any table of either shape. Its rows are counted, where each is a sample. Raises BadSamples."""
    series = "timestamps" in samples.columns
    for field in (SERIES if series else SCHEMA).fields:
        if field.name not in samples.columns:
            raise BadSamples(f"samples have no column {field.name!r}; they have {', '.join(samples.columns) or 'none'}")
        found = samples.schema[field.name].dataType
        if not _same(found, field.dataType):
            raise BadSamples(
                f"the column {field.name!r} of samples is {found.simpleString()}, not {field.dataType.simpleString()}"
            )
    columns = [*(SERIES if series else SCHEMA).names, *(["source"] if "source" in samples.columns else [])]
    # Rows are counted: a small table is a small report. How many samples arrays hold is not known before they are read.
    return Source(samples.select(*columns), None if series else samples.count())


def _of_files(
    tasks: Sequence[Sequence[tuple[str, int, int]]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for path, part, parts in tasks[number]:
                try:
                    with pq.ParquetFile(path) as file:
                        columns = _columns(path, file.schema_arrow)
                        groups = list(range(part, file.num_row_groups, parts))
                        for found in file.iter_batches(_ROWS, row_groups=groups, columns=columns.names):
                            yield found.select(columns.names).cast(columns)
                except (pa.ArrowException, OSError) as error:
                    raise BadSamples(f"{path} is no Parquet file of samples, or only a part of one: {error}") from error


def _columns(path: str, found: pa.Schema) -> pa.Schema:
    """What is read of a file, and as which types. Raises BadSamples."""
    for name in SCHEMA.names:
        if name not in found.names:
            raise BadSamples(f"{path} has no column {name!r}; it has {', '.join(found.names) or 'none'}")
    for name, number, what in (
        ("timestamp", pa.types.is_integer, "integers (milliseconds since 1970)"),
        ("value", lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind), "numbers"),
    ):
        if not number(found.field(name).type):
            raise BadSamples(f"{path}: its column {name!r} is {found.field(name).type}; wanted are {what}")
    several = [pa.field("source", pa.string())] if "source" in found.names else []
    return pa.schema([*_ARROW, *several])


def _nothing(directory: Path) -> NoSamples:
    return NoSamples(f"no *.parquet files in {directory}: nothing was recorded there")


def _same(found: DataType, wanted: DataType) -> bool:
    # Whether a map may hold nulls is no difference.
    return found.simpleString() == wanted.simpleString()
