"""Preflight checks: whether the servers have samples in the window, how many, and if none, why.

They run before partitions are planned, so that an empty result comes with its reason.
"""

from __future__ import annotations

import difflib
import logging
import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from migratory_spark.prometheus import partitions
from migratory_spark.prometheus.errors import (
    BrokenResponse,
    InterfaceUnsupported,
    NoSamplesFound,
    OptionError,
    ServerError,
)
from migratory_spark.prometheus.http import send_request
from migratory_spark.prometheus.options import Access, SourceOptions, parse_duration
from migratory_spark.prometheus.selectors import NAME, Selector, render

_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_COUNT_LIMIT = "10s"
"""Time in which a server must have counted samples. If it takes longer, there are very many."""

log = logging.getLogger(__name__)


def window(options: SourceOptions) -> tuple[int, int]:
    """Return start and end of the options' window in ms since 1970. Raises OptionError if one of them was not given."""
    if options.start_ms is None or options.end_ms is None:
        missing = "start" if options.start_ms is None else "end"
        raise OptionError(
            f"option {missing} is missing: the window is half open, from start to end, each in RFC 3339 with a zone or "
            "in seconds since 1970"
        )
    return options.start_ms, options.end_ms


def check(options: SourceOptions) -> None:
    """Check that a server has a sample in the options' window. Ask the servers in turn until one has.

    Raises NoSamplesFound with the reason if none has or the window is empty, and ServerError if one that is asked (with
    option require=any: every server) does not answer. Raises OptionError without a window.
    """
    start_ms, end_ms = window(options)
    if start_ms == end_ms:
        raise NoSamplesFound(f"the window is empty: it starts and ends at {_iso(start_ms)}")
    failed: list[ServerError] = []
    for url in options.urls:
        try:
            if _has_samples(options, url, start_ms, end_ms):
                return
        except ServerError as error:
            if options.require == "all":
                raise
            failed.append(error)
    if len(failed) == len(options.urls):
        raise failed[0]
    reasons = [f"{url}: {_explain_absence(options, url, start_ms, end_ms)}" for url in options.urls]
    raise NoSamplesFound(f"no samples from {_iso(start_ms)} to {_iso(end_ms)}: " + "; ".join(reasons))


def count_samples(options: SourceOptions) -> int | None:
    """Return about how many samples all servers together have in the window, or None if one of them does not answer the
    count within 10 s (_COUNT_LIMIT) or fails.

    Each selector must be of one metric: PromQL drops names when it counts, and rejects series that are then the same.
    """
    start_ms, end_ms = window(options)
    range_ = f"[{max(1, -(-(end_ms - start_ms) // 1000))}s]"
    query = " + ".join(
        f"(sum(count_over_time({render(selector)}{range_})) or vector(0))" for selector in options.selectors
    )
    # A timeout is an answer here, and a retry would take as long again.
    once = replace(options.access, retries=0)
    total = 0
    for url in options.urls:
        try:
            form = {"query": query, "time": f"{end_ms / 1000:.3f}", "timeout": _COUNT_LIMIT}
            total += int(float(_call_api(url, "/api/v1/query", once, form)["result"][0]["value"][1]))
        except ServerError as error:
            log.info("%s does not say how many samples it has: %s", url, error.text)
            return None
        except (KeyError, IndexError, TypeError, ValueError):
            log.info("%s does not say how many samples it has", url)
            return None
    return total


def server_now_ms(url: str, access: Access) -> int:
    """Return the time by the server's clock in ms since 1970. Raises ServerError."""
    response = _call_api(url, "/api/v1/query", access, {"query": "time()"})
    try:
        result = response["result"]
        # VictoriaMetrics makes a vector of a number.
        seconds = result[0]["value"][1] if response.get("resultType") == "vector" else result[1]
        return int(float(seconds) * 1000)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BrokenResponse(url, f"the answer to the query time() is {response!r:.100}") from error


def _has_samples(options: SourceOptions, url: str, start_ms: int, end_ms: int) -> bool:
    """Return whether a server has a sample of the options' selectors in [start, end) (ms since 1970). Raises
    ServerError, and OptionError if the window has too many partitions."""
    # Stops at the first block: a streamed response is abandoned there, and others are no longer than a partition.
    return any(
        len(block)
        for begin, end in partitions.cut(start_ms, end_ms, options.partition_ms)
        for block in partitions.read_server(options, url, begin, end)
    )


def _explain_absence(options: SourceOptions, url: str, start_ms: int, end_ms: int) -> str:
    """Return the reason for which a server has no samples in the window, for an error message: the window is in the
    future or before the retention, or there are no such series. Say so if the server does not tell."""
    try:
        now = server_now_ms(url, options.access)
        if start_ms >= now:
            return f"the window lies in the future; its clock says {_iso(now)}"
        names = _names(url, options.access, options.selectors)
        if not names:
            return "it has no such series" + _suggest_names(url, options)
        retention = str(
            _call_api(url, "/api/v1/status/runtimeinfo", options.access, {}, get=True).get("storageRetention", "")
        )
    except ServerError as error:
        return f"no samples, and no reason ({error.text})"
    if (length_ms := _retention_ms(retention)) is not None and end_ms < now - length_ms:
        return f"the window ended before its retention, which is {retention} back from {_iso(now)}"
    return f"it has such series, but no sample of them in the window (retention: {retention or 'unknown'})"


def _suggest_names(url: str, options: SourceOptions) -> str:
    """Return a hint for an error message: the selectors' metric names that exist with other labels, else similar names.
    Return "" if the selectors name no metric."""
    wanted = [
        matcher.value
        for selector in options.selectors
        for matcher in selector
        if matcher.label == NAME and matcher.operator == "="
    ]
    if not wanted:
        return ""
    names = _names(url, options.access, ())
    similar = [name for matcher in wanted for name in difflib.get_close_matches(matcher, names, n=2)]
    if set(wanted) & set(names):
        return f", though it has {', '.join(sorted(set(wanted) & set(names)))} with other labels"
    return (
        f"; did you mean {' or '.join(similar)}?"
        if similar
        else f"; none of its {len(names)} metrics has a name like that"
    )


def _names(url: str, access: Access, selectors: Sequence[Selector]) -> list[str]:
    """Return the names of the metrics that the selectors select on a server, at any time; of all metrics without
    selectors. Raises ServerError."""
    parameters = [("match[]", render(selector)) for selector in selectors]
    values = _call_api(url, f"/api/v1/label/{NAME}/values", access, parameters, get=True)
    return [name for name in values if isinstance(name, str)]


def _call_api(url: str, path: str, access: Access, parameters: Any, get: bool = False) -> Any:
    """Return the field `data` of a response of the Prometheus HTTP API. Raises ServerError.

    :param parameters: the parameters of the query, sent in the body, or with `get` in the URL.
    """
    form = urllib.parse.urlencode(parameters)
    if get:
        path, form = (f"{path}?{form}" if form else path), ""
    with send_request(url, path, access, form.encode(), {} if get else _FORM, "GET" if get else "POST") as response:
        body = response.body()
    try:
        return msgspec.json.decode(body)["data"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise InterfaceUnsupported(url, f"{path.partition('?')[0]} does not answer as Prometheus does") from error


def _retention_ms(retention: str) -> int | None:
    """Return the ms of a text such as "15d" or "15d or 10GiB", or None if it does not begin with a duration."""
    try:
        return parse_duration(retention.partition(" ")[0])
    except ValueError:
        return None


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
