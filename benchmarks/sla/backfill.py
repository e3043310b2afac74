"""Write the samples of a fleet into a real Prometheus (with promtool, block by block), and into Parquet files.

promtool reads its whole input once per block. It is given one block at a time, so that its time is linear.
"""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from migratory_local.metrics.recorder import SCHEMA

from benchmarks.sla.samples import Block, Fleet


def prometheus_blocks(fleet: Fleet, folder: Path) -> None:
    """Write the fleet's samples into `folder` as data of a Prometheus. Needs promtool, whose input is a temporary
    text file beside the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    text = folder.with_suffix(".openmetrics")
    prefixes = pa.array([f"{series.text} " for series in fleet.series])
    try:
        for block in fleet.blocks():
            with text.open("wb") as file:
                _write_text(file, prefixes, block)
            command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "--quiet", str(text), str(folder)]
            subprocess.run(command, check=True, capture_output=True)
    finally:
        text.unlink(missing_ok=True)


def _write_text(file: BinaryIO, prefixes: pa.Array, block: Block) -> None:
    for column, moment in enumerate(block.times.tolist()):
        values = pa.array(np.ascontiguousarray(block.values[:, column])).cast(pa.string())
        lines = pc.binary_join_element_wise(prefixes, values, pa.scalar(f" {moment / 1000:.3f}\n"), "")
        # The characters of all lines lie one after another in the array's data buffer, which may be longer.
        length = np.frombuffer(lines.buffers()[1], dtype=np.int32)[len(lines)]
        file.write(memoryview(lines.buffers()[2])[:length])
    file.write(b"# EOF\n")


def parquet_files(fleet: Fleet, folder: Path, rows: int = 2_000_000) -> None:
    """Write the samples as Parquet files of about `rows` rows in the order of time, as the recorder writes them."""
    folder.mkdir(parents=True, exist_ok=True)
    metrics = pa.array([series.metric for series in fleet.series])
    labels = pa.array([list(series.labels) for series in fleet.series], type=SCHEMA.field("labels").type)
    numbers = np.arange(len(fleet.series))
    scrapes = max(1, rows // len(fleet.series))
    pieces = (piece for block in fleet.blocks() for piece in block.pieces(scrapes))
    for number, block in enumerate(pieces):
        chosen = pa.array(np.tile(numbers, len(block.times)))
        table = pa.table(
            [
                metrics.take(chosen),
                labels.take(chosen),
                pa.array(np.repeat(block.times, len(numbers))),
                pa.array(block.values.T.reshape(-1).astype(np.float64)),
            ],
            schema=SCHEMA,
        )
        pq.write_table(table, folder / f"samples-{number:05d}.parquet", compression="zstd")
