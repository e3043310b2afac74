"""Partitions: cuts a window of time into partitions, and reads one from the servers.

Reading a partition queries every server with every selector and yields each (series, time) once. A broken response is
requested again, and a query that is too large is halved in time. With api=auto, the range selector is used where a
server lacks remote read.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np

from migratory_spark.prometheus import range_selector, remote_read
from migratory_spark.prometheus.blocks import SampleBlock, SeriesId, merge_blocks
from migratory_spark.prometheus.classic import to_classic
from migratory_spark.prometheus.errors import (
    BrokenResponse,
    InterfaceUnsupported,
    OptionError,
    QueryTooLarge,
    ServerError,
    SourceError,
)
from migratory_spark.prometheus.options import SourceOptions, format_duration
from migratory_spark.prometheus.selectors import Selector

_MINUTE = 60_000
LENGTHS = tuple(_MINUTE * minutes for minutes in (120, 60, 30, 15, 10, 5))
"""Lengths of a partition in ms to choose from: two hours, as a block of a Prometheus server has, and its divisors."""
_MIN_PARTITIONS = 8
MAX_PARTITIONS = 20_000
"""The largest number of partitions of a window: some four years of two hours. Each is a task and at least one
request."""
MIN_QUERY_MS = 1000
"""Length of a query's time below which it is not halved any more."""

log = logging.getLogger(__name__)


def default_length(start_ms: int, end_ms: int) -> int:
    """Return the longest of LENGTHS (ms) that cuts the window into at least eight partitions, else the shortest.

    Eight keep a few cores busy, and chunks (120 samples or more) are seldom read for two partitions.
    """
    return next((length for length in LENGTHS if (end_ms - start_ms) >= _MIN_PARTITIONS * length), LENGTHS[-1])


def length_for(window_ms: int, samples: int, max_samples: int) -> int:
    """Return the longest of LENGTHS (ms) whose partitions have at most `max_samples` if the window's samples are spread
    evenly; the shortest if none does.

    :param window_ms: the length of the window in ms, in which there are `samples` samples.
    """
    return next((length for length in LENGTHS if samples * length <= max_samples * window_ms), LENGTHS[-1])


