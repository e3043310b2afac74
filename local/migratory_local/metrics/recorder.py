"""The recorder: scrapes `/metrics` of brokers and load workers into Parquet files, for the SLA report.

The files are `samples-00000.parquet` and so on, with the columns metric, labels, timestamp (ms since 1970, UTC) and
value. A file appears complete or not at all. As in Prometheus, every series has the labels `job` and `instance`
(without them two workers' counters would be one series), and the series `up` says for each target and scrape whether it
answered: 1 or 0.
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

from migratory_local import LocalError
from migratory_local.metrics.exposition import InvalidExposition, Labels, SeriesTable
from migratory_local.metrics.scrape_file import ScrapeTarget
from migratory_local.processes.network import LOOPBACK, HttpClient

SCHEMA = pa.schema(
    [
        pa.field("metric", pa.string(), nullable=False),
        pa.field("labels", pa.map_(pa.string(), pa.string()), nullable=False),
        pa.field("timestamp", pa.int64(), nullable=False),
        pa.field("value", pa.float64(), nullable=False),
    ]
)
_FLUSH_SECONDS = 5.0
"""Seconds of samples per file: few files, and a killed recorder loses little."""


class Recorder:
    """A scraper that writes samples into a folder. Creating it creates the folder, and removes the samples of an
    earlier run from it.

    `async with Recorder(folder) as recorder: recorder.add(port, "broker")` scrapes until the block is left, which
    scrapes once more and writes the rest.

    `rows` is the number of samples written so far.

    :param interval: seconds between two scrapes of a target. A target that takes longer to answer counts as down.
    :param now: returns seconds since 1970, for the timestamps.
    :raises LocalError: the folder cannot be written.
    """

    def __init__(self, folder: Path, interval: float = 1.0, now: Callable[[], float] = time.time) -> None:
        self.folder = folder
        self.interval = interval
        self.rows = 0
        self._now = now
        self._http = HttpClient(interval)
        self._targets: dict[str, Labels] = {}
        self._followed: dict[str, Labels] = {}
        self._tls: set[str] = set()  # the addresses that are scraped with TLS
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

    def add(self, port: int, job: str, *, tls: bool = False) -> None:
        """Scrape this port of this machine from the next scrape on, with `job` as the label of that name. `tls`: the
        port has TLS; its certificate is not checked."""
        if tls:
            self._tls.add(f"{LOOPBACK}:{port}")
        self._targets[f"{LOOPBACK}:{port}"] = {"job": job, "instance": f"{LOOPBACK}:{port}"}

    def remove(self, port: int) -> None:
        """Scrape a port that was given to `add` no longer. Nothing happens for another port."""
        self._targets.pop(f"{LOOPBACK}:{port}", None)

    def follow(self, targets: Iterable[ScrapeTarget]) -> None:
        """Scrape these targets from the next scrape on, in addition to those of `add`, and in place of those of the
        last call.

        A target that was added as well keeps the labels of `add`.
        """
        self._followed = {target.address: {"instance": target.address, **target.labels} for target in targets}

    async def __aenter__(self) -> Recorder:
        self._task = asyncio.create_task(self._run(), name="recorder")
        return self

    async def __aexit__(self, *_: object) -> None:
        """Stop the repeated scrapes. Then scrape once more, write the rest, and close connections. Raise LocalError if
        the samples cannot be written."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        try:
            await self.scrape()
            await self.flush()
        finally:
            await self.aclose()

    async def aclose(self) -> None:
        """Close connections. `async with` does this; only callers of `scrape` and `flush` without it must."""
        await self._http.close()

    def check(self) -> None:
        """Raise the error that ended the repeated scrapes, if there is one: nothing is recorded any more.

        :raises LocalError: samples could not be written, for example because of a full disk.
        """
        if self._task is not None and self._task.done() and not self._task.cancelled():
            error = self._task.exception()
            if error is not None:
                raise error

    async def scrape(self) -> None:
        """Scrape all targets at the same time, and hold the samples in memory until `flush`. Samples have the time at
        which their target's request began. A target that fails has only the sample `up`, with 0."""
        targets = {**self._followed, **self._targets}
        await asyncio.gather(*(self._scrape(address, extra) for address, extra in targets.items()))

    async def flush(self) -> None:
        """Write the samples since the last call into a new file. Do nothing without samples. Samples that cannot be
        written are lost.

        :raises LocalError: the file cannot be written.
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
        """Scrape in every interval, and write the samples about every `_FLUSH_SECONDS`, until cancelled or a file
        cannot be written."""
        started_at = flushed_at = time.monotonic()
        while True:
            await self.scrape()
            if time.monotonic() - flushed_at >= _FLUSH_SECONDS:
                flushed_at = time.monotonic()
                await self.flush()
            # Rounds stay at multiples of the interval, however long a scrape takes. Missed rounds are skipped.
            into_round = (time.monotonic() - started_at) % self.interval
            await asyncio.sleep(self.interval - into_round)

    async def _scrape(self, address: str, extra: Labels) -> None:
        """Scrape one target, and append its samples and `up`. If it does not answer with 200 and valid text, `up` is 0
        and there are no other samples."""
        timestamp = round(self._now() * 1000)
        # The same address with other labels is another target, with other series.
        name = f"{address} {sorted(extra.items())}"
        base = f"https://{address}" if address in self._tls else address
        answer = await self._http.get_from(base, "/metrics")
        up = 0.0
        if answer is not None and answer[0] == 200:
            try:
                numbers, values = self._series.read(name, answer[1], extra)
            except InvalidExposition:
                # As in Prometheus the whole scrape counts as failed, which `up` shows.
                numbers, values = array("q"), array("d")
            else:
                up = 1.0
            self._append(numbers, values, timestamp)
        self._append(array("q", [self._series.number(name, "up", extra)]), array("d", [up]), timestamp)

    def _append(self, numbers: array[int], values: array[float], timestamp: int) -> None:
        self._numbers.extend(numbers)
        self._values.extend(values)
        self._times.extend(array("q", [timestamp]) * len(numbers))


def _write(
    path: Path,
    metrics: list[str],
    labels: list[dict[str, str]],
    numbers: array[int],
    times: array[int],
    values: array[float],
) -> None:
    """Write samples into the file `path`, which appears complete or not at all. `numbers` are indexes into `metrics`
    and `labels`, and `times` are ms since 1970. Raise LocalError if it cannot be written.

    Labels are built once per series and referred to by number, so a row costs no Python object.
    """
    indexes = pa.array(numbers, type=pa.int64())
    table = pa.table(
        [
            pa.array(metrics, type=pa.string()).take(indexes),
            pa.array([list(each.items()) for each in labels], type=SCHEMA.field("labels").type).take(indexes),
            pa.array(times, type=pa.int64()),
            pa.array(values, type=pa.float64()),
        ],
        schema=SCHEMA,
    )
    part = path.with_name(f".{path.name}.part")
    try:
        pq.write_table(table, part, compression="zstd", write_page_checksum=True)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise LocalError(f"cannot write metrics into {path.parent}: {error}") from error
