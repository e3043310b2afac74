"""Fixture: a real Prometheus with known samples."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from migratory_testing.realprometheus import Prometheus, backfill, missing

START = 1_767_225_600  # seconds; 2026-01-01T00:00:00Z
SCRAPES = 600
STEP = 15


@pytest.fixture(scope="session", autouse=True)
def installed() -> None:
    if name := missing():
        pytest.skip(f"no {name} on PATH")


@pytest.fixture(scope="session")
def known(installed: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    """Run a Prometheus with two counters of three brokers, 600 samples 15 s apart, and yield it. `work_total` of
    broker b0, b1, b2 rises by 7, 14, 21 per scrape, and `idle_total` stays 0. Its external label is replica="a"."""
    lines = [
        f'{metric}{{broker="b{broker}"}} {value} {START + STEP * scrape}'
        for scrape in range(SCRAPES)
        for broker in range(3)
        for metric, value in (("work_total", 7 * scrape * (broker + 1)), ("idle_total", 0))
    ]
    folder = backfill(tmp_path_factory.mktemp("known"), lines)
    with Prometheus(folder, external_labels={"replica": "a"}) as server:
        yield server
