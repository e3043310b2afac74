"""The /metrics of a worker, read by prometheus_client's parser."""

from __future__ import annotations

import asyncio

from migratory_loadtest.exporter import LoadExporter, MeterCollector
from migratory_loadtest.histogram import bucket_bounds
from migratory_loadtest.meter import BEFORE, Meter
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.parser import text_string_to_metric_families


def samples(meter: Meter) -> dict[tuple[str, str, str], float]:
    """Return the values that a scrape of the meter gives, by name, broker and `le` ("" if absent)."""
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MeterCollector(meter, "quotes"))
    return {
        (sample.name, sample.labels.get("broker", ""), sample.labels.get("le", "")): sample.value
        for family in text_string_to_metric_families(generate_latest(registry).decode())
        for sample in family.samples
    }


def test_resume_and_publish_gap_are_at_zero_before_a_fault() -> None:
    meter = Meter(bucket_bounds(), settle=1.0)
    meter.delivered(BEFORE, "b0", False, 0.01)
    meter.delivered(BEFORE, "b1", False, 0.01)
    exported = samples(meter)
    for broker in ("b0", "b1"):
        assert exported["migratory_resume_seconds_count", broker, ""] == 0
        assert exported["migratory_resume_seconds_bucket", broker, "5.0"] == 0
    assert exported["migratory_publish_gap_seconds_count", "", ""] == 0

    meter.resumed("b0", 2.0)
    meter.publish_gaps([0.3])
    exported = samples(meter)
    assert exported["migratory_resume_seconds_count", "b0", ""] == 1
    assert exported["migratory_resume_seconds_bucket", "b0", "1.0"] == 0
    assert exported["migratory_resume_seconds_bucket", "b0", "5.0"] == 1
    assert exported["migratory_resume_seconds_count", "b1", ""] == 0
    assert exported["migratory_publish_gap_seconds_bucket", "", "0.5"] == 1


async def test_exporter_serves_on_the_given_address() -> None:
    first = LoadExporter(Meter(bucket_bounds(), settle=1.0), "quotes", ("127.0.0.1", 0))
    host, _, port = (await first.start()).partition(":")
    first.stop()
    exporter = LoadExporter(Meter(bucket_bounds(), settle=1.0), "quotes", (host, int(port)))
    assert await exporter.start() == f"{host}:{port}"
    try:
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
        assert b"process_start_time_seconds" in await reader.read()
        writer.close()
    finally:
        exporter.stop()


def test_start_time_is_exported_without_labels() -> None:
    registry = CollectorRegistry(auto_describe=False)
    registry.register(MeterCollector(Meter(bucket_bounds(), settle=1.0), "quotes", started_at=1234.5))
    assert "\nprocess_start_time_seconds 1234.5\n" in generate_latest(registry).decode()