def cut(start_ms: int, end_ms: int, length_ms: int | None = None) -> list[tuple[int, int]]:
    """Return the time [start, end) (ms since 1970) cut into intervals at multiples of the length since 1970, as a
    server cuts its blocks; nothing for an empty window.

    :param length_ms: the length of an interval in ms; by default `default_length`.
    :raises OptionError: there are more than MAX_PARTITIONS intervals.
    """
    length = length_ms or default_length(start_ms, end_ms)
    if (count := -(-(end_ms - start_ms) // length)) > MAX_PARTITIONS:
        raise OptionError(
            f"the window is cut into {count:,} partitions of {format_duration(length)}, more than "
            f"{MAX_PARTITIONS:,}: shorten the window, or raise option partition"
        )
    edges = range(start_ms - start_ms % length + length, end_ms, length)
    starts = [start_ms, *edges]
    return list(zip(starts, [*edges, end_ms], strict=True)) if start_ms < end_ms else []


def read(options: SourceOptions, start_ms: int, end_ms: int) -> Iterator[SampleBlock]:
    """Yield all samples of [start, end) (ms since 1970) from all servers, each (series, time) once. With the column
    `source`, each server's samples are yielded.

    Series are yielded as they arrive, with two exceptions. If several servers are merged or labels dropped, and with
    histograms=classic, samples are held until all have arrived. With require=any and several servers, those of each
    server are held until it has sent all; a server that fails is left out with a warning. Raises SourceError if there
    are more than the option `maxSamples`, ServerError if a server (with require=any: every server) fails, and
    OptionError for a native histogram if the options allow none.
    """
    blocks = _read_servers(options, start_ms, end_ms)
    # A server may keep a histogram in both forms.
    may_repeat = len(options.urls) > 1 or bool(options.drop_labels) or options.histograms == "classic"
    if may_repeat and not options.by_source:
        blocks = merge_blocks(blocks, options.drop_labels)
    samples = 0
    for block in blocks:
        samples += len(block)
        if samples > options.max_samples:
            raise SourceError(
                f"{start_ms}..{end_ms} ms has more than {options.max_samples:,} samples (option maxSamples): shorten "
                "option partition, narrow matchers, or raise maxSamples"
            )
        if len(block):
            yield block


def _read_servers(options: SourceOptions, start_ms: int, end_ms: int) -> Iterator[SampleBlock]:
    """Yield the samples of one server after another, with the server's URL as `source`. With require=any, a server that
    fails is left out with a warning. Raises ServerError if another one fails, or all do."""
    failed: list[ServerError] = []
    for url in options.urls:
        of_server = read_server(options, url, start_ms, end_ms)
        blocks: Iterator[SampleBlock] = (_resolve_histograms(options, block) for block in of_server)
        if options.require == "any" and len(options.urls) > 1:
            try:
                # Everything or nothing of a server: one that fails half-way is left out.
                blocks = iter(list(blocks))
            except ServerError as error:
                log.warning("left out (option require=any): %s", error)
                failed.append(error)
                continue
        if options.by_source and options.drop_labels:
            blocks = merge_blocks(blocks, options.drop_labels)
        for block in blocks:
            block.source = url
            yield block
    if len(failed) == len(options.urls):
        raise failed[0]


def _resolve_histograms(options: SourceOptions, block: SampleBlock) -> SampleBlock:
    """Return the block as the option `histograms` wants it: without native histograms, unless there is a column for
    them. Raises OptionError if the block has any and the option is `fail`."""
    if block.histograms is None or options.with_histograms:
        return block
    if options.histograms == "classic":
        return to_classic(block)
    if options.histograms == "skip":
        return block.numbers()
    number = int(np.flatnonzero(block.histograms)[0])
    metric = block.series[int(np.searchsorted(np.cumsum(block.counts), number, side="right"))].metric
    raise OptionError(
        f"{metric} is a native histogram: name the column histogram in option columns, set option histograms to "
        "classic or skip, or leave the metric out by option matchers"
    )


def read_server(options: SourceOptions, url: str, start_ms: int, end_ms: int) -> Iterator[SampleBlock]:
    """Yield one server's samples of [start, end) (ms since 1970) with all labels, each (series, time) once even if
    several selectors match. A block may be empty. Raises ServerError."""
    yielded: set[SeriesId] = set()
    several = len(options.selectors) > 1
    for selector in options.selectors:
        of_selector: set[SeriesId] = set()
        for block in _read_or_halve(options, url, selector, start_ms, end_ms):
            yield block.without(yielded)
            if several:
                of_selector.update(block.series)
        yielded |= of_selector


def _read_or_halve(
    options: SourceOptions, url: str, selector: Selector, start_ms: int, end_ms: int
) -> Iterator[SampleBlock]:
    """Yield the samples that one selector selects in [start, end) (ms since 1970). Query both halves of the time
    separately if the server rejects the size of the query. Raises ServerError, also if it rejects a query of
    MIN_QUERY_MS or less."""
    try:
        yield from _read_with_retries(options, url, selector, start_ms, end_ms)
    except QueryTooLarge as error:
        # Servers refuse before they send samples, so nothing is yielded twice.
        if end_ms - start_ms <= MIN_QUERY_MS:
            raise ServerError(
                url, f"{error.text}; the query is for {end_ms - start_ms} ms only: narrow matchers"
            ) from error
        middle = (start_ms + end_ms) // 2
        yield from _read_or_halve(options, url, selector, start_ms, middle)
        yield from _read_or_halve(options, url, selector, middle, end_ms)


def _read_with_retries(
    options: SourceOptions, url: str, selector: Selector, start_ms: int, end_ms: int
) -> Iterator[SampleBlock]:
    """Yield each series that the selector selects once. Send the request again after a broken response, and skip the
    series that were yielded before. Raises ServerError, after the last retry also for a broken response."""
    yielded: set[SeriesId] = set()
    for retries_left in range(options.access.retries, -1, -1):
        try:
            for block in _read_once(options, url, selector, start_ms, end_ms):
                yield block.without(yielded)
                yielded.update(block.series)
        except BrokenResponse as error:
            if not retries_left:
                raise ServerError(url, f"{error.text} ({options.access.retries + 1} tries)") from error
            log.warning("asking again: %s", error)
        else:
            return


def _read_once(
    options: SourceOptions, url: str, selector: Selector, start_ms: int, end_ms: int
) -> Iterator[SampleBlock]:
    """Yield the samples of one query by the interface that the option `api` names. With api=auto, use the range
    selector if the server has no remote read. Raises ServerError."""
    access = options.access
    if options.api == "range_selector":
        yield from range_selector.read(url, access, selector, start_ms, end_ms)
        return
    try:
        stream = options.api != "remote_read_samples"
        yield from remote_read.read(url, access, selector, start_ms, end_ms, stream)
    except InterfaceUnsupported as error:
        # Servers refuse before they send samples, so nothing is yielded twice.
        if options.api != "auto":
            raise
        log.warning("using the range selector, which has no stale markers: %s", error)
        yield from range_selector.read(url, access, selector, start_ms, end_ms)
