"""The data source's interface without Spark: partitions, offsets of streams, and which reader the options select."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable

import pyarrow as pa
import pytest
from migratory_spark.prometheus.errors import NoSamplesFound, OptionError
from migratory_spark.prometheus.source import FilteringReader, PrometheusDataSource, PrometheusStreamReader
from migratory_testing.fakeprometheus import JSON, FakePrometheus, Reply, Request
from migratory_testing.prometheus_wire import streamed, window_of
from pyspark.sql.datasource import DataSourceReader, EqualTo, InputPartition, LessThan
from pyspark.sql.streaming.datasource import ReadAllAvailable
from pyspark.sql.types import LongType, StructType

SAMPLES = [({"__name__": "up", "i": "0"}, [(1000 * second, float(second)) for second in range(1000)])]


def server(clock: Callable[[], int] = lambda: 2_000_000) -> FakePrometheus:
    """Return a fake server with samples of `up` at every second from 0 to 999. `clock` returns its time in ms."""

    def answer(request: Request) -> Reply:
        if request.path == "/api/v1/query":
            data = {"resultType": "scalar", "result": [0, str(clock() / 1000)]}
            return Reply(json.dumps({"status": "success", "data": data}).encode(), kind=JSON)
        if request.path != "/api/v1/read":
            return Reply(b"", 404)
        first, last = window_of(request.body)
        inside = [sample for sample in SAMPLES[0][1] if first <= sample[0] <= last]
        return Reply(streamed([(SAMPLES[0][0], inside)] if inside else []))

    return FakePrometheus(answer)


def source(*servers: FakePrometheus, **options: str) -> PrometheusDataSource:
    urls = ",".join(prometheus.url for prometheus in servers)
    return PrometheusDataSource({"url": urls, "matchers": "up", "retries": "0"} | options)


def reader(*servers: FakePrometheus, **options: str) -> DataSourceReader:
    made = source(*servers, **options)
    return made.reader(made.schema())


def times_of(reader: DataSourceReader | PrometheusStreamReader, partition: InputPartition) -> list[int]:
    times: list[int] = []
    for batch in reader.read(partition):
        assert isinstance(batch, pa.RecordBatch)
        times += batch.column("timestamp").to_pylist()
    return times


def stream(*servers: FakePrometheus, **options: str) -> PrometheusStreamReader:
    made = source(*servers, **options)
    stream_reader = made.streamReader(made.schema())
    assert isinstance(stream_reader, PrometheusStreamReader)
    return stream_reader


def test_partitions_cover_the_window_once() -> None:
    with server() as prometheus:
        source = reader(prometheus, start="100.5", end="400", partition="2m")
        partitions = source.partitions()
        ends = [100_500, 120_000, 240_000, 360_000, 400_000]
        assert [partition.value for partition in partitions] == list(itertools.pairwise(ends))
        times = [time for part in partitions for time in times_of(source, part)]
        assert times == [1000 * second for second in range(101, 400)]
        # Where there is no partition Spark makes one without a value.
        assert list(source.read(InputPartition(None))) == []


def test_an_empty_window_follows_option_when_empty(caplog: pytest.LogCaptureFixture) -> None:
    with server() as prometheus:
        window = {"start": "1100", "end": "1200"}
        assert reader(prometheus, **window).partitions() == []
        assert "no samples from 1970-01-01T00:18:20.000Z to 1970-01-01T00:20:00.000Z" in caplog.text
        with pytest.raises(NoSamplesFound):
            reader(prometheus, **window, whenEmpty="fail").partitions()
        request_count = len(prometheus.requests)
        assert len(reader(prometheus, **window, whenEmpty="allow").partitions()) == 1
        assert len(prometheus.requests) == request_count


def test_filters_are_pushed_down_only_if_enabled() -> None:
    with server() as prometheus:
        plain = reader(prometheus, start="0", end="9")
        assert type(plain).pushFilters is DataSourceReader.pushFilters
        source = reader(prometheus, pushdown="true", start="0", end="900", partition="1h")
        assert isinstance(source, FilteringReader)
        value_filter = EqualTo(("value",), 1.0)
        assert source.pushFilters([LessThan(("timestamp",), 5000), value_filter]) == [value_filter]
        assert [partition.value for partition in source.partitions()] == [(0, 5000)]


def test_another_schema_is_rejected() -> None:
    with server() as prometheus:
        made = source(prometheus, start="0", end="9")
        with pytest.raises(OptionError, match="choose it by options shape, columns and labelColumns"):
            made.reader(StructType().add("x", LongType()))


def test_a_stream_follows_the_slowest_clock_by_its_delay() -> None:
    clock = [100_000]
    with server(lambda: clock[0]) as prometheus, server(lambda: clock[0] + 7000) as ahead:
        assert stream(prometheus, ahead).initialOffset() == {"until_ms": 85_000}
        source = stream(ahead, prometheus, start="10", delay="20s")
        assert source.initialOffset() == {"until_ms": 10_000}
        assert source.latestOffset({"until_ms": 10_000}, ReadAllAvailable()) == {"until_ms": 80_000}
        clock[0] = 60_000
        # A clock that was set back tells nothing a second time.
        assert source.latestOffset({"until_ms": 80_000}, ReadAllAvailable()) == {"until_ms": 80_000}
        assert source.partitions({"until_ms": 80_000}, {"until_ms": 80_000}) == []


def test_the_batches_of_a_stream_have_each_sample_once() -> None:
    clock = [50_000]
    with server(lambda: clock[0]) as prometheus:
        source = stream(prometheus, start="10", end="300", partition="1m", columns="timestamp")
        offset, times = source.initialOffset(), []
        for clock[0] in (60_000, 61_500, 190_000, 400_000, 500_000):
            after = source.latestOffset(offset, ReadAllAvailable())
            for partition in source.partitions(offset, after):
                times += times_of(source, partition)
            offset = after
    assert times == [1000 * second for second in range(10, 300)]


def test_a_stream_of_available_samples_ends() -> None:
    clock = [115_000]
    with server(lambda: clock[0]) as prometheus:
        source = stream(prometheus, start="0")
        source.prepareForTriggerAvailableNow()
        clock[0] = 500_000
        assert source.latestOffset({"until_ms": 0}, ReadAllAvailable()) == {"until_ms": 100_000}
        assert source.latestOffset({"until_ms": 100_000}, ReadAllAvailable()) == {"until_ms": 100_000}
