"""Sources of samples: Parquet files of the local recorder, Prometheus servers, and Spark tables of two shapes.

The shape SCHEMA has a row per sample: metric string, labels map<string,string>, timestamp long (ms, UTC), value double.
The shape SERIES has a row per series, with arrays timestamps and values. The recorder writes the first, the Prometheus
data source both. Rows may come in any order and more than once and hold NaN; `merge.py` handles that.

A SampleSource of files or servers is read by tasks of this module and not by Spark's own readers, which would move
every sample through the JVM before it is packed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, MapType, StringType, StructField, StructType

from migratory_spark.errors import BadSamples, NoSamples
from migratory_spark.metrics import with_native
from migratory_spark.prometheus import partitions
from migratory_spark.prometheus.errors import one_line
from migratory_spark.prometheus.options import SOURCE, SourceOptions
from migratory_spark.read.series_pack import LARGE_ROWS, SampleQuery, SeriesPack, pack_batches, pack_blocks

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
"""Bytes of Parquet that one task reads: two to ten million samples."""
_BYTES_PER_SAMPLE = 3
"""The approximate number of bytes of Parquet per sample: four in the recorder's small files, one in compacted ones."""
_BATCH_ROWS = 100_000
"""Rows of one record batch."""

_MAX_GROUP_ROWS = 4_000_000
"""Rows of a row group that is read at once: 64 bytes each, with seven labels."""

_ARROW = pa.schema(
    [
        pa.field("metric", pa.string()),
        pa.field("labels", pa.map_(pa.string(), pa.string())),
        pa.field("timestamp", pa.int64()),
        pa.field("value", pa.float64()),
    ]
)

PackRows = Callable[[Iterator[pa.RecordBatch], SampleQuery], Iterator[SeriesPack]]
"""A function that packs the samples of rows that a query selects. It runs on executors and must pickle."""


@dataclass(frozen=True, slots=True)
class SampleSource:
    """The samples that a report reads, as a Spark table `frame` and a function `pack` that makes packs of the table's
    rows on the executors. The rows are samples, or numbers of tasks whose files or servers `pack` reads.

    `samples` is the approximate number of samples, None if unknown. `tasks` is the number of tasks, None for a table of
    samples. `one_server` is False if the samples come from several servers, which may have the same series.
    """

    frame: DataFrame
    samples: int | None
    pack: PackRows = pack_batches
    tasks: int | None = None
    one_server: bool = True


def schema_of(paths: Iterable[Path]) -> StructType:
    """Return the schema of the recorder's files: SCHEMA, with the column `source` if one of the files has it. Files
    that cannot be read are skipped; reading their samples reports the error."""
    for path in paths:
        try:
            if "source" in pq.read_schema(path).names:
                return StructType([*SCHEMA.fields, StructField("source", StringType())])
        except (pa.ArrowException, OSError):
            continue
    return SCHEMA


def parquet_source(session: SparkSession, directory: Path) -> SampleSource:
    """Return the samples of all files `*.parquet` in `directory` and below as a source. Raises NoSamples if there is no
    such file. A damaged file is an error (BadSamples) only when the source is read.

    Arrow reads the files, because Spark's own reader builds a map for each sample. A column `source` is optional.
    """
    # Spark's own writer makes folders that may have such a name.
    sizes = sorted((path, path.stat().st_size) for path in directory.rglob("*.parquet") if path.is_file())
    if not sizes:
        raise _no_files(directory)
    tasks: list[list[tuple[str, int, int]]] = []
    free = 0
    for path, size in sizes:
        if not tasks or size > free:
            tasks.append([])
            free = _TASK_BYTES
        # A file that is too large for one task is read by several, each of which reads some of its row groups.
        parts = max(1, round(size / _TASK_BYTES))
        tasks[-1].append((str(path), 0, parts))
        tasks.extend([(str(path), part, parts)] for part in range(1, parts))
        free -= size
    numbers = session.range(0, len(tasks), 1, len(tasks))
    samples = sum(size for _, size in sizes) // _BYTES_PER_SAMPLE
    return SampleSource(numbers, samples, partial(_pack_files, tasks), len(tasks))


def prometheus_source(
    session: SparkSession, options: SourceOptions, intervals: Sequence[tuple[int, int]], samples: int | None
) -> SampleSource:
    """Return as a source the samples that Prometheus servers have in `intervals`, each [start, end) (ms since 1970). A
    task reads each of them. No server is asked before the source is read.

    :param samples: the approximate number of samples, None if unknown.
    """
    numbers = session.range(0, len(intervals), 1, len(intervals))
    pack = partial(_pack_servers, options, tuple(intervals))
    return SampleSource(numbers, samples, pack, len(intervals), len(options.urls) == 1)


def table_source(samples: DataFrame) -> SampleSource:
    """Return the samples of a table of either shape as a source. Run a Spark job that counts the rows of a table of the
    shape SCHEMA; the number of samples in the other shape stays unknown. Columns other than those of the shape and
    `source` are left out. Raises BadSamples if columns are missing or have other types."""
    series = "timestamps" in samples.columns
    for field in (SERIES if series else SCHEMA).fields:
        if field.name not in samples.columns:
            raise BadSamples(f"samples have no column {field.name!r}; they have {', '.join(samples.columns) or 'none'}")
        kind = samples.schema[field.name].dataType
        if not _same_type(kind, field.dataType):
            raise BadSamples(
                f"the column {field.name!r} of samples is {kind.simpleString()}, not {field.dataType.simpleString()}"
            )
    columns = [*(SERIES if series else SCHEMA).names, *(["source"] if "source" in samples.columns else [])]
    # Counting rows lets a small table be a small report. The lengths of arrays are not known before they are read.
    return SampleSource(samples.select(*columns), None if series else samples.count())


