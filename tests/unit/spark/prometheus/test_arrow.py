"""Conversion of blocks to Arrow batches: Spark's exact schema, every shape and column."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import numpy as np
import pytest
from migratory_spark.prometheus import arrow
from migratory_spark.prometheus.arrow import ArrowBatches, spark_schema
from migratory_spark.prometheus.blocks import STALE, SampleBlock, SeriesId
from migratory_spark.prometheus.options import COLUMNS, SERIES, SOURCE, Shape
from migratory_spark.read.samples import SCHEMA
from migratory_testing.prometheus_wire import of_bits
from pyspark.sql.pandas.types import to_arrow_schema

A, B = SeriesId("a", (("x", "1"), ("y", "é"))), SeriesId("b", ())


def block() -> SampleBlock:
    times, values = np.array([1, 2, 5], np.int64), np.array([0.5, of_bits(STALE), 7.0])
    return SampleBlock([A, B], np.array([2, 1]), times, values, "http://a")


def rows(shape: Shape, columns: tuple[str, ...], label_columns: tuple[str, ...] = ()) -> list[dict[str, Any]]:
    batches = list(ArrowBatches(shape, columns, label_columns).from_blocks([block()]))
    schema = to_arrow_schema(spark_schema(columns, label_columns), timezone="UTC")
    assert all(batch.schema.equals(schema) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_the_default_is_the_recorders_schema() -> None:
    assert spark_schema(COLUMNS["samples"]) == SCHEMA


@pytest.mark.parametrize("size", [1, 2, 50_000])
def test_shape_samples_has_a_row_per_sample(monkeypatch: pytest.MonkeyPatch, size: int) -> None:
    monkeypatch.setattr(arrow, "_ROWS", size)
    table = rows("samples", ("source", "value", "labels", "metric", "timestamp", "series"))
    labels = [("x", "1"), ("y", "é")]
    a = {"metric": "a", "labels": labels, "source": "http://a", "series": A.fingerprint}
    b = {"metric": "b", "labels": [], "source": "http://a", "series": B.fingerprint}
    assert [row.pop("value") for row in table if row["timestamp"] != 2] == [0.5, 7.0]
    stale = next(row.pop("value") for row in table if "value" in row)
    assert np.float64(stale).view(np.uint64) == STALE
    assert table == [a | {"timestamp": 1}, a | {"timestamp": 2}, b | {"timestamp": 5}]


def test_shape_series_has_a_row_per_series() -> None:
    table = rows("series", (*COLUMNS["series"], SERIES, SOURCE))
    assert [row["timestamps"] for row in table] == [[1, 2], [5]]
    assert [row["values"][0] for row in table] == [0.5, 7.0]
    assert [(row["metric"], row["series"], row["source"]) for row in table] == [
        ("a", A.fingerprint, "http://a"),
        ("b", B.fingerprint, "http://a"),
    ]
    assert rows("series", ("timestamps",)) == [{"timestamps": [1, 2]}, {"timestamps": [5]}]


def test_labels_and_times_may_be_columns_of_their_own() -> None:
    moment = datetime(1970, 1, 1, tzinfo=UTC)
    assert rows("samples", ("time", "timestamp"), ("y", "x")) == [
        {"time": moment + timedelta(milliseconds=at), "timestamp": at, "y": y, "x": x}
        for at, y, x in ((1, "é", "1"), (2, "é", "1"), (5, None, None))
    ]
    assert rows("series", ("metric",), ("x", "z")) == [
        {"metric": "a", "x": "1", "z": None},
        {"metric": "b", "x": None, "z": None},
    ]
