"""Is there anything to read, and if not, why? Asked before work is planned: an empty answer comes with its reason."""

from __future__ import annotations

import difflib
import logging
import urllib.parse
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import msgspec

from migratory_spark.errors import BrokenAnswer, NothingFound, OptionError, ServerError, Unsupported
from migratory_spark.prometheus import partitions
from migratory_spark.prometheus.http import ask
from migratory_spark.prometheus.options import Access, Options
from migratory_spark.prometheus.selectors import NAME, Selector, render

_FORM = {"Content-Type": "application/x-www-form-urlencoded"}
_COUNT_LIMIT = "10s"
"""How long a server may count; what takes longer is a lot of samples."""

log = logging.getLogger(__name__)


def window(options: Options) -> tuple[int, int]:
    """Raises OptionError where an end is not known."""
    if options.start_ms is None or options.end_ms is None:
        missing = "start" if options.start_ms is None else "end"
        raise OptionError(
            f"option {missing} is missing: the window is half open, from start to end, each in RFC 3339 with a zone or "
            "in seconds since 1970"
        )
    return options.start_ms, options.end_ms


def check(options: Options) -> None:
    """Raises NothingFound with the reason when no server has a sample in the window, ServerError when one can't be
    asked that is required."""
    start_ms, end_ms = window(options)
    if start_ms == end_ms:
        raise NothingFound(f"the window is empty: it starts and ends at {_iso(start_ms)}")
    failed: list[ServerError] = []
    for url in options.urls:
        try:
            if _has_some(options, url, start_ms, end_ms):
                return
        except ServerError as error:
            if options.require == "all":
                raise
            failed.append(error)
    if len(failed) == len(options.urls):
        raise failed[0]
    reasons = [f"{url}: {_reason(options, url, start_ms, end_ms)}" for url in options.urls]
    raise NothingFound(f"no samples from {_iso(start_ms)} to {_iso(end_ms)}: " + "; ".join(reasons))


def count(options: Options) -> int | None:
    """How many samples the servers have in the window, all together; None where one of them does not say at once.

    Each selector must be of one metric: PromQL forgets names when it counts, and refuses series that are then the same.
    """
    start_ms, end_ms = window(options)
    stretch = f"[{max(1, -(-(end_ms - start_ms) // 1000))}s]"
    query = " + ".join(f"(sum(count_over_time({render(one)}{stretch})) or vector(0))" for one in options.selectors)
    # "It takes too long" is an answer, and asking again would take as long again.
    once = replace(options.access, retries=0)
    total = 0
    for url in options.urls:
        try:
            form = {"query": query, "time": f"{end_ms / 1000:.3f}", "timeout": _COUNT_LIMIT}
            total += int(float(_api(url, "/api/v1/query", once, form)["result"][0]["value"][1]))
        except ServerError as error:
            log.info("%s does not say how many samples it has: %s", url, error.text)
            return None
        except (KeyError, IndexError, TypeError, ValueError):
            log.info("%s does not say how many samples it has", url)
            return None
    return total


def server_now_ms(url: str, access: Access) -> int:
    """The server's own clock. Raises ServerError."""
    answer = _api(url, "/api/v1/query", access, {"query": "time()"})
    try:
        return int(float(answer["result"][1]) * 1000)
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise BrokenAnswer(url, f"the answer to the query time() is {answer!r:.100}") from error


def _has_some(options: Options, url: str, start_ms: int, end_ms: int) -> bool:
    # The first block ends it: a streamed answer is left there, and others are no longer than a partition.
    return any(
        len(block)
        for begin, end in partitions.cut(start_ms, end_ms, options.partition_ms)
        for block in partitions.of_server(options, url, begin, end)
    )


def _reason(options: Options, url: str, start_ms: int, end_ms: int) -> str:
    try:
        now = server_now_ms(url, options.access)
        if start_ms >= now:
            return f"the window lies in the future, its clock says {_iso(now)}"
        names = _names(url, options.access, options.selectors)
        if not names:
            return "it knows no such series" + _near(url, options)
        kept = str(_api(url, "/api/v1/status/runtimeinfo", options.access, {}, get=True).get("storageRetention", ""))
    except ServerError as error:
        return f"nothing, and it does not tell more ({error.text})"
    if (seconds := _seconds(kept)) is not None and end_ms < now - seconds * 1000:
        return f"the window ended before what it keeps, which is {kept} back from {_iso(now)}"
    return f"it has such series, but no sample of them in the window (it keeps {kept or 'an unknown time'})"


def _near(url: str, options: Options) -> str:
    """Names that are nearly those that were asked for."""
    asked = [
        one.value for selector in options.selectors for one in selector if one.label == NAME and one.operator == "="
    ]
    if not asked:
        return ""
    known = _names(url, options.access, ())
    near = [name for one in asked for name in difflib.get_close_matches(one, known, n=2)]
    if set(asked) & set(known):
        return f", though it knows {', '.join(sorted(set(asked) & set(known)))} with other labels"
    return f"; is it {' or '.join(near)}?" if near else f"; none of its {len(known)} metrics has a name like that"


def _names(url: str, access: Access, selectors: Sequence[Selector]) -> list[str]:
    parameters = [("match[]", render(selector)) for selector in selectors]
    found = _api(url, f"/api/v1/label/{NAME}/values", access, parameters, get=True)
    return [name for name in found if isinstance(name, str)]


def _api(url: str, path: str, access: Access, parameters: Any, get: bool = False) -> Any:
    """`data` of an answer of Prometheus's HTTP interface."""
    form = urllib.parse.urlencode(parameters)
    if get:
        path, form = (f"{path}?{form}" if form else path), ""
    with ask(url, path, access, form.encode(), {} if get else _FORM, "GET" if get else "POST") as answer:
        body = answer.body()
    try:
        return msgspec.json.decode(body)["data"]
    except (msgspec.DecodeError, KeyError, TypeError) as error:
        raise Unsupported(url, f"{path.partition('?')[0]} does not answer as Prometheus does") from error


def _seconds(retention: str) -> float | None:
    """Of a text such as "15d" or "15d or 10GiB"."""
    from migratory_resources.quantities import parse_duration

    try:
        return parse_duration(retention.partition(" ")[0])
    except ValueError:
        return None


def _iso(moment_ms: int) -> str:
    return datetime.fromtimestamp(moment_ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
