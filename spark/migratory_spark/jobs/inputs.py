"""Inputs of a report: the recorder's folder or Prometheus servers, as the options name them.

Each has a method `check`, to be called before Spark starts, so that a wrong folder or server is reported at once. Spark
is imported only where samples are read.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migratory_spark import metrics
from migratory_spark.jobs.command_line import BadInput, SamplesUnreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from migratory_spark.read.samples import SampleSource

_RECORDER_DELAY = 10.0
"""Seconds after which a sample is in a file of the recorder, which writes every 5 s."""
_TASK_SAMPLES = 2_500_000
"""Samples that one task reads from a server, about. With fewer, decoding labels would be most of the work."""
_NATIVE_SAMPLES = 250
"""Samples in the classic form of one native histogram, about: the bounds of the product's exporters."""
_RESERVED = ("url", "matchers", "start", "end", "shape", "columns", "whenEmpty", "dropLabels", "histograms")
_USE_PROMETHEUS = (
    "where a Prometheus keeps the metrics, as `migratory up` has it when one is on PATH (it prints a line `Metrics`), "
    "ask that: --prometheus URL"
)
_ALTERNATIVES = {"dropLabels": "; use --replica-label NAME, which keeps the servers' samples apart"}


@dataclass(frozen=True, slots=True)
class RecorderFolder:
    """A folder with the recorder's Parquet files, in itself or in folders by day as `recorder_compact` writes them.
    `cluster` is the cluster whose samples `read` selects, None for all."""

    path: Path
    cluster: str | None

    def check(self) -> None:
        """Check that the folder exists, can be read, and has Parquet files in itself or below. Raises BadInput."""
        if not self.path.exists():
            raise BadInput(f"--samples: {self.path} does not exist; {_USE_PROMETHEUS}")
        if not self.path.is_dir():
            raise BadInput(f"--samples: {self.path} is a file; name the folder of the *.parquet files")
        try:
            first_file = next((path for path in self.path.rglob("*.parquet") if path.is_file()), None)
        except OSError as error:
            raise BadInput(f"--samples: {self.path}: {error.strerror or error}") from None
        if first_file is None:
            raise BadInput(
                f"--samples: no *.parquet files in {self.path}: nothing was recorded there; {_USE_PROMETHEUS}"
            )

    def settled(self) -> float:
        """Return the moment up to which all samples have arrived in files, in seconds since 1970: 10 s ago."""
        return time.time() - _RECORDER_DELAY

    def samples(self, session: SparkSession) -> SampleSource:
        """Return the samples of all clusters as a source for `build_report`, which selects the cluster. Raises
        NoSamples if there are no files."""
        from migratory_spark.read.samples import parquet_source

        return parquet_source(session, self.path)

    def read(self, session: SparkSession) -> DataFrame:
        """Return a Spark table with a row per sample of the cluster (of all clusters if none is given), and with the
        column `source` if a file has it."""
        # Imported here: loading Spark takes long, and an error of `check` should not wait for it.
        from migratory_spark.read.samples import schema_of

        schema = schema_of(path for path in self.path.rglob("*.parquet") if path.is_file())
        table = session.read.schema(schema).option("recursiveFileLookup", "true").parquet(str(self.path))
        return _select_cluster(table, self.cluster)


