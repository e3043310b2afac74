"""Fixture that writes samples as the recorder's Parquet files."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

SCHEMA = pa.schema(
    [
        ("metric", pa.string()),
        ("labels", pa.map_(pa.string(), pa.string())),
        ("timestamp", pa.int64()),
        ("value", pa.float64()),
    ]
)
Sample = tuple[str, dict[str, str], int, float]
Write = Callable[[list[Sample]], Path]


@pytest.fixture
def write(tmp_path: Path) -> Write:
    """Return a function that writes samples as one Parquet file of the recorder and returns its folder."""

    def write_samples(samples: list[Sample]) -> Path:
        columns = list(zip(*samples, strict=True))
        labels = [list(labels_of_row.items()) for labels_of_row in columns[1]]
        table = pa.table([columns[0], labels, columns[2], columns[3]], schema=SCHEMA)
        pq.write_table(table, tmp_path / "samples-0.parquet")
        return tmp_path

    return write_samples
