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
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from migratory_spark.prometheus.blocks import Objects, SampleBlock
from migratory_spark.prometheus.native_histogram import NativeHistogram
from migratory_spark.prometheus.options import HISTOGRAM, SERIES, SOURCE, TIME, Shape

_ROWS = 50_000
"""Samples of one batch: about 15 MB with labels."""
_BUCKET = StructType(
    [StructField(name, DoubleType(), nullable=False) for name in ("lower", "upper", "count")],
)
_HISTOGRAM_TYPE = StructType(
    [
        StructField("schema", IntegerType(), nullable=False),
        StructField("reset_hint", StringType(), nullable=False),
        *(StructField(name, DoubleType(), nullable=False) for name in ("count", "sum", "zero_threshold", "zero_count")),
        StructField("custom_bounds", ArrayType(DoubleType(), containsNull=False), nullable=False),
        StructField("buckets", ArrayType(_BUCKET, containsNull=False), nullable=False),
    ]
)
_TYPES: dict[str, DataType] = {
    "metric": StringType(),
    "labels": MapType(StringType(), StringType()),
    "timestamp": LongType(),
    "value": DoubleType(),
    "timestamps": ArrayType(LongType(), containsNull=False),
    "values": ArrayType(DoubleType(), containsNull=False),
    TIME: TimestampType(),
    HISTOGRAM: _HISTOGRAM_TYPE,
    SERIES: LongType(),
    SOURCE: StringType(),
}


def spark_schema(columns: Iterable[str], label_columns: Iterable[str] = ()) -> StructType:
    """Return the Spark schema of these columns, in this order, and of those of labels, which may be null. With native
    histograms, either these or the values are null."""
    names = list(columns)
    may_be_null = {HISTOGRAM, "value"} if HISTOGRAM in names else set()
    fields = [StructField(name, _TYPES[name], nullable=name in may_be_null) for name in names]
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
            if HISTOGRAM in self._schema.names:
                every = np.full(len(block), None) if block.histograms is None else block.histograms
                histograms = every[rows]
                columns["value"] = pa.array(block.values[rows], mask=histograms.astype(bool), from_pandas=False)
                columns[HISTOGRAM] = _histogram_array(histograms, self._schema.field(HISTOGRAM).type)
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


def _histogram_array(histograms: Objects, kind: pa.StructType) -> pa.StructArray:
    """Return native histograms as an array of structs, null for None."""
    missing = np.array([each is None for each in histograms], bool)
    there: list[NativeHistogram] = [each for each in histograms if each is not None]
    buckets = [each.buckets for each in there]
    bucket_type = kind.field("buckets").type
    lower, upper, counts = (
        np.concatenate([np.empty(0), *(of_histogram[part] for of_histogram in buckets)]) for part in range(3)
    )
    columns = {
        "schema": pa.array([each.layout.schema for each in there], pa.int32()),
        "reset_hint": pa.array([each.reset_hint for each in there], pa.string()),
        "count": pa.array([each.count for each in there], pa.float64()),
        "sum": pa.array([each.sum for each in there], pa.float64()),
        "zero_threshold": pa.array([each.layout.zero_threshold for each in there], pa.float64()),
        "zero_count": pa.array([each.zero_count for each in there], pa.float64()),
        "custom_bounds": pa.array(
            [np.array(each.layout.custom_bounds) for each in there], kind.field("custom_bounds").type
        ),
        "buckets": pa.ListArray.from_arrays(
            pa.array(np.cumsum([0, *(len(of_histogram[0]) for of_histogram in buckets)]), pa.int32()),
            pa.StructArray.from_arrays([pa.array(part) for part in (lower, upper, counts)],
                                       fields=list(bucket_type.value_type)),
            type=bucket_type,
        ),
    }  # fmt: skip
    whole = pa.StructArray.from_arrays([columns[field.name] for field in kind], fields=list(kind))
    # The row of each histogram, null where there is none.
    return whole.take(pa.array(np.cumsum(~missing) - 1, pa.int64(), mask=missing))
