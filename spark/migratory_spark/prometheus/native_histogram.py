"""Native histograms of Prometheus: samples that hold a whole histogram, and the bounds of their buckets. Pure.

Exponential schemas (-4 to 8, by the format -9 to 52) have the bounds 2^(index / 2^schema) on both sides of a zero
bucket. The schema -53 has custom bounds, as a histogram in the classic form has (`le`).
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Literal

import numpy as np

from migratory_spark.prometheus.blocks import Float64, Int64

CUSTOM_SCHEMA = -53
"""The schema of histograms with custom bounds."""
_SCHEMAS = range(-9, 53)
_MAX_EXPONENT = 1100
"""Exponents of two beyond which a number of 64 bits is zero or infinite, in both directions."""

ResetHint = Literal["unknown", "yes", "no", "gauge"]
RESET_HINTS: tuple[ResetHint, ...] = ("unknown", "yes", "no", "gauge")
"""By number in the protocol: whether a sample is the first one after a restart of its counter. A gauge has none."""


class BadHistogram(ValueError):
    """Raised when the parts of a native histogram contradict each other. The message says which."""


@dataclass(frozen=True)
class HistogramLayout:
    """The buckets of a native histogram, the same for many samples.

    `negative` and `positive` are the indexes of the buckets on each side, rising. `custom_bounds` are the finite upper
    bounds of the schema CUSTOM_SCHEMA, rising; bucket i of it ends at custom_bounds[i], the one after the last bound is
    infinite. `zero_threshold` is the width of the zero bucket on each side of zero.
    """

    schema: int
    zero_threshold: float
    negative: tuple[int, ...]
    positive: tuple[int, ...]
    custom_bounds: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.schema != CUSTOM_SCHEMA:
            if self.schema not in _SCHEMAS:
                raise BadHistogram(f"a native histogram of the unknown schema {self.schema}")
        elif self.negative or not all(0 <= index <= len(self.custom_bounds) for index in self.positive):
            raise BadHistogram("a native histogram with buckets beyond its custom bounds")
        for indexes in (self.negative, self.positive):
            if any(later <= earlier for earlier, later in pairwise(indexes)):
                raise BadHistogram("a native histogram whose buckets overlap")

    @cached_property
    def bounds(self) -> tuple[Float64, Float64]:
        """Lower and upper bounds of all buckets in the order of value: negative ones, the zero bucket, positive
        ones."""
        zero = np.array([self.zero_threshold])
        positive = np.array(self.positive, np.int64)
        if self.schema == CUSTOM_SCHEMA:
            edges = np.array([-math.inf, *self.custom_bounds, math.inf])
            return np.concatenate((-zero, edges[positive])), np.concatenate((zero, edges[positive + 1]))
        negative = np.array(self.negative, np.int64)[::-1]
        lower = -exponential_bounds(negative, self.schema), -zero, exponential_bounds(positive - 1, self.schema)
        upper = -exponential_bounds(negative - 1, self.schema), zero, exponential_bounds(positive, self.schema)
        return np.concatenate(lower), np.concatenate(upper)


def exponential_bounds(indexes: Int64, schema: int) -> Float64:
    """Return the upper bounds of the positive buckets with these indexes, of an exponential schema: 2^(index /
    2^schema)."""
    if schema < 0:
        fraction, exponent = np.ones(len(indexes)), indexes << -schema
    else:
        fraction, exponent = np.exp2((indexes & ((1 << schema) - 1)) / (1 << schema)), indexes >> schema
    with np.errstate(over="ignore"):
        bounds: Float64 = np.ldexp(fraction, np.clip(exponent, -_MAX_EXPONENT, _MAX_EXPONENT).astype(np.int32))
    return bounds


def bucket_indexes(spans: Iterable[tuple[int, int]], limit: int) -> tuple[int, ...]:
    """Return the indexes of the buckets in spans of (offset, length). The offset of the first span is its first index,
    that of each other one the number of buckets between it and the span before. Raises BadHistogram if there are more
    than `limit` buckets."""
    indexes: list[int] = []
    at = 0
    for offset, length in spans:
        if len(indexes) + length > limit:
            raise BadHistogram("a native histogram with more buckets than there can be")
        at += offset
        indexes.extend(range(at, at + length))
        at += length
    return tuple(indexes)


@dataclass(slots=True, eq=False)
class NativeHistogram:
    """One sample of a native histogram. `negative` and `positive` are the counts of the layout's buckets, not
    cumulative. `sum` is that of all observations."""

    layout: HistogramLayout
    count: float
    sum: float
    zero_count: float
    negative: Float64
    positive: Float64
    reset_hint: ResetHint = "unknown"

    @property
    def buckets(self) -> tuple[Float64, Float64, Float64]:
        """Lower bounds, upper bounds and counts of the buckets that are not empty, in the order of value."""
        counts = np.concatenate((self.negative[::-1], (self.zero_count,), self.positive))
        filled = np.flatnonzero(counts)
        lower, upper = self.layout.bounds
        return lower[filled], upper[filled], counts[filled]
