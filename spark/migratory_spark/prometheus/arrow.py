"""Blocks to Arrow batches of the shape and columns that were asked for, and the Spark schema of these.

Rows of single samples carry their labels each; batches are kept short for that reason.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import numpy as np
import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, DoubleType, LongType, MapType, StringType, StructField, StructType

from migratory_spark.prometheus.blocks import Block
from migratory_spark.prometheus.options import SERIES, SOURCE, Shape

_ROWS = 50_000  # samples of one batch: about 15 MB with labels
_TYPES: dict[str, DataType] = {
    "metric": StringType(),
    "labels": MapType(StringType(), StringType()),
    "timestamp": LongType(),
    "value": DoubleType(),
    "timestamps": ArrayType(LongType(), containsNull=False),
    "values": ArrayType(DoubleType(), containsNull=False),
    SERIES: LongType(),
    SOURCE: StringType(),
}


def spark_schema(columns: Iterable[str]) -> StructType:
    return StructType([StructField(name, _TYPES[name], nullable=False) for name in columns])


class Batches:
    """`of(blocks)` yields record batches as Spark wants them."""

    def __init__(self, shape: Shape, columns: Iterable[str]) -> None:
        self._shape = shape
        self._schema: pa.Schema = to_arrow_schema(spark_schema(columns), timezone="UTC")

    def of(self, blocks: Iterable[Block]) -> Iterator[pa.RecordBatch]:
        for block in blocks:
            yield from self._samples(block) if self._shape == "samples" else self._series(block)

    def _samples(self, block: Block) -> Iterator[pa.RecordBatch]:
        series = self._of_series(block)
        number = np.repeat(np.arange(len(block.series)), block.counts)
        for begin in range(0, len(block), _ROWS):
            rows = slice(begin, begin + _ROWS)
            chosen = pa.array(number[rows])
            columns = {name: array.take(chosen) for name, array in series.items()}
            columns["timestamp"] = pa.array(block.times[rows])
            columns["value"] = pa.array(block.values[rows])
            yield self._batch(columns)

    def _series(self, block: Block) -> Iterator[pa.RecordBatch]:
        columns = self._of_series(block)
        offsets = pa.array(np.concatenate(([0], np.cumsum(block.counts))).astype(np.int32))
        for name, inside in (("timestamps", block.times), ("values", block.values)):
            if name in self._schema.names:
                kind = self._schema.field(name).type
                columns[name] = pa.ListArray.from_arrays(offsets, pa.array(inside), type=kind)
        yield self._batch(columns)

    def _of_series(self, block: Block) -> dict[str, pa.Array]:
        """The wanted columns that do not differ within a series."""
        found = {}
        wanted = set(self._schema.names)
        if "metric" in wanted:
            found["metric"] = pa.array([one.metric for one in block.series], pa.string())
        if "labels" in wanted:
            kind = self._schema.field("labels").type
            found["labels"] = pa.array([one.labels for one in block.series], kind)
        if SERIES in wanted:
            found[SERIES] = pa.array([one.identity for one in block.series], pa.int64())
        if SOURCE in wanted:
            found[SOURCE] = pa.array([block.source] * len(block.series), pa.string())
        return found

    def _batch(self, columns: dict[str, pa.Array]) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([columns[name] for name in self._schema.names], schema=self._schema)
