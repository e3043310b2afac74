"""Problems of a cluster file or custom resource, and the error that carries all of them. All rules report in this
form."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_MAX_VALUE_LENGTH = 80
"""Characters of a value in an error message. Keeps every problem on one line."""


@dataclass(frozen=True)
class FieldProblem:
    """A field with a value that is not allowed.

    `path` is the field as written in the file; `allowed` says what is allowed instead, and completes "allowed: ...".
    """

    path: str
    value: object
    allowed: str

    def __str__(self) -> str:
        return f"{self.path}: {format_value(self.value)} is not allowed; allowed: {self.allowed}"


@dataclass(frozen=True)
class MissingField(FieldProblem):
    """A required field that is not in the file."""

    value: object = None
    allowed: str = ""

    def __str__(self) -> str:
        return f"{self.path}: is required, but missing"


@dataclass(frozen=True)
class UnknownField(FieldProblem):
    """A field that does not exist and is probably a misspelling; `allowed` is the path that was probably meant."""

    def __str__(self) -> str:
        return f"{self.path}: no such field (value {format_value(self.value)}); did you mean {self.allowed}?"


@dataclass(frozen=True)
class UnreadableFile(FieldProblem):
    """A file that can't be read or parsed, as a problem without a field; `allowed` says why."""

    def __str__(self) -> str:
        return self.allowed


class ClusterFileError(Exception):
    """Raised with all problems of one cluster file or custom resource; `source` names it. The message has a line for
    each problem."""

    def __init__(self, source: str, problems: Sequence[FieldProblem]) -> None:
        self.source = source
        self.problems = list(problems)
        super().__init__("\n".join(f"{source}: {problem}" for problem in self.problems))


def format_value(value: object) -> str:
    """Return the value as error messages show it: its `repr`, cut to 80 characters."""
    text = repr(value)
    return text if len(text) <= _MAX_VALUE_LENGTH else f"{text[: _MAX_VALUE_LENGTH - 3]}..."
