"""Reads samples by `/api/v1/query` with a range selector (`metric[5m]`), for servers without remote read.

The samples are raw and exact, but without stale markers. `/api/v1/query_range` is not used: it fills in a value for
every step by looking back, even over the gap of a server that was down.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Sequence

import msgspec
import numpy as np

from migratory_spark.prometheus.blocks import SampleBlock, SeriesId
from migratory_spark.prometheus.errors import BrokenResponse, ServerError
from migratory_spark.prometheus.http import send_request
from migratory_spark.prometheus.options import Access
from migratory_spark.prometheus.selectors import Matcher, render

PATH = "/api/v1/query"
_HEADERS = {"Content-Type": "application/x-www-form-urlencoded"}


class _SeriesResult(msgspec.Struct):
    """A series in the response: labels with `__name__`, and pairs of time (seconds since 1970) and value as text."""

    metric: dict[str, str]
    values: list[tuple[float, str]] = []
    histograms: list[msgspec.Raw] = []


class _QueryData(msgspec.Struct, rename="camel"):
    result_type: str
    result: list[_SeriesResult]


class _QueryResponse(msgspec.Struct, rename="camel"):
    """The response of `/api/v1/query`.

    `warnings` and `is_partial` come from servers that query others (Thanos, Mimir, VictoriaMetrics, a Prometheus with
    remote storage). In a response that is otherwise a success, they say that some of these did not respond.
    """

    status: str
    data: _QueryData
    warnings: list[str] | None = None
    is_partial: bool | None = None


_DECODER = msgspec.json.Decoder(_QueryResponse)


def read(server: str, access: Access, selector: Sequence[Matcher], start_ms: int, end_ms: int) -> Iterator[SampleBlock]:
    """Yield one block of the series that the selector selects, with their samples in [start, end) (ms since 1970);
    nothing if there are none.

    Raises ServerError, also if the server says that its response may be incomplete.
    """
    # Releases differ in whether a range includes its start: one more millisecond is requested and cut off.
    last = end_ms - 1
    form = {
        "query": f"{render(selector)}[{last - start_ms + 1}ms]",
        "time": f"{last // 1000}.{last % 1000:03}",
        "timeout": f"{access.timeout:g}s",
    }
    with send_request(server, PATH, access, urllib.parse.urlencode(form).encode(), _HEADERS) as response:
        body = response.body()
    try:
        result = _DECODER.decode(body)
        if result.data.result_type != "matrix":
            raise ValueError(f"a result of type {result.data.result_type} instead of a matrix")
        if result.warnings or result.is_partial:
            warnings = "; ".join(result.warnings or ()) or "isPartial"
            raise ServerError(server, f"it says itself that its response may not be whole: {warnings[:300]}")
        if any(entry.histograms for entry in result.data.result):
            raise ServerError(
                server,
                "a native histogram, of which this interface does not tell the bounds: use "
                "remote read, or leave it out by option matchers",
            )
        block = _block(result.data.result)
    except ValueError as error:
        # msgspec's errors are ValueErrors.
        raise BrokenResponse(server, f"the response is not what {PATH} sends: {error}") from error
    if len(block):
        yield block.between(start_ms, end_ms)


def _block(results: list[_SeriesResult]) -> SampleBlock:
    """Return the series and samples of the response as a block. Raises ValueError for a value that is no number."""
    counts = np.array([len(entry.values) for entry in results], np.int64)
    total = int(counts.sum())
    seconds = np.fromiter((at for entry in results for at, _ in entry.values), np.float64, total)
    values = np.fromiter((float(text) for entry in results for _, text in entry.values), np.float64, total)
    series = [SeriesId.from_pairs(entry.metric.items()) for entry in results]
    return SampleBlock(series, counts, np.rint(seconds * 1000).astype(np.int64), values)
