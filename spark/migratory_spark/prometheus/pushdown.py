"""Filter pushdown: lets Spark's filters on the metric's name and the time narrow the data source's options. Pure.

Labels cannot be pushed down, because Spark passes no filter on a map's element. The option `matchers` selects by label.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from pyspark.sql.datasource import (
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    LessThan,
    LessThanOrEqual,
    StringStartsWith,
)

from migratory_spark.prometheus.options import SourceOptions
from migratory_spark.prometheus.selectors import NAME, Matcher


def push(options: SourceOptions, filters: Iterable[Filter]) -> tuple[SourceOptions, list[Filter]]:
    """Return options narrowed by the filters that can be pushed down, and the other filters, which Spark must apply."""
    remaining = []
    for each in filters:
        narrowed = _narrow(options, each)
        if narrowed is None:
            remaining.append(each)
        else:
            options = narrowed
    return options, remaining


def _narrow(options: SourceOptions, each: Filter) -> SourceOptions | None:
    match each:
        case EqualTo(attribute=("metric",), value=str(name)):
            return _with_matcher(options, Matcher(NAME, "=", name)) if name else None
        case In(attribute=("metric",), value=names) if names and all(isinstance(name, str) and name for name in names):
            return _with_matcher(options, Matcher(NAME, "=~", "|".join(map(_quote_regex, names))))
        case StringStartsWith(attribute=("metric",), value=str(prefix)):
            return _with_matcher(options, Matcher(NAME, "=~", _quote_regex(prefix) + ".*"))
        case EqualTo(attribute=("timestamp",), value=moment) if _is_integer(moment):
            return _within(options, moment, moment + 1)
        case GreaterThan(attribute=("timestamp",), value=moment) if _is_integer(moment):
            return _within(options, moment + 1, None)
        case GreaterThanOrEqual(attribute=("timestamp",), value=moment) if _is_integer(moment):
            return _within(options, moment, None)
        case LessThan(attribute=("timestamp",), value=moment) if _is_integer(moment):
            return _within(options, None, moment)
        case LessThanOrEqual(attribute=("timestamp",), value=moment) if _is_integer(moment):
            return _within(options, None, moment + 1)
        case _:
            return None


def _with_matcher(options: SourceOptions, matcher: Matcher) -> SourceOptions:
    return replace(options, selectors=tuple((*selector, matcher) for selector in options.selectors))


def _within(options: SourceOptions, start_ms: int | None, end_ms: int | None) -> SourceOptions:
    start = options.start_ms if start_ms is None else max(start_ms, options.start_ms or 0)
    end = options.end_ms if end_ms is None else min(end_ms, math.inf if options.end_ms is None else options.end_ms)
    if start is not None and end is not None and end < start:
        end = start
    return replace(options, start_ms=start, end_ms=None if end is None else int(end))


def _is_integer(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _quote_regex(text: str) -> str:
    """Return a regular expression for RE2 that matches exactly the text.

    RE2 rejects escapes of letters, digits and non-ASCII characters; Python's `re.escape` makes none of these.
    """
    return re.escape(text)
