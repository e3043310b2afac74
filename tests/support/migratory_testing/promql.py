"""A parser of as much PromQL as it takes to split an alert's condition: `a > 1 and b < 2` depends on `a` and on `b`.

Prometheus 2.x has no parser that a test could call. Strings in matchers may contain anything, so brackets within quotes
do not count.
"""

from __future__ import annotations

import re

_SETS = re.compile(r"\s(?:and|or|unless)\s+(?:(?:on|ignoring)\s*\([^)]*\)\s*)?")
_COMPARED = re.compile(r"\s(?:>=|<=|==|!=|>|<)\s(?:bool\s)?")
_NUMBER = re.compile(r"-?[0-9.]+(?:e-?[0-9]+)?")


def sides(expression: str) -> list[str]:
    """Return the operands of set operators and comparisons, also within plain brackets, without numbers."""
    expression = expression.strip()
    for operators in (_SETS, _COMPARED):
        parts = _split(expression, operators)
        if len(parts) > 1:
            return [side for part in parts for side in sides(part)]
    if expression.startswith("(") and _closing(expression) == len(expression) - 1:
        return sides(expression[1:-1])
    return [] if _NUMBER.fullmatch(expression) else [expression]


def _split(expression: str, operators: re.Pattern[str]) -> list[str]:
    parts, begin = [], 0
    for found in operators.finditer(expression):
        if found.start() >= begin and _depth(expression[: found.start()]) == 0:
            parts.append(expression[begin : found.start()])
            begin = found.end()
    return [*parts, expression[begin:]]


def _depth(text: str) -> int:
    """Return how many brackets are open at the end of the text. An open string counts as one."""
    depth, quoted = 0, False
    for character in text:
        if character == '"':
            quoted = not quoted
        elif not quoted:
            depth += (character in "([{") - (character in ")]}")
    return depth + quoted


def _closing(expression: str) -> int:
    """Return the index at which the bracket that the text begins with is closed."""
    return next(end for end in range(len(expression)) if _depth(expression[: end + 1]) == 0)
