"""The parser of Prometheus' text format: compared with prometheus_client's, and its labels, targets and errors."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from migratory_local.metrics.exposition import InvalidExposition, SeriesTable, parse_series
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.parser import text_string_to_metric_families

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def read(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    table = SeriesTable()
    numbers, values = table.read("t", text, {})
    return {
        (table.metrics[number], tuple(sorted(table.labels[number].items()))): value
        for number, value in zip(numbers, values, strict=True)
    }


@given(st.lists(st.tuples(TEXT, TEXT, st.floats(allow_nan=False)), max_size=5))
def test_parser_reads_the_same_as_prometheus_client(rows: list[tuple[str, str, float]]) -> None:
    registry = CollectorRegistry()
    gauge = Gauge("a_gauge", 'help with "quotes" and \\', ["one", "two"], registry=registry)
    histogram = Histogram("h_seconds", "help\nmore", ["one"], registry=registry)
    Counter("plain", "no labels", registry=registry).inc(3)
    for label_a, label_b, value in rows:
        gauge.labels(label_a, label_b).set(value)
        histogram.labels(label_a).observe(min(abs(value), 1e9))
    text = generate_latest(registry).decode()
    expected = {
        (sample.name, tuple(sorted((name, text) for name, text in sample.labels.items() if text))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert read(text) == expected


def test_label_values_are_unescaped() -> None:
    assert parse_series(r'm{a="x\"y",b="back\\slash",c="new\nline",d="}, {"}') == (
        "m",
        {"a": 'x"y', "b": "back\\slash", "c": "new\nline", "d": "}, {"},
    )


def test_empty_label_is_left_out() -> None:
    """A label with an empty value is left out of a parsed series, as in Prometheus; otherwise recorded and scraped
    series would differ."""
    assert parse_series('m{a="",b="x",c=""}') == ("m", {"b": "x"})


def test_same_series_of_two_targets_has_two_numbers() -> None:
    table = SeriesTable()
    first, _ = table.read("a", "m 1\n", {"instance": "a"})
    second, _ = table.read("b", "m 1\n", {"instance": "b"})
    again, _ = table.read("a", "m 2\n", {"instance": "a"})
    assert first == again != second
    assert table.labels == [{"instance": "a"}, {"instance": "b"}]


@pytest.mark.parametrize("line", ["m", "m x", "m{a=1} 1", 'm{a="x} 1', "{} 1", "1m 1", 'm{a="x" b="y"} 1', "<html> 1"])
def test_invalid_line_is_an_error(line: str) -> None:
    with pytest.raises(InvalidExposition):
        SeriesTable().read("t", f"# fine\n{line}\n", {})
