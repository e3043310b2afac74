"""The data source `prometheus` for Spark: `session.read.format("prometheus")` and `session.readStream`.

The classes are thin: options are checked in `options.py`, a partition is read in `partitions.py`. They travel to
Spark's workers by name, so this package has to be installed there.
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession, is_remote
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, Filter, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from migratory_spark.prometheus import partitions, preflight, pushdown
from migratory_spark.prometheus.arrow import ArrowBatches, spark_schema
from migratory_spark.prometheus.errors import NoSamplesFound, OptionError
from migratory_spark.prometheus.options import SourceOptions, parse_options

FORMAT = "prometheus"
PUSHDOWN = "spark.sql.python.filterPushdown.enabled"

log = logging.getLogger(__name__)


class TimeRangePartition(InputPartition):
    """A partition of the window, [start, end) in ms since 1970."""

    def __init__(self, start_ms: int, end_ms: int) -> None:
        super().__init__((start_ms, end_ms))


class PrometheusDataSource(DataSource):
    """The data source `prometheus`; Spark calls its methods to get a schema and readers."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        options = parse_options(self.options)
        return spark_schema(options.columns, options.label_columns)

    def reader(self, schema: StructType) -> DataSourceReader:
        options = self._checked(schema)
        # Spark rejects a reader with pushFilters while pushdown is off, and a data source cannot find out.
        return FilteringReader(options) if options.pushdown else PrometheusReader(options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:
        return PrometheusStreamReader(self._checked(schema))

    def _checked(self, schema: StructType) -> SourceOptions:
        options = parse_options(self.options)
        expected = spark_schema(options.columns, options.label_columns)
        if [(field.name, field.dataType) for field in schema] != [(field.name, field.dataType) for field in expected]:
            raise OptionError(
                f"a schema cannot be given ({schema.simpleString()}): choose it by options shape, columns and "
                "labelColumns"
            )
        return options


def _batches(options: SourceOptions, partition: InputPartition) -> Iterator[pa.RecordBatch]:
    # Spark creates a partition without a value where there are none.
    if partition.value is not None:
        batches = ArrowBatches(options.shape, options.columns, options.label_columns)
        yield from batches.from_blocks(partitions.read(options, *partition.value))


class PrometheusReader(DataSourceReader):
    """A reader of the samples in a fixed window of time."""

    def __init__(self, options: SourceOptions) -> None:
        self._options = options

    def partitions(self) -> Sequence[InputPartition]:
        """Return the partitions of the window.

        If the servers have no samples, the option whenEmpty decides: `warn` logs the reason and returns none, `fail`
        raises NoSamplesFound, `allow` does not check. Raises OptionError without a window and for too many partitions,
        and ServerError if the check fails.
        """
        options = self._options
        start_ms, end_ms = preflight.window(options)
        if options.when_empty != "allow":
            try:
                preflight.check(options)
            except NoSamplesFound as nothing:
                if options.when_empty == "fail":
                    raise
                log.warning("%s", nothing)
                return []
        return [TimeRangePartition(*ends) for ends in partitions.cut(start_ms, end_ms, options.partition_ms)]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._options, partition)


class FilteringReader(PrometheusReader):
    """A reader of a fixed window with filter pushdown (option `pushdown`), which Spark's setting PUSHDOWN must enable,
    too.

    Spark 4.2 and 4.3 keep the latest reader with the loaded table and use it for every scan of the table, also for one
    with other filters or none.
    """

    def pushFilters(self, filters_: list[Filter]) -> Iterable[Filter]:
        """Narrow the options by the filters that can be pushed down, and return the filters that Spark must apply."""
        self._options, remaining = pushdown.push(self._options, filters_)
        return remaining


class PrometheusStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """A reader of a stream, which reads up to the present of the servers' clocks, minus the option `delay`, and not
    beyond the option `end`.

    Samples that arrive more than `delay` after their time are missed. An offset is the moment (ms since 1970) up to
    which everything was read.
    """

    def __init__(self, options: SourceOptions) -> None:
        self._options = options
        self._last_ms = options.end_ms  # where the stream ends

    def initialOffset(self) -> dict[str, int]:
        """Return the moment at which the stream starts: the option `start`, by default the present minus `delay`."""
        start_ms = self._options.start_ms
        return {"until_ms": self._now_ms() if start_ms is None else start_ms}

    def latestOffset(self, start: dict[str, int], limit: ReadLimit) -> dict[str, int]:
        """Return the moment up to which the next batch reads, never before `start`."""
        return {"until_ms": max(start["until_ms"], self._now_ms())}

    def prepareForTriggerAvailableNow(self) -> None:
        """Set the end of the stream to the present minus `delay` (or to the option `end`, if earlier). Spark calls this
        for streams that read what there is and then stop."""
        self._last_ms = self._now_ms()

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        ends = partitions.cut(start["until_ms"], end["until_ms"], self._options.partition_ms)
        return [TimeRangePartition(*interval) for interval in ends]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return _batches(self._options, partition)

    def _now_ms(self) -> int:
        """Return the moment up to which all servers have all samples, at most the stream's end."""
        clocks = [preflight.server_now_ms(url, self._options.access) for url in self._options.urls]
        now = min(clocks) - self._options.delay_ms
        return now if self._last_ms is None else min(now, self._last_ms)


def register(session: SparkSession) -> None:
    """Register the data source in the session, so that `format("prometheus")` finds it.

    In local mode, unless PYSPARK_PYTHON is set, let the session's Python workers run this process's own interpreter.
    """
    # PySpark's default, the python3 of PATH, lacks this package if the virtual environment is not activated.
    if "PYSPARK_PYTHON" not in os.environ and not is_remote():
        context = session.sparkContext
        if str(context.master).startswith("local"):
            context.pythonExec = sys.executable
    session.dataSource.register(PrometheusDataSource)


def read_samples(
    session: SparkSession, url: str, matchers: str, start_ms: int, end_ms: int, **options: Any
) -> DataFrame:
    """Return a lazy table of the samples with start <= timestamp < end (ms since 1970), each (series, time) once.

    Check at once that there are samples. More options of the data source are given by their names. Raises OptionError,
    ServerError, or NoSamplesFound with the reason.
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
