"""The sample reader: reads the samples of a report in one step or in two. One step is used if they are few, if their
number is unknown, and for a table of Spark.

Of two steps, the first reads the series that show when exporters were scraped and started, some hundredth of all. From
them follow the incidents, and so all moments between which the report adds increases up. The second step reads all
other series, and leaves out at once the samples between those moments that the report does not need (`thinning.py`).
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from pyspark.sql import SparkSession

from migratory_spark.metrics import role_of, shows_start
from migratory_spark.read.merge import NotMergeable
from migratory_spark.read.samples import SampleSource
from migratory_spark.read.series_pack import SampleQuery
from migratory_spark.read.series_store import MAX_LOCAL_SAMPLES, JoinedSeriesStore, SeriesStore, open_stores
from migratory_spark.read.thinning import Cells, Ints

MAX_WHOLE_SAMPLES = 2_000_000
"""Samples up to which one step is faster than two."""
_TIMELINE_SHARE = 0.1
"""The largest share (0 to 1) of the samples that the first step is expected to read."""


@dataclass(slots=True, frozen=True)
class ReadLimits:
    """Limits of reading, as numbers of samples. `local` is the number up to which this process holds samples and does
    the work without Spark's executors. Samples are read in one step if they are at most `whole` and at most `local`."""

    whole: int = MAX_WHOLE_SAMPLES
    local: int = MAX_LOCAL_SAMPLES


DEFAULT_LIMITS = ReadLimits()


class SampleReader:
    """A reader of the samples that `query` selects. It makes a store for each moment of `after_ms` (ms since 1970),
    with the samples after that moment: one for each start of a window. Call `read_timeline`, then `read_all`, and
    `close` in any case."""

    def __init__(
        self,
        session: SparkSession,
        source: SampleSource,
        query: SampleQuery,
        after_ms: Sequence[int],
        limits: ReadLimits,
    ) -> None:
        self._session, self._source, self._query = session, source, query
        self._after_ms, self._limits = after_ms, limits
        self._of_timeline = frozenset(
            metric for metric in query.metrics if role_of(metric) is not None or shows_start(metric)
        )
        few = source.samples is not None and source.samples <= min(limits.whole, limits.local)
        # Of an unknown number, nothing would say how many remain once they are thinned.
        self._in_one_step = source.tasks is None or source.samples is None or few
        self._few = few
        self._opened: list[SeriesStore] = []

    def read_timeline(self) -> list[SeriesStore]:
        """Read the series that show when exporters were scraped and started, and return a store of them for each moment
        of `after_ms`. If samples are read in one step, the stores hold all other series, too."""
        samples = self._source.samples
        if self._in_one_step:
            self._opened = self._open(self._query, samples, self._few)
        else:
            assert samples is not None
            self._opened = self._open(replace(self._query, metrics=self._of_timeline), round(samples * _TIMELINE_SHARE))
        return self._opened

    def read_all(self, edges: Ints) -> list[SeriesStore]:
        """Return a store of all series for each moment of `after_ms`. Read the series that `read_timeline`, which must
        be called before, has not read. They are thinned, unless several servers or replica labels are given, or the
        times of a series' parts overlap.

        :param edges: the moments (ms since 1970) between which increases are added up.
        """
        if self._in_one_step:
            return self._opened
        stats = [series for store in self._opened for series in store.stats]
        # A counter may have started again at a change of these series: the samples before and after it are needed.
        starts = {change - 1 for series in stats for change in series.changes}
        cells = Cells.from_moments(edges, [*self._after_ms, *starts])
        query = replace(self._query, metrics=self._query.metrics - self._of_timeline)
        others: list[SeriesStore] | None = None
        if self._source.one_server and not query.replica_labels:
            # Samples in no order, or of several servers, cannot be thinned: all of them are read.
            with suppress(NotMergeable):
                others = self._open(replace(query, cells=cells), self._expected(len(cells.edges)))
        if others is None:
            others = self._open(query, self._source.samples)
        self._opened = [JoinedSeriesStore(parts) for parts in zip(self._opened, others, strict=True)]
        return self._opened

    def close(self) -> None:
        """Free the memory and disk that the samples take. The stores cannot be used after that."""
        for store in self._opened:
            store.close()

    def _open(self, query: SampleQuery, expected: int | None, here: bool = True) -> list[SeriesStore]:
        """Read the samples that `query` selects, and return a store for each moment of `after_ms`. The stores are in
        this process if `here` is True and `expected`, the approximate number of samples that they will hold, is known
        and within the limit; otherwise in Spark's executors."""
        here = here and expected is not None and expected <= self._limits.local
        return open_stores(self._session, self._source, query, self._after_ms, expected, here)

    def _expected(self, cells: int) -> int:
        """Return about how many samples of the other series remain once they are thinned: of each series, one for each
        cell and task, and not more than there are.

        :param cells: the number of intervals of which the last sample stays.
        """
        stats = self._opened[0].stats
        assert self._source.samples is not None
        assert self._source.tasks is not None
        if not stats:
            return self._source.samples
        scrapes = sum(series.samples for series in stats) / len(stats)
        return round(self._source.samples * min(1.0, (cells + self._source.tasks + 1) / max(scrapes, 1.0)))
