"""How a job ends. A verdict is never what a broken job looks like: Python's own code for a crash is 1, "missed"."""

from __future__ import annotations

import traceback
from types import TracebackType
from typing import Self

import click

MET, MISSED, BAD_INPUT, INSUFFICIENT, UNREADABLE, INTERNAL, INTERRUPTED = 0, 1, 2, 3, 4, 70, 130
VERDICTS = {"met": MET, "missed": MISSED, "insufficient": INSUFFICIENT}
CHANGES = {"same": MET, "better": MET, "worse": MISSED, "unknown": INSUFFICIENT}


class BadInput(click.ClickException):
    """The question itself is wrong: a file, an option, a window."""

    exit_code = BAD_INPUT


class Unreadable(click.ClickException):
    """The samples could not be read, or Spark could not work: nothing is known about the objectives."""

    exit_code = UNREADABLE


class Ending:
    """`with Ending(): …`: an error that nobody expected ends with INTERNAL and its traceback, Ctrl-C with INTERRUPTED,
    where click would say 1."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if isinstance(error, KeyboardInterrupt | click.Abort):
            click.echo("Interrupted", err=True)
            raise SystemExit(INTERRUPTED) from error
        expected = (click.ClickException, click.exceptions.Exit)
        if isinstance(error, Exception) and not isinstance(error, expected):
            traceback.print_exception(error)
            raise SystemExit(INTERNAL) from error
