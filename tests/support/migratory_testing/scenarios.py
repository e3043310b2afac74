"""Scenario files: commands in, a transcript out, in one text file that people read in review.

    # what this shows
    > a command
    what came of it, one line each

Comments, commands and empty lines are the script; every other line is the expected transcript of the command above it.
`rewrite` puts the real transcript in its place.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable
from pathlib import Path

Interpreter = Callable[[str], list[str]]


def play(text: str, interpret: Interpreter) -> str:
    """The same script with the transcript that it really has."""
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith(">"):
            lines.append(line)
            lines += interpret(line[1:].strip())
        elif not line or line.startswith("#"):
            lines.append(line)
    return "\n".join(lines) + "\n"


def check(path: Path, interpret: Interpreter, *, rewrite: bool) -> None:
    """Plays a file. Raises AssertionError with the difference, unless the file is to be rewritten."""
    expected = path.read_text()
    actual = play(expected, interpret)
    if actual == expected:
        return
    if rewrite:
        path.write_text(actual)
        return
    difference = difflib.unified_diff(
        expected.splitlines(), actual.splitlines(), f"{path.name}, expected", "what happened", lineterm="", n=4
    )
    raise AssertionError("\n".join(difference) + "\n(pytest --rewrite takes it over)")
