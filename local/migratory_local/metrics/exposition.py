"""A fast parser of Prometheus' text format, for the recorder.

A scrape repeats the same series every second. The text of each series is parsed once and then looked up in a table.
prometheus_client's parser parses every label of every scrape again; docs/dependencies.md has the figures.
"""

from __future__ import annotations

import re
from array import array

_SERIES = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(.*)\})?")
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\]|\\.)*)"\s*(?:,|$)')
_ESCAPE = re.compile(r"\\(.)")
_UNESCAPED = {"n": "\n"}

Labels = dict[str, str]


class InvalidExposition(ValueError):
    """Raised when a line is not in the text format. The message quotes the line."""


class SeriesTable:
    """A table of all series (metric and labels) that were read from a set of targets. The number of a series is its
    index in `metrics` and `labels`."""

    def __init__(self) -> None:
        self.metrics: list[str] = []
        self.labels: list[Labels] = []
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, target: str, series: str, extra: Labels) -> int:
        """Return the number of a series by its text, `name{label="value"}`. Add a series that is new.

        :param target: distinguishes the same text of two targets.
        :param extra: labels of the target, which are added to the series.
        :raises InvalidExposition: the text is not a series.
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
        """Return the series numbers and the values of one scrape, in two arrays of the same order. Add series that are
        new. The lines must have no timestamps; empty lines and comments are left out.

        :param target: distinguishes the same text of two targets.
        :param text: the body of the scraped page.
        :param extra: labels of the target, which are added to its series.
        :raises InvalidExposition: a line is invalid.
        """
        numbers, values = array("q"), array("d")
        for line in text.split("\n"):
            if not line or line[0] == "#":
                continue
            series, _, value = line.rpartition(" ")
            try:
                values.append(float(value))
            except ValueError as error:
                raise InvalidExposition(f"no value in {line[:200]!r}") from error
            numbers.append(self.number(target, series, extra))
        return numbers, values


def parse_series(text: str) -> tuple[str, Labels]:
    """Return metric name and labels of `name` or `name{label="value",...}`. Labels with an empty value are left out.

    :raises InvalidExposition: the text has another form.
    """
    match = _SERIES.fullmatch(text.strip())
    if match is None:
        raise InvalidExposition(f"not a series: {text[:200]!r}")
    labels: Labels = {}
    inside, end = match[2] or "", 0
    while end < len(inside):
        label = _LABEL.match(inside, end)
        if label is None:
            raise InvalidExposition(f"not a label at {inside[end : end + 100]!r}")
        # To Prometheus a label with an empty value is the same as no label.
        if label[2]:
            labels[label[1]] = _ESCAPE.sub(lambda escape: _UNESCAPED.get(escape[1], escape[1]), label[2])
        end = label.end()
    return match[1], labels
