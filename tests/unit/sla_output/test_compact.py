"""Compacted files, made without Spark: one file per day, written completely or not at all, with every bit of a NaN
unchanged."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from migratory_spark.jobs.recorder_compact import _remove_on_error, _write_days
from migratory_spark.prometheus.blocks import STALE

ONE, OTHER = date(2026, 1, 1), date(2026, 1, 2)


def batch(days: list[date], values: list[int]) -> pa.RecordBatch:
    """Return a batch of rows with these days. `values` are the bits of their floating-point values."""
    return pa.RecordBatch.from_pydict(
        {
            "metric": pa.array(["m"] * len(days)),
            "value": pa.array(np.array(values, dtype=np.uint64).view(np.float64)),
            "day": pa.array(days, pa.date32()),
        }
    )


def test_each_day_is_a_file_with_identical_values(tmp_path: Path) -> None:
    (batch_,) = _write_days(tmp_path, iter([batch([ONE, ONE], [1, STALE]), batch([ONE, OTHER], [2, 3])]))
    assert batch_.to_pydict() == {"rows": [4]}
    rows = {
        path.parent.name: pq.read_table(path, partitioning=None)["value"].to_numpy().view(np.uint64).tolist()
        for path in tmp_path.rglob("*")
        if path.is_file()
    }
    assert rows == {"day=2026-01-01": [1, STALE, 2], "day=2026-01-02": [3]}
    assert pq.read_schema(tmp_path / "day=2026-01-01" / "samples.parquet").names == ["metric", "value"]


def test_an_error_leaves_no_complete_file(tmp_path: Path) -> None:
    def broken() -> object:
        yield batch([ONE], [1])
        raise OSError("no more")

    with pytest.raises(OSError, match="no more"):
        list(_write_days(tmp_path, broken()))  # type: ignore[arg-type]
    assert list(tmp_path.rglob("*.parquet")) == []


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("error", [KeyboardInterrupt, OSError])
def test_an_interrupt_removes_written_days(tmp_path: Path, there: bool, error: type[BaseException]) -> None:
    to = tmp_path / "compact"
    if there:
        to.mkdir()

    def compact() -> None:
        with _remove_on_error(to):
            to.mkdir(exist_ok=True)
            list(_write_days(to, iter([batch([ONE, OTHER], [1, 2])])))
            raise error

    with pytest.raises(error):
        compact()
    assert to.exists() == there
    assert list(tmp_path.rglob("*.parquet")) == []


def test_a_finished_copy_stays(tmp_path: Path) -> None:
    with _remove_on_error(tmp_path):
        list(_write_days(tmp_path, iter([batch([ONE, OTHER], [1, 2])])))
    assert len(list(tmp_path.rglob("*.parquet"))) == 2
