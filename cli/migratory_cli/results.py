"""Files that a person wants results in: looked at before anything runs, and an error with their name afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click


class NotWritten(click.ClickException):
    """A result is not where it was wanted; a person can put that right."""

    exit_code = 2


@contextmanager
def writing(option: str, path: Path) -> Iterator[None]:
    """What goes wrong with the file becomes NotWritten, which names the option and the file."""
    try:
        yield
    except OSError as error:
        raise NotWritten(f"{option}: {path}: {error.strerror or error}") from error


def check_result_file(option: str, path: Path | None) -> None:
    """Raises NotWritten for a file that can't be opened for writing, before minutes are spent on its content.

    Leaves no empty file behind: whatever reads it would take that for a result, when there comes none."""
    if path is not None:
        with writing(option, path):
            new = not path.exists()
            path.open("ab").close()
            if new:
                path.unlink()
