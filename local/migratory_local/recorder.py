"""Scrapes `/metrics` of brokers and load workers once per interval into Parquet, for the SLA report.

Files `samples-00000.parquet`, ... with the columns metric, labels, timestamp (ms since 1970, UTC), value; a file
appears whole or not at all. As Prometheus does, every series gets `job` and `instance` (else two workers' counters
would be one), and `up` tells for each target and scrape whether it answered.
"""

from __future__ import annotations

import asyncio
import os
import time
from array import array
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from migratory_local.errors import LocalError
from migratory_local.exposition import BadExposition, Labels, SeriesTable
from migratory_local.http import Http
from migratory_local.ports import HOST
from migratory_local.scrape_file import Target

SCHEMA = pa.schema(
    [
        pa.field("metric", pa.string(), nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
_FLUSH_SECONDS = 5.0


class Recorder:
    """`async with Recorder(folder) as recorder: recorder.add(port, "broker")`. Leaving it scrapes once more and writes
    the rest.

    :param interval: seconds between two scrapes of a target; one that takes longer counts as down.
    :param now: wall-clock seconds, for the time stamps.
    """

    def __init__(self, folder: Path, interval: float = 1.0, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.interval = interval
        self.rows = 0
        self._now = now
        self._http = Http(interval)
        self._targets: dict[str, Labels] = {}
        self._followed: dict[str, Labels] = {}
        self._series = SeriesTable()
        self._numbers, self._times, self._values = array("q"), array("q"), array("d")
        self._files = 0
        self._task: asyncio.Task[None] | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            for old in folder.glob("samples-*.parquet"):
                old.unlink()
        except OSError as error:
            raise LocalError(f"cannot write metrics into {folder}: {error.strerror}") from error

    def add(self, port: int, job: str) -> None:
        """From the next round on, this port of this machine is scraped."""
        self._targets[f"{HOST}:{port}"] = {"job": job, "instance": f"{HOST}:{port}"}

    def remove(self, port: int) -> None:
        self._targets.pop(f"{HOST}:{port}", None)

    def follow(self, targets: Iterable[Target]) -> None:
        """From the next round on these are scraped besides those that were added, and no longer those of the call
        before. A target that was added as well keeps the labels that it has."""
        self._followed = {target.address: {"instance": target.address, **target.labels} for target in targets}

    async def __aenter__(self) -> Recorder:
        self._task = asyncio.create_task(self._run(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self.scrape()
            await self.flush()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Closes connections, for who calls `scrape` and `flush` without entering."""
        await self._http.close()

    def check(self) -> None:
        """:raises LocalError: when recording has ended by itself (a full disk)."""
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    async def scrape(self) -> None:
        """All targets at once; each series gets the moment its target was asked."""
        targets = {**self._followed, **self._targets}
        await asyncio.gather(*(self._scrape(address, extra) for address, extra in targets.items()))

    async def flush(self) -> None:
        """Writes what was scraped since the last time.

        :raises LocalError: when it can't be written.
        """
        if not self._numbers:
            return
        numbers, times, values = self._numbers, self._times, self._values
        self._numbers, self._times, self._values = array("q"), array("q"), array("d")
        path = self.folder / f"samples-{self._files:05d}.parquet"
        self._files += 1
        metrics, labels = list(self._series.metrics), list(self._series.labels)
        await asyncio.to_thread(_write, path, metrics, labels, numbers, times, values)
        self.rows += len(numbers)

    async def _run(self) -> None:
        began = flushed = time.monotonic()
        while True:
            await self.scrape()
            if time.monotonic() - flushed >= _FLUSH_SECONDS:
                flushed = time.monotonic()
                await self.flush()
            # The grid stays put however long a scrape takes; rounds that were missed are not made up for.
            into_round = (time.monotonic() - began) % self.interval
            await asyncio.sleep(self.interval - into_round)

    async def _scrape(self, address: str, extra: Labels) -> None:
        asked = round(self._now() * 1000)
        # With other labels it is another target: its series are others too.
        name = f"{address} {sorted(extra.items())}"
        answer = await self._http.get_from(address, "/metrics")
        up = 0.0
        if answer is not None and answer[0] == 200:
            try:
                numbers, values = self._series.read(name, answer[1], extra)
            except BadExposition:
                # As Prometheus does: the whole scrape counts as failed, `up` shows it.
                numbers, values = array("q"), array("d")
            else:
                up = 1.0
            self._append(numbers, values, asked)
        self._append(array("q", [self._series.number(name, "up", extra)]), array("d", [up]), asked)

    def _append(self, numbers: array[int], values: array[float], asked: int) -> None:
        self._numbers.extend(numbers)
        self._values.extend(values)
        self._times.extend(array("q", [asked]) * len(numbers))


def _write(
    path: Path,
    metrics: list[str],
    labels: list[dict[str, str]],
    numbers: array[int],
    times: array[int],
    values: array[float],
) -> None:
    """Each series' labels are built once and taken by number: a row costs no Python object."""
    chosen = pa.array(numbers, type=pa.int64())
    table = pa.table(
        [
            pa.array(metrics, type=pa.string()).take(chosen),
            pa.array([list(each.items()) for each in labels], type=SCHEMA.field("labels").type).take(chosen),
            pa.array(times, type=pa.int64()),
            pa.array(values, type=pa.float64()),
        ],
        schema=SCHEMA,
    )
    part = path.with_name(f".{path.name}.part")
    try:
        pq.write_table(table, part, compression="zstd")
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise LocalError(f"cannot write metrics into {path.parent}: {error}") from error
