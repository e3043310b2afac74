"""/metrics of a worker, as an independent parser reads it."""

from __future__ import annotations

import asyncio

from migratory_loadtest.exporter import Exporter, MeterCollector
from migratory_loadtest.histogram import bounds
from migratory_loadtest.meter import BEFORE, Meter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


def page(meter: Meter) -> dict[tuple[str, str, str], float]:
    """By name, broker and `le`."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MeterCollector(meter, "quotes"))
    return {
        (sample.name, sample.labels.get("broker", ""), sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_what_happens_only_when_a_broker_dies_stands_at_zero_before() -> None:
    meter = Meter(bounds(), settle=1.0)
    meter.delivered(BEFORE, "b0", False, 0.01)
    meter.delivered(BEFORE, "b1", False, 0.01)
    found = page(meter)
    for broker in ("b0", "b1"):
        assert found["migratory_resume_seconds_count", broker, ""] == 0
        assert found["migratory_resume_seconds_bucket", broker, "5.0"] == 0
    assert found["migratory_publish_gap_seconds_count", "", ""] == 0

    meter.resumed("b0", 2.0)
    meter.publish_gaps([0.3])
    found = page(meter)
    assert found["migratory_resume_seconds_count", "b0", ""] == 1
    assert found["migratory_resume_seconds_bucket", "b0", "1.0"] == 0
    assert found["migratory_resume_seconds_bucket", "b0", "5.0"] == 1
    assert found["migratory_resume_seconds_count", "b1", ""] == 0
    assert found["migratory_publish_gap_seconds_bucket", "", "0.5"] == 1


async def test_it_serves_where_it_is_told_to() -> None:
    first = Exporter(Meter(bounds(), settle=1.0), "quotes", ("127.0.0.1", 0))
    host, _, port = (await first.start()).partition(":")
    first.stop()
    exporter = Exporter(Meter(bounds(), settle=1.0), "quotes", (host, int(port)))
    assert await exporter.start() == f"{host}:{port}"
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"process_start_time_seconds" in await reader.read()
        writer.close()
    finally:
        exporter.stop()


def test_since_when_it_counts_is_told_without_labels() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MeterCollector(Meter(bounds(), settle=1.0), "quotes", began=1234.5))
    assert "\nprocess_start_time_seconds 1234.5\n" in generate_latest(registry).decode()
