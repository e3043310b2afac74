"""PromQL's series selectors, as far as a data source needs them: `name{label="value", other=~"a|b"}`, one or more.

Pure. What is accepted is a subset of what Prometheus accepts; a refusal says where and what was expected.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
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
    """The text is no series selector; it says where and why."""


@dataclass(slots=True, frozen=True)
class Matcher:
    """`operator` is one of OPERATORS. A regular expression (RE2) has to match the whole value."""

    label: str
    operator: str
    value: str

    def __str__(self) -> str:
        value = self.value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
        return f'{self.label}{self.operator}"{value}"'


Selector = tuple[Matcher, ...]
"""Matchers, all of which have to hold."""


def render(selector: Sequence[Matcher]) -> str:
    """As PromQL text that every release understands."""
    return "{" + ",".join(map(str, selector)) + "}"


def parse(text: str) -> list[Selector]:
    """Every selector in the text, in order; between them stands a comma or white space.

    Raises BadSelector, also for one that would match every series: as Prometheus does, at least one matcher must
    refuse the empty value.
    """
    at = _after(_SPACE, text, 0)
    if at == len(text):
        raise BadSelector('no selector; give one such as {__name__=~"migratory_.*"}')
    found = []
    while at < len(text):
        selector, at = _selector(text, at)
        found.append(selector)
        at = _after(_BETWEEN, text, at)
    return found


def _selector(text: str, at: int) -> tuple[Selector, int]:
    begin, matchers = at, []
    if name := _METRIC.match(text, at):
        matchers.append(Matcher(NAME, "=", name.group()))
        at = _after(_SPACE, text, name.end())
    elif not text.startswith("{", at):
        raise _bad(text, at, "the name of a metric or {")
    if text.startswith("{", at):
        inside, at = _matchers(text, at + 1)
        matchers += inside
    if not any(_refuses_empty(matcher) for matcher in matchers):
        raise BadSelector(
            f"{text[begin:at]} selects every series: give the name of a metric or a label's value that is not empty"
        )
    return tuple(matchers), at


def _matchers(text: str, at: int) -> tuple[list[Matcher], int]:
    found: list[Matcher] = []
    at = _after(_SPACE, text, at)
    while not text.startswith("}", at):
        label = _LABEL.match(text, at)
        if label is None:
            raise _bad(text, at, "the name of a label or }")
        operator = _OPERATOR.match(text, _after(_SPACE, text, label.end()))
        if operator is None:
            raise _bad(text, label.end(), "one of " + " ".join(OPERATORS))
        value, at = _string(text, _after(_SPACE, text, operator.end()))
        found.append(Matcher(label.group(), operator.group(), value))
        at = _after(_SPACE, text, at)
        if text.startswith(",", at):
            at = _after(_SPACE, text, at + 1)
        elif not text.startswith("}", at):
            raise _bad(text, at, "a comma or }")
    return found, at + 1


def _string(text: str, at: int) -> tuple[str, int]:
    quote = text[at : at + 1]
    if quote not in ('"', "'", "`") or not quote:
        raise _bad(text, at, "a value in quotes")
    end = at + 1
    while end < len(text) and text[end] != quote:
        end += 2 if text[end] == "\\" and quote != "`" else 1
    if end >= len(text):
        raise _bad(text, at, f"a value that ends with {quote}")
    inside = text[at + 1 : end]
    return (inside if quote == "`" else _ESCAPE.sub(_unescaped, inside)), end + 1


def _unescaped(escape: re.Match[str]) -> str:
    simple, *codes, other = escape.groups()
    if other is not None:
        raise BadSelector(f"\\{other} is no escape in a value; write \\\\{other} for a regular expression's \\{other}")
    if simple is not None:
        return _SIMPLE.get(simple, simple)
    number = int(next(code for code in codes if code is not None), 16)
    if number > sys.maxunicode or 0xD800 <= number < 0xE000:
        raise BadSelector(f"\\U{number:08x} is no character")
    return chr(number)


def _refuses_empty(matcher: Matcher) -> bool:
    """Whether a series without the label is surely refused. Of regular expressions only the usual ones are known to
    match nothing at all; the server has the last word."""
    match matcher.operator:
        case "=":
            return matcher.value != ""
        case "!=":
            return matcher.value == ""
        case "=~":
            return matcher.value not in ("", ".*")
        case _:
            return matcher.value in ("", ".*")


def _after(pattern: re.Pattern[str], text: str, at: int) -> int:
    found = pattern.match(text, at)
    assert found is not None, "both patterns match the empty text"
    return found.end()


def _bad(text: str, at: int, wanted: str) -> BadSelector:
    here = repr(text[at : at + 20]) if text[at:] else "the end"
    return BadSelector(f"in the selector {text!r} at character {at + 1}: {wanted} was expected, there is {here}")
