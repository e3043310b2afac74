"""Filter pushdown: lets Spark's filters on names, labels and times narrow the data source's options. Pure.

Filters on columns of labels (option `labelColumns`) are pushed down as matchers that a series without the label passes,
too, and Spark applies them again. Prometheus adds its external labels after it has selected series, so a label that
comes from there is absent while the matcher is evaluated. Spark passes no filter on an element of the map `labels`, and
none by `rlike`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

from migratory_spark.prometheus.options import TIME, SourceOptions
from migratory_spark.prometheus.selectors import NAME, Matcher

MAX_VALUES = 1000
"""The largest number of values of one filter that is pushed down, as one regular expression. Spark applies longer ones,
because servers and proxies limit the size of a request."""

_ANY = "(?s:.*)"
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class _Condition(NamedTuple):
    """A condition on a text: the whole text matches a regular expression (RE2), or if `accepts` is False, does not.
    `text` is the only text that the expression matches, None if there may be others."""

    accepts: bool
    pattern: str
    text: str | None = None

    def matcher(self, label: str) -> Matcher:
        if self.text is None:
            return Matcher(label, "=~" if self.accepts else "!~", self.pattern)
        return Matcher(label, "=" if self.accepts else "!=", self.text)


def push(options: SourceOptions, filters: Iterable[Filter]) -> tuple[SourceOptions, list[Filter]]:
    """Return options narrowed by the filters that can be pushed down, and the filters that Spark must apply: those that
    cannot be pushed down, and those on labels."""
    remaining = []
    for each in filters:
        if (exact := _narrow_exactly(options, each)) is not None:
            options = exact
        else:
            options = _narrow_by_label(options, each)
            remaining.append(each)
    return options, remaining


def _narrow_exactly(options: SourceOptions, each: Filter) -> SourceOptions | None:
    """Return options that select what the filter does, None if there are none."""
    column = _column(each)
    if column == "metric" and (condition := _condition(each)) is not None:
        return _with_matcher(options, condition.matcher(NAME))
    if column in ("timestamp", TIME) and (interval := _interval_ms(each)) is not None:
        return _within(options, *interval)
    return None


def _narrow_by_label(options: SourceOptions, each: Filter) -> SourceOptions:
    """Return options that select what the filter does, and series without the label as they are stored."""
    label = _column(each)
    if label not in options.label_columns:
        return options
    if isinstance(each, IsNull):
        return _with_matcher(options, Matcher(label, "=", ""))
    if (condition := _condition(each)) is None:
        return options
    # A negation accepts series without the label by itself. An equality would not do: Prometheus reads one with the
    # value of an external label as a demand that the stored series has no such label.
    if condition.accepts:
        condition = _Condition(True, f"(?:{condition.pattern}|)")
    return _with_matcher(options, condition.matcher(label))


def _column(each: Filter) -> str:
    """Return the column of a filter, or "" for a field of a column."""
    match each.child if isinstance(each, Not) else each:
        case (
            EqualTo(attribute=(name,))
            | EqualNullSafe(attribute=(name,))
            | In(attribute=(name,))
            | StringStartsWith(attribute=(name,))
            | StringEndsWith(attribute=(name,))
            | StringContains(attribute=(name,))
            | GreaterThan(attribute=(name,))
            | GreaterThanOrEqual(attribute=(name,))
            | LessThan(attribute=(name,))
            | LessThanOrEqual(attribute=(name,))
            | IsNull(attribute=(name,))
        ):
            return str(name)
        case _:
            return ""


def _condition(each: Filter) -> _Condition | None:
    """Return a filter's condition on a text that is not empty, None if it is no such condition."""
    match each:
        case Not(child=child):
            condition = None if isinstance(child, Not) else _condition(child)
            return None if condition is None else condition._replace(accepts=False)
        case EqualTo(value=str(text)) | EqualNullSafe(value=str(text)) if text:
            return _Condition(True, _quote_regex(text), text)
        case In(value=texts) if 0 < len(texts) <= MAX_VALUES and all(isinstance(text, str) and text for text in texts):
            return _Condition(True, "|".join(map(_quote_regex, texts)))
        case StringStartsWith(value=str(text)):
            return _Condition(True, _quote_regex(text) + _ANY)
        case StringEndsWith(value=str(text)):
            return _Condition(True, _ANY + _quote_regex(text))
        case StringContains(value=str(text)):
            return _Condition(True, _ANY + _quote_regex(text) + _ANY)
        case _:
            return None


def _interval_ms(each: Filter) -> tuple[int | None, int | None] | None:
    """Return the interval [start, end) in ms that a filter on a time selects, None if it selects no interval."""
    moment = getattr(each, "value", None)
    if isinstance(moment, datetime) and moment.tzinfo is not None:
        microseconds = (moment - _EPOCH) // timedelta(microseconds=1)
        # The first millisecond at or after the moment, and the first after it.
        at, after = -(-microseconds // 1000), microseconds // 1000 + 1
    elif isinstance(moment, int) and not isinstance(moment, bool):
        at, after = moment, moment + 1
    else:
        return None
    match each:
        case EqualTo() | EqualNullSafe():
            return at, after
        case GreaterThan():
            return after, None
        case GreaterThanOrEqual():
            return at, None
        case LessThan():
            return None, at
        case LessThanOrEqual():
            return None, after
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


def _quote_regex(text: str) -> str:
    """Return a regular expression for RE2 that matches exactly the text.

    RE2 rejects escapes of letters, digits and non-ASCII characters; Python's `re.escape` makes none of these.
    """
    return re.escape(text)
