"""Spark's filters to narrower questions: a metric's name and the time. Pure.

Labels can't be pushed down: Spark tells no filter on a map's element. They are given by option `matchers`.
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

from migratory_spark.prometheus.options import Options
from migratory_spark.prometheus.selectors import NAME, Matcher


def push(options: Options, filters: Iterable[Filter]) -> tuple[Options, list[Filter]]:
    """The narrower options, and the filters that Spark still has to apply."""
    left = []
    for one in filters:
        narrowed = _push(options, one)
        if narrowed is None:
            left.append(one)
        else:
            options = narrowed
    return options, left


def _push(options: Options, one: Filter) -> Options | None:
    match one:
        case EqualTo(attribute=("metric",), value=str(name)):
            return _named(options, Matcher(NAME, "=", name)) if name else None
        case In(attribute=("metric",), value=names) if names and all(isinstance(name, str) and name for name in names):
            return _named(options, Matcher(NAME, "=~", "|".join(map(_quoted, names))))
        case StringStartsWith(attribute=("metric",), value=str(prefix)):
            return _named(options, Matcher(NAME, "=~", _quoted(prefix) + ".*"))
        case EqualTo(attribute=("timestamp",), value=moment) if _whole(moment):
            return _within(options, moment, moment + 1)
        case GreaterThan(attribute=("timestamp",), value=moment) if _whole(moment):
            return _within(options, moment + 1, None)
        case GreaterThanOrEqual(attribute=("timestamp",), value=moment) if _whole(moment):
            return _within(options, moment, None)
        case LessThan(attribute=("timestamp",), value=moment) if _whole(moment):
            return _within(options, None, moment)
        case LessThanOrEqual(attribute=("timestamp",), value=moment) if _whole(moment):
            return _within(options, None, moment + 1)
        case _:
            return None


def _named(options: Options, matcher: Matcher) -> Options:
    return replace(options, selectors=tuple((*selector, matcher) for selector in options.selectors))


def _within(options: Options, start_ms: int | None, end_ms: int | None) -> Options:
    start = options.start_ms if start_ms is None else max(start_ms, options.start_ms or 0)
    end = options.end_ms if end_ms is None else min(end_ms, math.inf if options.end_ms is None else options.end_ms)
    if start is not None and end is not None and end < start:
        end = start
    return replace(options, start_ms=start, end_ms=None if end is None else int(end))


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _quoted(text: str) -> str:
    """For RE2, which refuses escapes of letters, digits and of what is not ASCII; Python makes none of these."""
    return re.escape(text)
