"""Pushed-down filters: what they ask servers for, and that rows stay those of Spark's own filters."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from migratory_spark.prometheus.options import SourceOptions, parse_options
from migratory_spark.prometheus.pushdown import MAX_VALUES, push
from migratory_spark.prometheus.selectors import Matcher, render
from pyspark.sql.datasource import (
    EqualNullSafe,
    EqualTo,
    Filter,
    GreaterThan,
    GreaterThanOrEqual,
    In,
    IsNotNull,
    IsNull,
    LessThan,
    LessThanOrEqual,
    Not,
    StringContains,
    StringEndsWith,
    StringStartsWith,
)

Labels = Mapping[str, str]
MOMENT = datetime(1970, 1, 1, 0, 0, 5, tzinfo=UTC)
MICROSECOND = timedelta(microseconds=1)


def options(**given: str) -> SourceOptions:
    return parse_options({"url": "http://a:9090", "matchers": "up"} | given)


def narrowed(*filters: Filter, **given: str) -> tuple[SourceOptions, list[Filter]]:
    return push(options(**given), filters)


def test_filters_on_names_narrow_every_selector() -> None:
    narrow, remaining = narrowed(
        EqualTo(("metric",), "a"), StringStartsWith(("metric",), "a.b"), In(("metric",), ("x", "y+")),
        Not(EqualTo(("metric",), "b")), Not(StringContains(("metric",), "c")), StringEndsWith(("metric",), "d"),
        matchers='{job="j"} {job="k"}',
    )  # fmt: skip
    assert remaining == []
    assert [render(selector) for selector in narrow.selectors] == [
        f'{{job="{job}",__name__="a",__name__=~"a\\\\.b(?s:.*)",__name__=~"x|y\\\\+",__name__!="b",'
        '__name__!~"(?s:.*)c(?s:.*)",__name__=~"(?s:.*)d"}'
        for job in "jk"
    ]


@pytest.mark.parametrize(
    ("filters", "window"),
    [
        ([GreaterThanOrEqual(("timestamp",), 5000)], (5000, 9000)),
        ([GreaterThan(("timestamp",), 5000)], (5001, 9000)),
        ([LessThan(("timestamp",), 5000)], (2000, 5000)),
        ([LessThanOrEqual(("timestamp",), 5000)], (2000, 5001)),
        ([EqualTo(("timestamp",), 5000)], (5000, 5001)),
        ([GreaterThan(("timestamp",), 10), LessThan(("timestamp",), 99_000)], (2000, 9000)),
        ([GreaterThan(("timestamp",), 99_000)], (99_001, 99_001)),
        ([LessThan(("timestamp",), 10)], (2000, 2000)),
        ([EqualNullSafe(("time",), MOMENT)], (5000, 5001)),
        ([EqualTo(("time",), MOMENT + MICROSECOND)], (5001, 5001)),
        ([GreaterThan(("time",), MOMENT - MICROSECOND)], (5000, 9000)),
        ([GreaterThan(("time",), MOMENT)], (5001, 9000)),
        ([GreaterThanOrEqual(("time",), MOMENT + MICROSECOND)], (5001, 9000)),
        ([LessThan(("time",), MOMENT + MICROSECOND)], (2000, 5001)),
        ([LessThanOrEqual(("time",), MOMENT - MICROSECOND)], (2000, 5000)),
    ],
)
def test_filters_on_times_narrow_the_window(filters: list[Filter], window: tuple[int, int]) -> None:
    narrow, remaining = narrowed(*filters, start="2", end="9")
    assert remaining == []
    assert (narrow.start_ms, narrow.end_ms) == window


def test_filters_alone_may_set_the_window() -> None:
    narrow, _ = narrowed(GreaterThanOrEqual(("timestamp",), 5), LessThan(("timestamp",), 9))
    assert (narrow.start_ms, narrow.end_ms) == (5, 9)


def test_other_filters_are_left_to_spark() -> None:
    given = [
        EqualTo(("value",), 1.0), EqualTo(("metric",), ""), In(("metric",), ("a", None)), IsNotNull(("metric",)),
        EqualTo(("timestamp",), None), EqualTo(("timestamp",), True), In(("timestamp",), (5, 6)),
        LessThan(("value",), 5), GreaterThan(("timestamps",), 5),
        Not(EqualTo(("timestamp",), 5)), EqualTo(("time",), MOMENT.replace(tzinfo=None)), EqualTo(("job",), "web"),
        EqualTo(("labels", "job"), "web"), In(("metric",), ("a",) * (MAX_VALUES + 1)),
        Not(Not(EqualTo(("metric",), "a"))),
    ]  # fmt: skip
    narrow, remaining = narrowed(*given)
    assert remaining == given
    assert narrow == options()


def test_filters_on_labels_narrow_what_is_read_and_are_left_to_spark() -> None:
    given = [
        EqualTo(("job",), "a.b"), In(("job",), ("x", "y+")), StringStartsWith(("job",), "p"), IsNull(("job",)),
        Not(EqualTo(("job",), "n")), Not(In(("job",), ("n", "m"))), IsNotNull(("job",)), EqualTo(("job",), ""),
    ]  # fmt: skip
    narrow, remaining = push(options(labelColumns="job"), given)
    assert remaining == given
    assert [str(matcher) for matcher in narrow.selectors[0][1:]] == [
        'job=~"(?:a\\\\.b|)"', 'job=~"(?:x|y\\\\+|)"', 'job=~"(?:p(?s:.*)|)"', 'job=""', 'job!="n"', 'job!~"n|m"',
    ]  # fmt: skip


def selected_by_prometheus(stored: Labels, external: Labels, matchers: tuple[Matcher, ...]) -> bool:
    """Return whether remote read answers with a stored series (`filterExtLabelsFromMatchers` of Prometheus: a matcher
    of equality with an external label demands that the series has no such label)."""
    for matcher in matchers:
        value, wanted = stored.get(matcher.label, ""), matcher.value
        if matcher.operator in ("=", "!="):
            if matcher.operator == "=" and wanted and external.get(matcher.label) == wanted:
                wanted = ""
            matched = value == wanted
        else:
            matched = re.fullmatch(wanted, value) is not None
        if matched != (matcher.operator in ("=", "=~")):
            return False
    return True


def selected_by_spark(labels: Labels, each: Filter) -> bool | None:
    """Return the value of a filter on a label in SQL's logic of three values."""
    match each:
        case Not(child=child):
            inner = selected_by_spark(labels, child)
            return None if inner is None else not inner
        case IsNull(attribute=(label,)):
            return label not in labels
        case IsNotNull(attribute=(label,)):
            return label in labels
        case EqualNullSafe(attribute=(label,), value=text):
            return bool(labels.get(label) == text)
        case In(attribute=(label,), value=texts):
            found = labels.get(label) in texts
            return None if label not in labels or (None in texts and not found) else found
        case EqualTo(attribute=(label,), value=text):
            return labels[label] == str(text) if label in labels else None
        case StringStartsWith(attribute=(label,), value=text):
            return labels[label].startswith(text) if label in labels else None
        case StringEndsWith(attribute=(label,), value=text):
            return labels[label].endswith(text) if label in labels else None
        case StringContains(attribute=(label,), value=text):
            return text in labels[label] if label in labels else None
    raise AssertionError(each)


