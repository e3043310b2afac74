"""Converts blocks of samples to Arrow batches of the requested shape and columns, and names their Spark schema.

The shape is `samples` (a row per sample) or `series` (a row per series, with arrays). In the shape `samples` every row
has its labels, so batches are short.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    ArrayType,
    DataType,
    DoubleType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from migratory_spark.prometheus.blocks import SampleBlock
from migratory_spark.prometheus.options import SERIES, SOURCE, TIME, Shape

_ROWS = 50_000
"""Samples of one batch: about 15 MB with labels."""
_TYPES: dict[str, DataType] = {
    "metric": StringType(),
    "labels": MapType(StringType(), StringType()),
    "timestamp": LongType(),
    "value": DoubleType(),
    "timestamps": ArrayType(LongType(), containsNull=False),
    "values": ArrayType(DoubleType(), containsNull=False),
    TIME: TimestampType(),
    SERIES: LongType(),
    SOURCE: StringType(),
}


def spark_schema(columns: Iterable[str], label_columns: Iterable[str] = ()) -> StructType:
    """Return the Spark schema of these columns, in this order, and of those of labels, which may be null."""
    fields = [StructField(name, _TYPES[name], nullable=False) for name in columns]
    return StructType(fields + [StructField(label, StringType()) for label in label_columns])


class ArrowBatches:
    """A converter of blocks to record batches, of one shape and list of columns.

    Columns of labels (`label_columns`) follow the others, and are null for series without the label.
    """

    def __init__(self, shape: Shape, columns: Iterable[str], label_columns: Sequence[str] = ()) -> None:
        self._shape = shape
        self._label_columns = label_columns
        self._schema: pa.Schema = to_arrow_schema(spark_schema(columns, label_columns), timezone="UTC")

    def from_blocks(self, blocks: Iterable[SampleBlock]) -> Iterator[pa.RecordBatch]:
        """Yield record batches with the schema that Spark expects: several for a large block in the shape `samples`,
        one in the shape `series`."""
        for block in blocks:
            yield from self._samples(block) if self._shape == "samples" else self._series(block)

    def _samples(self, block: SampleBlock) -> Iterator[pa.RecordBatch]:
        series = self._series_columns(block)
        number = np.repeat(np.arange(len(block.series)), block.counts)
        for begin in range(0, len(block), _ROWS):
            rows = slice(begin, begin + _ROWS)
            chosen = pa.array(number[rows])
            columns = {name: array.take(chosen) for name, array in series.items()}
            columns["timestamp"] = pa.array(block.times[rows])
            columns["value"] = pa.array(block.values[rows])
            if TIME in self._schema.names:
                columns[TIME] = pa.array(block.times[rows], pa.timestamp("ms", "UTC")).cast(
                    self._schema.field(TIME).type
                )
            yield self._batch(columns)

    def _series(self, block: SampleBlock) -> Iterator[pa.RecordBatch]:
        columns = self._series_columns(block)
        offsets = pa.array(np.concatenate(([0], np.cumsum(block.counts))).astype(np.int32))
        for name, inside in (("timestamps", block.times), ("values", block.values)):
            if name in self._schema.names:
                kind = self._schema.field(name).type
                columns[name] = pa.ListArray.from_arrays(offsets, pa.array(inside), type=kind)
        yield self._batch(columns)

    def _series_columns(self, block: SampleBlock) -> dict[str, pa.Array]:
        """Return the requested columns that are constant within a series, with one entry per series."""
        columns = {}
        requested = set(self._schema.names)
        if "metric" in requested:
            columns["metric"] = pa.array([series_id.metric for series_id in block.series], pa.string())
        if "labels" in requested:
            kind = self._schema.field("labels").type
            columns["labels"] = pa.array([series_id.labels for series_id in block.series], kind)
        if SERIES in requested:
            columns[SERIES] = pa.array([series_id.fingerprint for series_id in block.series], pa.int64())
        if SOURCE in requested:
            columns[SOURCE] = pa.array([block.source] * len(block.series), pa.string())
        if self._label_columns:
            labels = [dict(series_id.labels) for series_id in block.series]
            for name in self._label_columns:
                columns[name] = pa.array([of_series.get(name) for of_series in labels], pa.string())
        return columns

    def _batch(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
