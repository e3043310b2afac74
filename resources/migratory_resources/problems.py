"""What is wrong with a cluster file, in one form for every rule."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_LONGEST_VALUE = 80


@dataclass(frozen=True)
class Problem:
    """`path` is the field as written in the file; `allowed` completes "allowed: ..."."""

    path: str
    value: object
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {shown(self.value)} is not allowed; allowed: {self.allowed}"


@dataclass(frozen=True)
class Missing(Problem):
    """A required field that is not there."""

    value: object = None
    allowed: str = ""

    def __str__(self) -> str:
        return f"{self.path}: required, but not given"


@dataclass(frozen=True)
class UnknownField(Problem):
    """A field that looks like a misspelt one; `allowed` is the path that was probably meant."""

    def __str__(self) -> str:
        return f"{self.path}: no such field (value {shown(self.value)}); did you mean {self.allowed}?"


@dataclass(frozen=True)
class Unreadable(Problem):
    """The file as a whole can't be taken; `allowed` says why."""

    def __str__(self) -> str:
        return self.allowed


class ClusterFileError(Exception):
    """Everything that is wrong with one cluster file, at once."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = list(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


def shown(value: object) -> str:
    """The value as an error shows it: short, whatever was given."""
    text = repr(value)
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE - 3]}..."
