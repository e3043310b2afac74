"""Samples by `/api/v1/query` with a range selector (`metric[5m]`): for servers without remote read.

The samples are raw and exact, but a stale marker is not told. Never `/api/v1/query_range`: it invents a value for every
step by looking back, over the gap of a dead server too.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from migratory_spark.errors import BrokenAnswer, ServerError
from migratory_spark.prometheus.blocks import Block, Series
from migratory_spark.prometheus.http import ask
from migratory_spark.prometheus.options import Access
from migratory_spark.prometheus.selectors import Matcher, render

PATH = "/api/v1/query"
_HEADERS = {"Content-Type": "application/x-www-form-urlencoded"}


class _Result(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    histograms: list[msgspec.Raw] = []


class _Data(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_Result]


class _Answer(msgspec.Struct, rename="camel"):
    """`warnings` and `is_partial` are how servers that ask others (Thanos, Mimir, VictoriaMetrics, a Prometheus with
    remote storage) say, in an answer that is otherwise a success, that some of these did not answer."""

    status: str
    data: _Data
    warnings: list[str] | None = None
    is_partial: bool | None = None


_DECODER = msgspec.json.Decoder(_Answer)


def read(server: str, access: Access, selector: Sequence[Matcher], start_ms: int, end_ms: int) -> Iterator[Block]:
    """Whole series with what they have in [start, end). Raises ServerError."""
    # Releases differ in whether a range's beginning belongs to it: one millisecond more is asked for, and cut off.
    last = end_ms - 1
    form = {
        "query": f"{render(selector)}[{last - start_ms + 1}ms]",
        "time": f"{last // 1000}.{last % 1000:03}",
        "timeout": f"{access.timeout:g}s",
    }
    with ask(server, PATH, access, urllib.parse.urlencode(form).encode(), _HEADERS) as answer:
        body = answer.body()
    try:
        found = _DECODER.decode(body)
        if found.data.result_type != "matrix":
            raise ValueError(f"a result of type {found.data.result_type} instead of a matrix")
        if found.warnings or found.is_partial:
            told = "; ".join(found.warnings or ()) or "isPartial"
            raise ServerError(server, f"it says itself that its answer may not be whole: {told[:300]}")
        block = _block(found.data.result)
    except ValueError as error:
        # msgspec's errors are ValueErrors.
        raise BrokenAnswer(server, f"the answer is not what {PATH} sends: {error}") from error
    if len(block):
        yield block.between(start_ms, end_ms)


def _block(results: list[_Result]) -> Block:
    for one in results:
        if one.histograms:
            raise ValueError("a native histogram: only plain numbers are read; leave it out by the option matchers")
    counts = np.array([len(one.values) for one in results], np.int64)
    total = int(counts.sum())
    seconds = np.fromiter((at for one in results for at, _ in one.values), np.float64, total)
    values = np.fromiter((float(text) for one in results for _, text in one.values), np.float64, total)
    series = [Series.of(one.metric.items()) for one in results]
    return Block(series, counts, np.rint(seconds * 1000).astype(np.int64), values)
