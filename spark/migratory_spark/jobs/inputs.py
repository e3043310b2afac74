"""Where a report's samples come from. Looked at before Spark starts: a wrong folder or server is told in no time."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from migratory_spark import metrics
from migratory_spark.jobs.command_line import BadInput, Unreadable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from migratory_spark.read.samples import Source as Samples

_TASK = 2_500_000
"""Samples that one task reads from a server: in shorter stretches of time labels would be most of the work."""
_OURS = ("url", "matchers", "start", "end", "shape", "columns", "whenEmpty", "dropLabels")
_ELSEWHERE = (
    "where a Prometheus keeps the metrics, as `migratory up` has it when one is on PATH (it prints a line `Metrics`), "
    "ask that: --prometheus URL"
)
_INSTEAD = {"dropLabels": "; --replica-label NAME tells servers apart without mixing their samples"}


@dataclass(frozen=True, slots=True)
class Folder:
    """The recorder's Parquet files in a folder, or below it by day as `recorder_compact` leaves them."""

    path: Path
    cluster: str | None

    def check(self) -> None:
        """Raises BadInput."""
        if not self.path.exists():
            raise BadInput(f"--samples: {self.path} does not exist; {_ELSEWHERE}")
        if not self.path.is_dir():
            raise BadInput(f"--samples: {self.path} is a file; the folder of the *.parquet files is wanted")
        try:
            found = next((path for path in self.path.rglob("*.parquet") if path.is_file()), None)
        except OSError as error:
            raise BadInput(f"--samples: {self.path}: {error.strerror or error}") from None
        if found is None:
            raise BadInput(f"--samples: no *.parquet files in {self.path}: nothing was recorded there; {_ELSEWHERE}")

    def samples(self, session: SparkSession) -> Samples:
        """For a report, which chooses the cluster itself."""
        from migratory_spark.read.samples import files

        return files(session, self.path)

    def read(self, session: SparkSession) -> DataFrame:
        """As a table, a row per sample; with `source` where a file has it."""
        # Spark takes long to load; who is told at once that there is no such folder should not wait for it.
        from migratory_spark.read.samples import schema_of

        schema = schema_of(path for path in self.path.rglob("*.parquet") if path.is_file())
        table = session.read.schema(schema).option("recursiveFileLookup", "true").parquet(str(self.path))
        return _of_cluster(table, self.cluster)


@dataclass(frozen=True, slots=True)
class Servers:
    """Prometheus servers, asked for what a report reads within [first_ms, end_ms]."""

    urls: str
    cluster: str | None
    first_ms: int
    end_ms: int
    settings: Mapping[str, str]

    @property
    def _metrics(self) -> list[str]:
        return sorted(set(metrics.all_metrics()) - set(metrics.SHARED))

    @property
    def _named(self) -> str:
        # A cluster's name may hold anything; PromQL quotes as JSON does.
        return "" if self.cluster is None else f"cluster={json.dumps(self.cluster, ensure_ascii=False)}"

    @property
    def _own(self) -> str:
        """Matchers of what only this product exports. Others' exporters have the shared metrics, too."""
        ours = f'__name__=~"{"|".join(self._metrics)}"'
        return f"{{{','.join(filter(None, (ours, self._named)))}}}"

    @property
    def options(self) -> dict[str, str]:
        matchers = f'{self._own} {{__name__=~"{"|".join(metrics.SHARED)}"}}'
        several = "," in self.urls
        return {
            "url": self.urls,
            "matchers": matchers,
            "start": _seconds(max(0, self.first_ms)),
            # The source leaves the end itself out; a report counts up to it.
            "end": _seconds(self.end_ms + 1),
            "columns": "metric,labels,timestamp,value,series" + (",source" if several else ""),
            "whenEmpty": "allow",
            **self.settings,
        }

    def check(self) -> None:
        """Raises BadInput for options, a window or names that lead nowhere, Unreadable for a server that can't be
        asked."""
        from migratory_spark.prometheus import NothingFound, OptionError, ServerError, preflight
        from migratory_spark.prometheus.options import parse_options

        # The data source takes names in any case.
        given = {name.lower() for name in self.settings}
        if wrong := [name for name in _OURS if name.lower() in given]:
            raise BadInput(f"--prometheus-option: {wrong[0]} is for the report to say{_INSTEAD.get(wrong[0], '')}")
        try:
            preflight.check(parse_options({**self.options, "matchers": self._own}))
        except OptionError as error:
            raise BadInput(f"--prometheus: {error}") from None
        except NothingFound as error:
            of = f" (asked for cluster {self.cluster!r})" if self.cluster is not None else ""
            raise BadInput(f"--prometheus: {error}{of}") from None
        except ServerError as error:
            raise Unreadable(f"--prometheus: {error}") from None

    def samples(self, session: SparkSession) -> Samples:
        """For a report, which chooses the cluster itself: a row per series, so that labels come once and not with every
        sample."""
        from dataclasses import replace

        from migratory_spark.prometheus import FORMAT, partitions, preflight, register
        from migratory_spark.prometheus.options import parse_options
        from migratory_spark.read.samples import table

        register(session)
        columns = self.options["columns"].replace("timestamp,value,series", "timestamps,values")
        options = {**self.options, "shape": "series", "columns": columns}
        each = " ".join(f"{name}{{{self._named}}}" for name in self._metrics)
        samples = preflight.count(parse_options({**options, "matchers": f"{each} {' '.join(metrics.SHARED)}"}))
        if samples is not None:
            length = partitions.length_of(self.end_ms - self.first_ms, samples, _TASK)
            options = {"partition": f"{length}ms", **options}
        return replace(table(session.read.format(FORMAT).options(**options).load()), samples=samples)

    def read(self, session: SparkSession) -> DataFrame:
        """As a table, a row per sample."""
        from migratory_spark.prometheus import FORMAT, register

        register(session)
        return _of_cluster(session.read.format(FORMAT).options(**self.options).load(), self.cluster)


Source = Folder | Servers


def source(
    samples: Path | None,
    prometheus: str | None,
    cluster: str | None,
    window_ms: tuple[int, int],
    settings: Sequence[tuple[str, str]],
) -> Source:
    """Raises BadInput unless exactly one of the two is given."""
    if (samples is None) == (prometheus is None):
        raise BadInput("give either --samples DIR or --prometheus URL")
    if samples is not None:
        if settings:
            raise BadInput("--prometheus-option needs --prometheus")
        return Folder(samples, cluster)
    assert prometheus is not None
    return Servers(prometheus, cluster, *window_ms, dict(settings))


def _of_cluster(table: DataFrame, cluster: str | None) -> DataFrame:
    if cluster is None:
        return table
    from pyspark.sql import functions as F

    named: Any = F.col("labels")["cluster"]
    return table.where((named == cluster) | (F.col("metric").isin(*metrics.SHARED) & named.isNull()))


def _seconds(milliseconds: int) -> str:
    return f"{milliseconds // 1000}.{milliseconds % 1000:03}"
