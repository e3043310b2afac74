"""Scenario files: commands and their transcript in one text file for review.

    # what this shows
    > a command
    a line of its transcript

Comments, commands and empty lines are the script; every other line is the expected transcript of the command above
it. `rewrite` replaces it by the real one.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

Interpreter = Callable[[str], list[str]]


def play(text: str, interpret: Interpreter) -> str:
    """Return the script with the lines that `interpret` returns for each command in place of the expected ones."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines.append(line)
            lines += interpret(line[1:].strip())
        elif not line or line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


def check(path: Path, interpret: Interpreter, *, rewrite: bool) -> None:
    """Play a file. Raise AssertionError with the difference, or rewrite the file."""
    expected = path.read_text()
    actual = play(expected, interpret)
    if actual == expected:
        return
    if rewrite:
        path.write_text(actual)
        return
    difference = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), f"{path.name}, expected", "actual", lineterm="", n=4
    )
    raise AssertionError("\n".join(difference) + "\n(pytest --rewrite accepts it)")