def _pack_servers(
    options: SourceOptions, intervals: Sequence[tuple[int, int]], batches: Iterator[pa.RecordBatch], query: SampleQuery
) -> Iterator[SeriesPack]:
    """Yield packs of the samples that `query` selects, in the intervals whose numbers are in the first column of
    `batches`. Only the query's metrics are requested from the servers, and the native histograms that have them as
    their parts."""
    # Samples of one server are not merged here, because those of each series are merged later anyway.
    options = replace(options.narrowed(with_native(query.metrics)), columns=(*options.columns, SOURCE))
    for batch in batches:
        for number in batch.column(0).to_pylist():
            yield from pack_blocks(partitions.read(options, *intervals[number]), query)


def _pack_files(
    tasks: Sequence[Sequence[tuple[str, int, int]]], batches: Iterator[pa.RecordBatch], query: SampleQuery
) -> Iterator[SeriesPack]:
    """Yield packs of the samples that `query` selects, from the files of the tasks whose numbers are in the first
    column of `batches`."""
    return pack_batches(_read_tasks(tasks, batches), query)


def _read_tasks(
    tasks: Sequence[Sequence[tuple[str, int, int]]], batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch | pa.Table]:
    """Yield the rows of the files of those tasks whose numbers are in the first column of `batches`. Raises BadSamples,
    which names the file that cannot be read.

    :param tasks: for each task the path, part and number of parts of its files, as `_read_file` takes them.
    """
    for batch in batches:
        for number in batch.column(0).to_pylist():
            for path, part, parts in tasks[number]:
                try:
                    yield from _read_file(path, part, parts)
                except (pa.ArrowException, OSError) as error:
                    reason = one_line(str(error)).removesuffix(".")
                    raise BadSamples(
                        f"{path} is no Parquet file of samples, damaged, or only a part of one: {reason}; "
                        "remove it, or restore it from a copy"
                    ) from error


def _read_file(path: str, part: int, parts: int) -> Iterator[pa.RecordBatch | pa.Table]:
    """Yield the rows of one of `parts` parts of a file, as batches, or as a table for a large row group. A part is
    several row groups that follow one another; it may have none. Raises BadSamples for wrong columns, and Arrow's
    errors for damaged files."""
    metadata = pq.read_metadata(path)
    schema = metadata.schema.to_arrow_schema()
    columns = _columns(path, schema)
    groups = metadata.num_row_groups
    for group in range(groups * part // parts, groups * (part + 1) // parts):
        rows = metadata.row_group(group).num_rows
        if LARGE_ROWS <= rows <= _MAX_GROUP_ROWS and pa.types.is_map(schema.field("labels").type):
            try:
                yield _read_group(path, metadata, group, columns)
                continue
            except pa.ArrowNotImplementedError:
                pass  # a dictionary with too many texts, which was given up within the group
        # Of files with checksums, as the recorder writes them, damage inside a page is noticed as well.
        with pq.ParquetFile(path, metadata=metadata, page_checksum_verification=True) as file:
            for batch in file.iter_batches(_BATCH_ROWS, row_groups=[group], columns=columns.names):
                yield batch.select(columns.names).cast(columns)


def _read_group(path: str, metadata: pq.FileMetaData, group: int, columns: pa.Schema) -> pa.Table:
    """Return a row group as a table whose texts stay dictionaries: each different text once, and a number for each row.
    Raises ArrowNotImplementedError if the file's writer gave the dictionary up within the group."""
    leaves = [metadata.schema.column(number) for number in range(metadata.num_columns)]
    texts = [leaf.path for leaf in leaves if leaf.physical_type == "BYTE_ARRAY"]
    with pq.ParquetFile(path, metadata=metadata, read_dictionary=texts, page_checksum_verification=True) as file:
        table = file.read_row_group(group, columns=columns.names, use_threads=False).combine_chunks()
    for name in ("timestamp", "value"):
        table = table.set_column(table.column_names.index(name), name, table[name].cast(columns.field(name).type))
    return table


def _columns(path: str, schema: pa.Schema) -> pa.Schema:
    """Return the columns to read from a file, with the types to which they are cast: those of SCHEMA, and `source` if
    the file has it. Raises BadSamples if a column is missing, `timestamp` has no integers or `value` no numbers."""
    for name in SCHEMA.names:
        if name not in schema.names:
            raise BadSamples(f"{path} has no column {name!r}; it has {', '.join(schema.names) or 'none'}")
    for name, fits, allowed in (
        ("timestamp", pa.types.is_integer, "integers (milliseconds since 1970)"),
        ("value", lambda kind: pa.types.is_floating(kind) or pa.types.is_integer(kind), "numbers"),
    ):
        if not fits(schema.field(name).type):
            raise BadSamples(f"{path}: its column {name!r} is {schema.field(name).type}; use {allowed}")
    source = [pa.field("source", pa.string())] if "source" in schema.names else []
    return pa.schema([*_ARROW, *source])


def _no_files(directory: Path) -> NoSamples:
    return NoSamples(f"no *.parquet files in {directory}: nothing was recorded there")


def _same_type(actual: DataType, expected: DataType) -> bool:
    """Return whether two types of Spark are equal, whether or not their maps and arrays may hold nulls."""
    # Simple strings ignore whether a map may hold nulls.
    return actual.simpleString() == expected.simpleString()
