"""Samples as a fleet of load workers would export them, and the sums that a report of them must find.

Each worker exports a latency histogram per broker (with the bounds that the product uses), counters of deliveries, and
a counter of expected deliveries. The deliveries between two scrapes are random, drawn from the seed. A bucket holds a
fixed share of them, rounded down, so that counters rise and are whole numbers. Memory holds one block of time at once.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt
from migratory_loadtest.histogram import bucket_bounds

BROKERS = ("quotes-broker-0", "quotes-broker-1", "quotes-broker-2")
LATENCY = "migratory_delivery_latency_seconds"
START_MS = 1_767_225_600_000  # 2026-01-01T00:00:00Z, on the edge of a block of Prometheus's
STEP_MS = 15_000
_BLOCK = 480  # scrapes
MEDIAN, SPREAD = 0.012, 0.8  # of the log-normal latency, in seconds


@dataclass(slots=True, frozen=True)
class Series:
    metric: str
    labels: tuple[tuple[str, str], ...]
    """Sorted by name, without the metric's."""
    source: int
    """Number of the counter of deliveries that the series follows: worker * brokers + broker."""
    share: float
    """Share of those deliveries: the series has the value floor(share * deliveries)."""

    @property
    def text(self) -> str:
        inside = ",".join(f'{name}="{value}"' for name, value in self.labels)
        return f"{self.metric}{{{inside}}}"


@dataclass(slots=True)
class Block:
    """The samples of a stretch of time: `times` in ms, `values[series, time]`."""

    times: npt.NDArray[np.int64]
    values: npt.NDArray[np.int64]

    def pieces(self, scrapes: int) -> Iterator[Block]:
        """Divide the block into blocks of at most `scrapes` times."""
        for first in range(0, len(self.times), scrapes):
            yield Block(self.times[first : first + scrapes], self.values[:, first : first + scrapes])


@dataclass(slots=True)
class Fleet:
    """Load workers, each with about 650 series, that are scraped `scrapes` times."""

    workers: int
    scrapes: int
    per_scrape: float = 500.0
    seed: int = 7
    series: list[Series] = field(init=False)

    def __post_init__(self) -> None:
        self.series = [series for worker in range(self.workers) for series in _series(worker)]

    @property
    def samples(self) -> int:
        return len(self.series) * self.scrapes

    @property
    def end_ms(self) -> int:
        """The time of the last sample."""
        return START_MS + (self.scrapes - 1) * STEP_MS

    def blocks(self) -> Iterator[Block]:
        """Generate all samples in blocks of two hours, like those of Prometheus. The random values depend on where
        blocks end, so a user who needs smaller blocks must divide these with `pieces`."""
        random = np.random.default_rng(self.seed)
        sources = np.array([series.source for series in self.series])
        shares = np.array([series.share for series in self.series])
        delivered = np.zeros((self.workers * len(BROKERS), 1), dtype=np.int64)
        for first in range(0, self.scrapes, _BLOCK):
            count = min(_BLOCK, self.scrapes - first)
            rises = random.poisson(self.per_scrape, (len(delivered), count))
            if first == 0:
                rises[:, 0] = 0  # every counter begins at zero
            running = delivered + np.cumsum(rises, axis=1)
            delivered = running[:, -1:]
            times = START_MS + STEP_MS * np.arange(first, first + count, dtype=np.int64)
            yield Block(times, np.floor(running[sources] * shares[:, None]).astype(np.int64))

    def truth(self) -> dict[str, int]:
        """Return by metric how much its series rose in total."""
        last: npt.NDArray[np.int64] | None = None
        for block in self.blocks():
            last = block.values[:, -1]
        assert last is not None
        totals: dict[str, int] = {}
        for series, value in zip(self.series, last.tolist(), strict=True):
            totals[series.metric] = totals.get(series.metric, 0) + value
        return totals


def _series(worker: int) -> Iterator[Series]:
    base = {"cluster": "quotes", "job": "bench", "instance": f"10.0.{worker // 250}.{worker % 250}:9464"}

    def one(metric: str, source: int, share: float, **more: str) -> Series:
        return Series(metric, tuple(sorted((base | more).items())), source, share)

    for number, broker in enumerate(BROKERS):
        source = worker * len(BROKERS) + number
        labels = {"broker": broker, "clock": "same", "phase": "live"}
        for bound in bucket_bounds():
            share = 0.5 * (1 + math.erf(math.log(bound / MEDIAN) / (SPREAD * math.sqrt(2))))
            yield one(f"{LATENCY}_bucket", source, share, le=repr(bound), **labels)
        yield one(f"{LATENCY}_bucket", source, 1.0, le="+Inf", **labels)
        yield one(f"{LATENCY}_count", source, 1.0, **labels)
        mean = MEDIAN * math.exp(SPREAD**2 / 2)
        yield one(f"{LATENCY}_sum", source, mean, **labels)
        yield one(f"{LATENCY}_squared_total", source, mean**2 * math.exp(SPREAD**2), **labels)
        yield one("migratory_received_total", source, 1.0, broker=broker)
        yield one("migratory_expected_total", source, 1.0, broker=broker)
        for name in ("lost", "duplicates", "reordered"):
            yield one(f"migratory_{name}_total", source, 0.0, broker=broker)
