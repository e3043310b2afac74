"""Parses PromQL's series selectors: `name{label="value", other=~"a|b"}`, one or more. Pure.

A subset of what Prometheus accepts is accepted. A syntax error says at which character it is and what was
expected; other errors quote what is wrong.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

NAME = "__name__"
OPERATORS = ("=", "!=", "=~", "!~")
"""In the order of their numbers in the remote-read protocol."""

_METRIC = re.compile(r"[a-zA-Z_:][a-zA-Z0-9_:]*")
_LABEL = re.compile(r"[a-zA-Z_][a-zA-Z0-9_]*")
_OPERATOR = re.compile(r"=~|!~|!=|=")
_SPACE = re.compile(r"\s*")
_BETWEEN = re.compile(r"\s*,?\s*")
_ESCAPE = re.compile(r"\\(?:([abfnrtv\\\"'])|x([0-9a-fA-F]{2})|u([0-9a-fA-F]{4})|U([0-9a-fA-F]{8})|(.))", re.DOTALL)
_SIMPLE = {"a": "\a", "b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}


class BadSelector(ValueError):
    """Raised when a text is not a series selector, or is one that would select every series. The message says why, and
    for a syntax error at which character."""


@dataclass(slots=True, frozen=True)
class Matcher:
    """A condition on the value of a label. `operator` is one of OPERATORS; a regular expression (RE2) must match the
    whole value."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        value = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.label}{self.operator}"{value}"'


Selector = tuple[Matcher, ...]
"""Matchers, all of which must hold."""


def is_label(name: str) -> bool:
    """Return whether this is a label's name that every release of Prometheus accepts, other than `__name__`."""
    return name != NAME and _LABEL.fullmatch(name) is not None


def render(selector: Sequence[Matcher]) -> str:
    """Return the selector as PromQL that every release of Prometheus accepts."""
    return "{" + ",".join(map(str, selector)) + "}"


def narrow(selector: Selector, metrics: Iterable[str]) -> Selector | None:
    """Return the selector for those of the metrics that it matches, None if it matches none of them."""
    of_name = [matcher for matcher in selector if matcher.label == NAME]
    matched = sorted(metric for metric in metrics if all(_matches(matcher, metric) for matcher in of_name))
    others = tuple(matcher for matcher in selector if matcher.label != NAME)
    return (Matcher(NAME, "=~", "|".join(map(re.escape, matched))), *others) if matched else None


def _matches(matcher: Matcher, value: str) -> bool:
    if matcher.operator in ("=", "!="):
        return (matcher.value == value) == (matcher.operator == "=")
    return (re.fullmatch(matcher.value, value) is not None) == (matcher.operator == "=~")


def parse(text: str) -> list[Selector]:
    """Return all selectors in the text, in order. A comma or white space may stand between them.

    Raises BadSelector, also for a text without any, and for a selector of which no matcher is known to reject the empty
    value: it would match every series. Of regular expressions, only the empty one and `.*` are known to accept it.
    """
    at = _end_of(_SPACE, text, 0)
    if at == len(text):
        raise BadSelector('there is no selector; give one such as {__name__=~"migratory_.*"}')
    selectors = []
    while at < len(text):
        selector, at = _parse_selector(text, at)
        selectors.append(selector)
        at = _end_of(_BETWEEN, text, at)
    return selectors


def _parse_selector(text: str, at: int) -> tuple[Selector, int]:
    begin, matchers = at, []
    if name := _METRIC.match(text, at):
        matchers.append(Matcher(NAME, "=", name.group()))
        at = _end_of(_SPACE, text, name.end())
    elif not text.startswith("{", at):
        raise _error(text, at, "the name of a metric or {")
    if text.startswith("{", at):
        inside, at = _parse_matchers(text, at + 1)
        matchers += inside
    if not any(_rejects_empty(matcher) for matcher in matchers):
        raise BadSelector(
            f"{text[begin:at]} selects every series: give the name of a metric or a label's value that is not empty"
        )
    return tuple(matchers), at


def _parse_matchers(text: str, at: int) -> tuple[list[Matcher], int]:
    matchers: list[Matcher] = []
    at = _end_of(_SPACE, text, at)
    while not text.startswith("}", at):
        label = _LABEL.match(text, at)
        if label is None:
            raise _error(text, at, "the name of a label or }")
        operator = _OPERATOR.match(text, _end_of(_SPACE, text, label.end()))
        if operator is None:
            raise _error(text, label.end(), "one of " + " ".join(OPERATORS))
        value, at = _parse_string(text, _end_of(_SPACE, text, operator.end()))
        matchers.append(Matcher(label.group(), operator.group(), value))
        at = _end_of(_SPACE, text, at)
        if text.startswith(",", at):
            at = _end_of(_SPACE, text, at + 1)
        elif not text.startswith("}", at):
            raise _error(text, at, "a comma or }")
    return matchers, at + 1


def _parse_string(text: str, at: int) -> tuple[str, int]:
    quote = text[at : at + 1]
    if quote not in ('"', "'", "`") or not quote:
        raise _error(text, at, "a value in quotes")
    end = at + 1
    while end < len(text) and text[end] != quote:
        end += 2 if text[end] == "\\" and quote != "`" else 1
    if end >= len(text):
        raise _error(text, at, f"a value that ends with {quote}")
    inside = text[at + 1 : end]
    return (inside if quote == "`" else _ESCAPE.sub(_unescape, inside)), end + 1


def _unescape(escape: re.Match[str]) -> str:
    simple, *codes, unknown = escape.groups()
    if unknown is not None:
        raise BadSelector(
            f"\\{unknown} is not an escape sequence; write \\\\{unknown} for a regular expression's \\{unknown}"
        )
    if simple is not None:
        return _SIMPLE.get(simple, simple)
    number = int(next(code for code in codes if code is not None), 16)
    if number > sys.maxunicode or 0xD800 <= number < 0xE000:
        raise BadSelector(f"\\U{number:08x} is not a character")
    return chr(number)


def _rejects_empty(matcher: Matcher) -> bool:
    """Return whether the matcher rejects a series without the label, as far as that is known here.

    Of regular expressions only the empty one and `.*` are known to match the empty text. Others are taken not to match
    it; the server decides about them.
    """
    match matcher.operator:
        case "=":
            return matcher.value != ""
        case "!=":
            return matcher.value == ""
        case "=~":
            return matcher.value not in ("", ".*")
        case _:
            return matcher.value in ("", ".*")


def _end_of(pattern: re.Pattern[str], text: str, at: int) -> int:
    match = pattern.match(text, at)
    assert match is not None, "both patterns match the empty text"
    return match.end()


def _error(text: str, at: int, expected: str) -> BadSelector:
    actual = repr(text[at : at + 20]) if text[at:] else "the end"
    return BadSelector(f"in the selector {text!r} at character {at + 1}: {expected} was expected, there is {actual}")
