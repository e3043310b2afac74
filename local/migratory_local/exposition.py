"""Prometheus' text format, read quickly: each series' text is taken apart once, afterwards it is a key in a table."""

from __future__ import annotations

import re
from array import array

_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}

Labels = dict[str, str]


class BadExposition(ValueError):
    """A line is not in the text format; the text names it."""


class SeriesTable:
    """Numbers every series (metric and labels) that was ever seen. The labels of its target are added to each."""

    def __init__(self) -> None:
        self.metrics: list[str] = []
        self.labels: list[Labels] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, target: str, series: str, extra: Labels) -> int:
        """The number of a series by its text, `name{label="value"}`. `target` tells apart equal text of two targets.

        :raises BadExposition: when it can't be read.
        """
        key = (target, series)
        number = self._numbers.get(key)
        if number is None:
            metric, labels = parse_series(series)
            number = self._numbers[key] = len(self.metrics)
            self.metrics.append(metric)
            self.labels.append({**labels, **extra})
        return number

    def read(self, target: str, text: str, extra: Labels) -> tuple[array[int], array[float]]:
        """The series numbers and the values of one scrape. Time stamps in the text are not expected and not read.

        :raises BadExposition: naming the line.
        """
        numbers, values = array("q"), array("d")
        for line in text.split("\n"):
            if not line or line[0] == "#":
                continue
            series, _, value = line.rpartition(" ")
            try:
                values.append(float(value))
            except ValueError as error:
                raise BadExposition(f"no value in {line[:200]!r}") from error
            numbers.append(self.number(target, series, extra))
        return numbers, values


def parse_series(text: str) -> tuple[str, Labels]:
    """:raises BadExposition: when it is not `name` or `name{label="value",...}`."""
    found = _SERIES.fullmatch(text.strip())
    if found is None:
        raise BadExposition(f"not a series: {text[:200]!r}")
    labels: Labels = {}
    rest, end = found[2] or "", 0
    while end < len(rest):
        label = _LABEL.match(rest, end)
        if label is None:
            raise BadExposition(f"not a label at {rest[end : end + 100]!r}")
        # To Prometheus a label without a value is one that is not there.
        if label[2]:
            labels[label[1]] = _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], escape[1]), label[2])
        end = label.end()
    return found[1], labels