texts = st.sampled_from(["a", "b", "ab", "a.b", "a\nb", "A", "a|b", "é", "a\\", "", "^a$"])
series = st.dictionaries(st.sampled_from(["job", "region"]), texts.filter(bool))
plain_filters = st.sampled_from(["job", "region"]).flatmap(
    lambda label: st.one_of(
        *(st.builds(kind, st.just((label,)), texts)
          for kind in (EqualTo, EqualNullSafe, StringStartsWith, StringEndsWith, StringContains)),
        st.builds(In, st.just((label,)), st.lists(st.one_of(st.none(), texts), min_size=1, max_size=3).map(tuple)),
        st.just(IsNull((label,))), st.just(IsNotNull((label,))),
    )
)  # fmt: skip
filters = st.one_of(plain_filters, plain_filters.map(Not))


@given(series, series, st.lists(filters, max_size=3))
@example({"region": "a"}, {"region": "a"}, [EqualTo(("region",), "a")])
@example({"job": "a\nb"}, {}, [StringStartsWith(("job",), "a")])
@example({}, {"region": "a"}, [In(("region",), ("a", "b"))])
@example({}, {"region": "a"}, [Not(EqualTo(("region",), "b"))])
def test_no_row_is_lost_to_a_pushed_filter(stored: Labels, external: Labels, given: list[Filter]) -> None:
    narrow, remaining = push(options(labelColumns="job,region"), given)
    row = {**external, **stored}
    is_right = all(selected_by_spark(row, each) for each in given)
    is_read = selected_by_prometheus(stored, external, narrow.selectors[0][1:])
    assert (is_read and all(selected_by_spark(row, each) for each in remaining)) == is_right
