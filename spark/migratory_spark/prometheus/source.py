"""The data source `prometheus` for Spark: `session.read.format("prometheus")` and `session.readStream`.

Thin: options are checked in `options.py`, a partition is read in `partitions.py`. The classes travel to Spark's
workers by name, so this package has to be installed there.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from migratory_spark.errors import NothingFound, OptionError
from migratory_spark.prometheus import partitions, preflight, pushdown
from migratory_spark.prometheus.arrow import Batches, spark_schema
from migratory_spark.prometheus.options import Options, parse_options

FORMAT = "prometheus"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

log = logging.getLogger(__name__)


class Stretch(InputPartition):
    """[start, end) in ms."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        super().__init__((start_ms, end_ms))


class PrometheusDataSource(DataSource):
    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        return spark_schema(parse_options(self.options).columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._checked(schema)
        # Spark refuses a reader that takes filters while pushdown is off, and does not tell a source whether it is.
        return FilteringReader(options) if options.pushdown else PrometheusReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PrometheusStreamReader(self._checked(schema))

    def _checked(self, schema: StructType) -> Options:
        options = parse_options(self.options)
        own = spark_schema(options.columns)
        if [(one.name, one.dataType) for one in schema] != [(one.name, one.dataType) for one in own]:
            raise OptionError(
                f"a schema is not to be given ({schema.simpleString()}): choose by options shape and columns"
            )
        return options


def _batches(options: Options, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark makes a partition without a value where there is none.
    if partition.value is not None:
        yield from Batches(options.shape, options.columns).of(partitions.read(options, *partition.value))


class PrometheusReader(DataSourceReader):
    def __init__(self, options: Options) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        options = self._options
        start_ms, end_ms = preflight.window(options)
        if options.when_empty != "allow":
            try:
                preflight.check(options)
            except NothingFound as nothing:
                if options.when_empty == "fail":
                    raise
                log.warning("%s", nothing)
                return []
        return [Stretch(*ends) for ends in partitions.cut(start_ms, end_ms, options.partition_ms)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._options, partition)


class FilteringReader(PrometheusReader):
    """With option `pushdown`, which needs Spark's configuration of the name PUSHDOWN as well."""

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:
        self._options, left = pushdown.push(self._options, filters_)
        return left


class PrometheusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Follows the servers' clocks, `delay` behind: what is scraped later than that for a moment is not seen any more.

    An offset is the moment up to which all was told.
    """

    def __init__(self, options: Options) -> None:
        self._options = options
        self._last_ms = options.end_ms  # nothing from here on

    def initialOffset(self) -> dict[str, int]:
        start_ms = self._options.start_ms
        return {"until_ms": self._now_ms() if start_ms is None else start_ms}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        return {"until_ms": max(start["until_ms"], self._now_ms())}

    def prepareForTriggerAvailableNow(self) -> None:
        self._last_ms = self._now_ms()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        ends = partitions.cut(start["until_ms"], end["until_ms"], self._options.partition_ms)
        return [Stretch(*one) for one in ends]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._options, partition)

    def _now_ms(self) -> int:
        """How far all servers surely have everything."""
        clocks = [preflight.server_now_ms(url, self._options.access) for url in self._options.urls]
        now = min(clocks) - self._options.delay_ms
        return now if self._last_ms is None else min(now, self._last_ms)


def register(session: SparkSession) -> None:
    """Makes `format("prometheus")` known to the session."""
    session.dataSource.register(PrometheusDataSource)


def read_samples(
    session: SparkSession, url: str, matchers: str, start_ms: int, end_ms: int, **options: Any
) -> DataFrame:
    """Samples with start <= timestamp < end, lazily; (series, time) once. More options by their names.

    Whether there are any is asked at once. Raises OptionError, ServerError, or NothingFound with the reason.
    """
    register(session)
    given = {
        "url": url,
        "matchers": matchers,
        "start": f"{start_ms // 1000}.{start_ms % 1000:03}",
        "end": f"{end_ms // 1000}.{end_ms % 1000:03}",
        "whenEmpty": "allow",
        **{name: str(value) for name, value in options.items()},
    }
    preflight.check(parse_options(given))
    return session.read.format(FORMAT).options(**given).load()
