"""Converts native histograms to the classic form: series `_bucket` with cumulative counts by `le`, `_sum` and `_count`.
Pure.

With custom bounds the result is what a server that keeps the classic form has. An exponential histogram is given on
fixed bounds, which follow from its schema alone. Otherwise a bucket that is filled later would seem to be a new
counter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from migratory_spark.prometheus.blocks import Float64, Int64, SampleBlock, SeriesId
from migratory_spark.prometheus.native_histogram import CUSTOM_SCHEMA, NativeHistogram

_FINE_SCHEMA = 3
"""The schema of the finest bounds: eight in each octave."""
_EIGHTHS = sorted({*range(-10 * 8, 7 * 8 + 1), *range(-20 * 8, 40 * 8 + 1, 8)})
"""Bounds of exponential histograms, as powers of 2^(1/8): eight an octave from 1/1024 to 128, which is for seconds, and
one an octave from 2^-20 to 2^40. A coarser schema has those of them that are bounds of its own."""

_Series = tuple[SeriesId, Int64, Float64]
"""A series of the result with its time stamps (ms since 1970) and values."""


def to_classic(block: SampleBlock) -> SampleBlock:
    """Return a block in which each native histogram is in the classic form. Series of numbers stay as they are. A stale
    marker between histograms ends all series of the classic form."""
    if block.histograms is None:
        return block
    found: list[_Series] = []
    ends = np.cumsum(block.counts).tolist()
    for series, end, count in zip(block.series, ends, block.counts.tolist(), strict=True):
        inside = slice(end - count, end)
        histograms: list[NativeHistogram | None] = block.histograms[inside].tolist()
        times, values = block.times[inside], block.values[inside]
        if any(histograms):
            native = np.array([histogram is not None for histogram in histograms], bool)
            stale = ~native & np.isnan(values)
            numbers = ~native & ~stale
            found += _classic_series(series, times, values, histograms, native | stale)
            if not numbers.any():
                continue
            times, values = times[numbers], values[numbers]
        found.append((series, times, values))
    return SampleBlock(
        [series for series, _, _ in found],
        np.array([len(times) for _, times, _ in found], np.int64),
        np.concatenate([np.empty(0, np.int64), *(times for _, times, _ in found)]),
        np.concatenate([np.empty(0), *(values for _, _, values in found)]),
        block.source,
    )


def _classic_series(
    series: SeriesId,
    times: Int64,
    values: Float64,
    histograms: list[NativeHistogram | None],
    chosen: npt.NDArray[np.bool_],
) -> Iterator[_Series]:
    """Yield the series of the classic form of one native histogram.

    :param chosen: for each sample whether it is a native histogram or a stale marker.
    """
    rows = np.flatnonzero(chosen)
    of_rows = [histograms[row] for row in rows.tolist()]
    sums = np.array([value if histogram is None else histogram.sum
                     for histogram, value in zip(of_rows, values[rows], strict=True)])  # fmt: skip
    yield SeriesId(f"{series.metric}_count", series.labels), times[rows], values[rows]
    yield SeriesId(f"{series.metric}_sum", series.labels), times[rows], sums
    stale = rows[[histogram is None for histogram in of_rows]]
    by_layout: dict[int, list[int]] = {}
    for row, histogram in zip(rows.tolist(), of_rows, strict=True):
        if histogram is not None:
            # All samples of a chunk share their layout.
            by_layout.setdefault(id(histogram.layout), []).append(row)
    # Layouts share bounds, at least the infinite one.
    by_bound: dict[float, list[tuple[Int64, Float64]]] = {}
    for of_layout in by_layout.values():
        bounds, counts = _cumulative([histogram for row in of_layout if (histogram := histograms[row]) is not None])
        places = np.array(of_layout)
        for bound, column in zip(bounds, counts.T, strict=True):
            by_bound.setdefault(bound, []).append((places, column))
    for bound, parts in by_bound.items():
        places = np.concatenate([*(of_part for of_part, _ in parts), stale])
        order = np.argsort(places)
        told = np.concatenate([*(column for _, column in parts), values[stale]])
        labels = {**dict(series.labels), "le": bound_text(bound)}
        yield SeriesId(f"{series.metric}_bucket", tuple(sorted(labels.items()))), times[places[order]], told[order]


def _cumulative(histograms: list[NativeHistogram]) -> tuple[tuple[float, ...], Float64]:
    """Return the bounds of the classic form of histograms with one layout, and for each histogram (row) and bound
    (column) the number of observations up to the bound. The last bound is infinite."""
    layout = histograms[0].layout
    counts = np.array([histogram.count for histogram in histograms])
    positive = np.cumsum(np.array([histogram.positive for histogram in histograms]), axis=1)
    # A column for no bucket at all, and one for each number of buckets.
    running = np.concatenate((np.zeros((len(histograms), 1)), positive), axis=1)
    filled = np.array(layout.positive, np.int64)
    if layout.schema == CUSTOM_SCHEMA:
        bounds = layout.custom_bounds
        below = running[:, np.searchsorted(filled, np.arange(len(bounds)), side="right")]
    else:
        schema = min(layout.schema, _FINE_SCHEMA)
        step = 1 << (_FINE_SCHEMA - schema)
        eighths = np.array([eighth for eighth in _EIGHTHS if not eighth % step], np.int64)
        bounds = tuple((2.0 ** (eighths / 8)).tolist())
        # The index of the bucket that ends at each bound.
        last = eighths // step << (layout.schema - schema)
        zero = np.array([histogram.zero_count for histogram in histograms])
        negative = np.array([histogram.negative.sum() for histogram in histograms])
        below = running[:, np.searchsorted(filled, last, side="right")] + negative[:, None]
        # Observations in the zero bucket may lie above a bound within it.
        below += np.where(np.array(bounds) >= layout.zero_threshold, zero[:, None], 0)
    return (*bounds, math.inf), np.concatenate((below, counts[:, None]), axis=1)


def bound_text(bound: float) -> str:
    """Return a bound as Prometheus writes it in the label `le`."""
    if math.isinf(bound):
        return "+Inf"
    # Go changes to exponents earlier than Python does.
    if bound and not 1e-4 <= abs(bound) < 1e6:
        return np.format_float_scientific(bound, trim="-", exp_digits=2)
    return repr(float(bound))
