"""One partition: every server and selector for a stretch of time, each (series, time) once.

Here is what to do when a server balks: an answer that broke is asked for again, a stretch that was too much is halved,
an interface that is not there is replaced by the other one.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

from migratory_spark.errors import BrokenAnswer, ServerError, SourceError, TooMuch, Unsupported
from migratory_spark.prometheus import range_selector, remote_read
from migratory_spark.prometheus.blocks import Block, Series, merged
from migratory_spark.prometheus.options import Options
from migratory_spark.prometheus.selectors import Selector

_MINUTE = 60_000
LENGTHS = tuple(_MINUTE * minutes for minutes in (120, 60, 30, 15, 10, 5))
"""Lengths to choose from by oneself: two hours, which is what a block of Prometheus's has, and what divides them."""

_WANTED = 8
SHORTEST_MS = 1000
"""A stretch that is not halved any more."""

log = logging.getLogger(__name__)


def usual_length(start_ms: int, end_ms: int) -> int:
    """The longest of LENGTHS that gives at least eight partitions, else the shortest: enough of them to keep some
    cores busy, few enough that chunks (120 samples or more) are seldom read for two partitions."""
    return next((length for length in LENGTHS if (end_ms - start_ms) >= _WANTED * length), LENGTHS[-1])


def length_of(window_ms: int, samples: int, most: int) -> int:
    """The longest of LENGTHS that has at most so many of the window's samples, as far as they are spread evenly."""
    return next((length for length in LENGTHS if samples * length <= most * window_ms), LENGTHS[-1])


def cut(start_ms: int, end_ms: int, length_ms: int | None = None) -> list[tuple[int, int]]:
    """[start, end) in pieces that meet at multiples of their length since 1970, where a server's blocks meet too."""
    length = length_ms or usual_length(start_ms, end_ms)
    edges = range(start_ms - start_ms % length + length, end_ms, length)
    starts = [start_ms, *edges]
    return list(zip(starts, [*edges, end_ms], strict=True)) if start_ms < end_ms else []


def read(options: Options, start_ms: int, end_ms: int) -> Iterator[Block]:
    """All samples of [start, end). Raises SourceError.

    One server's series are handed on as they come. Several servers', and those of which labels are dropped, are held
    until all are there.
    """
    parts = _servers(options, start_ms, end_ms)
    if not options.by_source and (len(options.urls) > 1 or options.drop_labels):
        parts = merged(parts, options.drop_labels)
    told = 0
    for block in parts:
        told += len(block)
        if told > options.max_samples:
            raise SourceError(
                f"{options.max_samples:,} samples (option maxSamples) are not all of {start_ms}..{end_ms} ms: "
                "shorten option partition, narrow matchers, or raise maxSamples"
            )
        if len(block):
            yield block


def _servers(options: Options, start_ms: int, end_ms: int) -> Iterator[Block]:
    failed: list[ServerError] = []
    for url in options.urls:
        own = of_server(options, url, start_ms, end_ms)
        if options.require == "any" and len(options.urls) > 1:
            try:
                # Nothing of a server that fails half-way.
                own = iter(list(own))
            except ServerError as error:
                log.warning("left out (option require=any): %s", error)
                failed.append(error)
                continue
        if options.by_source and options.drop_labels:
            own = merged(own, options.drop_labels)
        for block in own:
            block.source = url
            yield block
    if len(failed) == len(options.urls):
        raise failed[0]


def of_server(options: Options, url: str, start_ms: int, end_ms: int) -> Iterator[Block]:
    """What one server has, with all labels. Raises ServerError."""
    told: set[Series] = set()
    several = len(options.selectors) > 1
    for selector in options.selectors:
        own: set[Series] = set()
        for block in _stretch(options, url, selector, start_ms, end_ms):
            yield block.without(told)
            if several:
                own.update(block.series)
        told |= own


def _stretch(options: Options, url: str, selector: Selector, start_ms: int, end_ms: int) -> Iterator[Block]:
    try:
        yield from _again(options, url, selector, start_ms, end_ms)
    except TooMuch as error:
        # It is said before anything was told.
        if end_ms - start_ms <= SHORTEST_MS:
            raise ServerError(
                url, f"{error.text}; that is for {end_ms - start_ms} ms already: narrow matchers"
            ) from error
        middle = (start_ms + end_ms) // 2
        yield from _stretch(options, url, selector, start_ms, middle)
        yield from _stretch(options, url, selector, middle, end_ms)


def _again(options: Options, url: str, selector: Selector, start_ms: int, end_ms: int) -> Iterator[Block]:
    """Asks again after an answer that broke, without telling a series twice."""
    told: set[Series] = set()
    for tries_left in range(options.access.retries, -1, -1):
        try:
            for block in _once(options, url, selector, start_ms, end_ms):
                yield block.without(told)
                told.update(block.series)
        except BrokenAnswer as error:
            if not tries_left:
                raise ServerError(url, f"{error.text} ({options.access.retries + 1} tries)") from error
            log.warning("asking again: %s", error)
        else:
            return


def _once(options: Options, url: str, selector: Selector, start_ms: int, end_ms: int) -> Iterator[Block]:
    access = options.access
    if options.api == "range_selector":
        yield from range_selector.read(url, access, selector, start_ms, end_ms)
        return
    try:
        stream = options.api != "remote_read_samples"
        yield from remote_read.read(url, access, selector, start_ms, end_ms, stream)
    except Unsupported as error:
        # It is said before anything was told.
        if options.api != "auto":
            raise
        log.warning("using the range selector, which tells no stale markers: %s", error)
        yield from range_selector.read(url, access, selector, start_ms, end_ms)