@dataclass(frozen=True, slots=True)
class PrometheusServers:
    """Prometheus servers, and the time from `first_ms` to `end_ms` (ms since 1970, both included) that a report reads
    from them.

    `urls` are their URLs, separated by commas. `cluster` is the cluster whose samples are read, None for all.
    `settings` are more options of the data source, by name.
    """

    urls: str
    cluster: str | None
    first_ms: int
    end_ms: int
    settings: Mapping[str, str]

    @property
    def _metrics(self) -> list[str]:
        """The sorted names of the metrics that a report reads and that only this product exports, histograms in the
        classic form and as native ones."""
        return sorted(metrics.with_native(metrics.all_metrics()) - set(metrics.SHARED))

    @property
    def _cluster_matcher(self) -> str:
        """The PromQL label matcher of the cluster, "" for all clusters."""
        # A cluster's name may contain any character; PromQL quotes as JSON does.
        return "" if self.cluster is None else f"cluster={json.dumps(self.cluster, ensure_ascii=False)}"

    @property
    def _product_matchers(self) -> str:
        """The PromQL selector of the cluster's metrics that only this product exports, not of those that other
        exporters have as well."""
        metric_matcher = f'__name__=~"{"|".join(self._metrics)}"'
        return f"{{{','.join(filter(None, (metric_matcher, self._cluster_matcher)))}}}"

    @property
    def options(self) -> dict[str, str]:
        """The options with which the Prometheus data source reads the samples of a report. Shared metrics
        (`metrics.SHARED`) are read of all clusters and programs."""
        matchers = f'{self._product_matchers} {{__name__=~"{"|".join(metrics.SHARED)}"}}'
        with_source = "," in self.urls
        return {
            "url": self.urls,
            "matchers": matchers,
            "start": _seconds(max(0, self.first_ms)),
            # The data source excludes the end; a report includes it.
            "end": _seconds(self.end_ms + 1),
            "columns": "metric,labels,timestamp,value,series" + (",source" if with_source else ""),
            "whenEmpty": "allow",
            "histograms": "classic",
            **self.settings,
        }

    def check(self) -> None:
        """Check that the options are valid and that one of the servers has samples of the product's metrics, of the
        cluster, in the time.

        Raises BadInput for invalid options and if there are no samples, SamplesUnreadable for a server that does not
        answer.
        """
        from migratory_spark.prometheus import NoSamplesFound, OptionError, ServerError, preflight
        from migratory_spark.prometheus.options import parse_options

        # The data source accepts names in any case.
        given = {name.lower() for name in self.settings}
        if wrong := [name for name in _RESERVED if name.lower() in given]:
            raise BadInput(f"--prometheus-option: {wrong[0]} is set by the report{_ALTERNATIVES.get(wrong[0], '')}")
        try:
            preflight.check(parse_options({**self.options, "matchers": self._product_matchers}))
        except OptionError as error:
            raise BadInput(f"--prometheus: {error}") from None
        except NoSamplesFound as error:
            of = f" (asked for cluster {self.cluster!r})" if self.cluster is not None else ""
            raise BadInput(f"--prometheus: {error}{of}") from error
        except ServerError as error:
            raise SamplesUnreadable(f"--prometheus: {error}") from None

    def settled(self) -> float:
        """Return the moment up to which all samples have arrived, in seconds since 1970: the present of the slowest of
        the servers' clocks (of this machine's clock if a server does not answer), minus the data source's option
        `delay`. Ask each server once."""
        from dataclasses import replace

        from migratory_spark.prometheus import ServerError, preflight
        from migratory_spark.prometheus.options import parse_options

        options = parse_options(self.options)
        try:
            once = replace(options.access, retries=0)
            now_ms = min(preflight.server_now_ms(url, once) for url in options.urls)
        except ServerError:
            # Some servers have remote read and no queries.
            now_ms = round(time.time() * 1000)
        return (now_ms - options.delay_ms) / 1000

    def samples(self, session: SparkSession) -> SampleSource:
        """Return the servers' samples of the cluster (without one: of all), and those of metrics without the label
        `cluster`, as a source for a report.

        Native histograms are read in the classic form. Ask the servers for the number of samples, from which the length
        of a task's interval follows unless the settings have the option `partition`. Raises OptionError if the window
        has too many partitions.
        """
        from migratory_spark.prometheus import partitions, preflight
        from migratory_spark.prometheus.options import parse_options
        from migratory_spark.read.samples import prometheus_source

        options = parse_options(self.options)
        selectors = {name: f"{name}{{{self._cluster_matcher}}}" for name in self._metrics}
        native = [selectors.pop(name) for name in metrics.HISTOGRAMS]
        numbers, histograms = (
            preflight.count_samples(parse_options({**self.options, "matchers": " ".join(each)}))
            for each in ((*selectors.values(), *metrics.SHARED), native)
        )
        samples = None if numbers is None or histograms is None else numbers + histograms * _NATIVE_SAMPLES
        start_ms, end_ms = preflight.window(options)
        length = options.partition_ms
        if length is None and samples is not None:
            length = partitions.length_for(end_ms - start_ms, samples, _TASK_SAMPLES)
        return prometheus_source(session, options, partitions.cut(start_ms, end_ms, length), samples)

    def read(self, session: SparkSession) -> DataFrame:
        """Return a Spark table with a row per sample of the cluster (of all clusters if none is given), and register
        the data source in the session."""
        from migratory_spark.prometheus import FORMAT, register

        register(session)
        return _select_cluster(session.read.format(FORMAT).options(**self.options).load(), self.cluster)


SampleInput = RecorderFolder | PrometheusServers


def sample_input(
    samples: Path | None,
    prometheus: str | None,
    cluster: str | None,
    window_ms: tuple[int, int],
    settings: Sequence[tuple[str, str]],
) -> SampleInput:
    """Return the input that the options name. It is not checked yet.

    :param samples: the option --samples.
    :param prometheus: the option --prometheus.
    :param cluster: the option --cluster.
    :param window_ms: first and last moment to read from servers, in ms since 1970.
    :param settings: the options --prometheus-option.
    :raises BadInput: not exactly one of --samples and --prometheus is given, or settings are given with --samples.
    """
    if (samples is None) == (prometheus is None):
        raise BadInput("give either --samples DIR or --prometheus URL")
    if samples is not None:
        if settings:
            raise BadInput("--prometheus-option needs --prometheus")
        return RecorderFolder(samples, cluster)
    assert prometheus is not None
    return PrometheusServers(prometheus, cluster, *window_ms, dict(settings))


def _select_cluster(table: DataFrame, cluster: str | None) -> DataFrame:
    """Return the rows of the cluster and those of shared metrics (`metrics.SHARED`) without the label `cluster`; all
    rows if `cluster` is None."""
    if cluster is None:
        return table
    from pyspark.sql import functions as F

    cluster_label: Any = F.col("labels")["cluster"]
    return table.where((cluster_label == cluster) | (F.col("metric").isin(*metrics.SHARED) & cluster_label.isNull()))


def _seconds(milliseconds: int) -> str:
    """Return milliseconds as the text of seconds with three decimals."""
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
