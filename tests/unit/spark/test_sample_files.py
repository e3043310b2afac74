"""Files of samples, read by Arrow without Spark: invalid files are named in errors, other types are
converted where that is possible, and files of two servers are told apart by their column `source`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from migratory_spark.errors import BadSamples
from migratory_spark.read.samples import _read_tasks, schema_of
from migratory_testing.reports import Sample, batches, of_batches


def received(second: float, value: float, **labels: str) -> Sample:
    every = {"cluster": "c", "job": "load", "instance": "w", "broker": "b0", **labels}
    return "migratory_received_total", every, round(second * 1000), value


def read(*paths: Path) -> Iterator[pa.RecordBatch]:
    numbers = pa.record_batch([pa.array([0])], names=["id"])
    return _read_tasks([[(str(path), 0, 1) for path in paths]], iter([numbers]))


def written(path: Path, samples: list[Sample], **changed: Any) -> Path:
    table = pa.Table.from_batches(batches(samples))
    for name, column in changed.items():
        table = table.drop_columns([name]) if name in table.column_names else table
        table = table if column is None else table.append_column(name, column)
    pq.write_table(table, path)
    return path


def test_files_that_are_not_samples_are_named(tmp_path: Path) -> None:
    good = written(tmp_path / "good.parquet", [received(1, 1.0)])
    half, empty = tmp_path / "half.parquet", tmp_path / "empty.parquet"
    half.write_bytes(good.read_bytes()[:-20])
    empty.touch()
    for path in (half, empty, tmp_path / "gone.parquet"):
        with pytest.raises(BadSamples, match=f"{path.name} is no Parquet file of samples, damaged, or only a part"):
            list(read(good, path))
    torn = bytearray(good.read_bytes())
    torn[4:40] = bytes(36)
    half.write_bytes(torn)
    with pytest.raises(BadSamples, match=r"half.parquet is no Parquet file"):
        list(read(half))


def test_files_with_other_types_are_converted_or_named(tmp_path: Path) -> None:
    file = [received(1, 7.0)]
    large = pa.array([list(file[0][1].items())], pa.map_(pa.large_string(), pa.large_string()))
    fine = written(
        tmp_path / "fine.parquet", file, value=pa.array([7], pa.int32()), labels=large,
        metric=pa.array([file[0][0]]).dictionary_encode(),
    )  # fmt: skip
    (first, second) = read(fine, written(tmp_path / "usual.parquet", file))
    assert first.equals(second)
    for changed, message in (
        ({"timestamp": pa.array([1000], pa.timestamp("ms"))}, r"odd.parquet: its column 'timestamp' is timestamp"),
        ({"value": pa.array(["7"])}, "odd.parquet: its column 'value' is string; use numbers"),
        ({"labels": None}, "odd.parquet has no column 'labels'"),
        ({"labels": pa.array(["a=b"])}, "odd.parquet is no Parquet file of samples"),
    ):
        with pytest.raises(BadSamples, match=message):
            list(read(written(tmp_path / "odd.parquet", file, **changed)))


def test_files_of_two_servers_are_distinguished_by_their_column(tmp_path: Path) -> None:
    """Samples of two servers in files with a column `source` count once, although one server is four seconds behind;
    a file without the column can be read with them."""
    paths = []
    for server, late, behind in (("a", 0, 0), ("b", 2, 4)):
        samples = [received(second + late - behind, second + late) for second in range(0, 301, 5)]
        column = pa.array([server] * len(samples))
        paths.append(written(tmp_path / f"{server}.parquet", samples, source=column))
    other = written(tmp_path / "c.parquet", [received(second, 1.0, instance="x") for second in range(301)])
    assert schema_of([other, *paths]).names[-1] == "source"
    assert "source" not in schema_of([other]).names
    report = of_batches(lambda: read(*paths, other), 0, 300)
    assert report.delivery.received is not None
    assert 290 <= report.delivery.received <= 300
    assert report.samples.restarts == 0
