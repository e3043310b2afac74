"""Output files of the jobs: checked before minutes are spent on their content, and written whole or not at all.

Devices and pipes are the exception: they are written to directly.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from migratory_spark.jobs.command_line import BadInput


def check_file(option: str, path: Path | None) -> None:
    """Check that a file can be written, by opening it without changing it; a new one is removed again. Do nothing for
    None. Raises BadInput, which names the option."""
    if path is None:
        return
    is_new = not path.exists()
    try:
        with path.open("ab"):
            pass
        if is_new:
            path.unlink()
    except OSError as error:
        raise BadInput(f"{option}: {path}: {error.strerror or error}") from None


def check_folder(option: str, path: Path | None) -> None:
    """Check that a folder can be written, or made in the nearest folder above it that exists. Make nothing, and do
    nothing for None. Raises BadInput, which names the option."""
    if path is None:
        return
    existing = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not existing.is_dir() or not os.access(existing, os.W_OK | os.X_OK):
        raise BadInput(f"{option}: {path}: {existing} is not a writable folder")


def make_folder(option: str, path: Path) -> None:
    """Make a folder and those above it, unless there is one. Raises BadInput, which names the option, if it cannot be
    made."""
    try:
        path.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"{option}: {path}: {error.strerror or error}") from None


def check_distinct(paths: Mapping[str, Path | None]) -> None:
    """Check that no two options name the same file; `paths` has the file by option, None for an option that is not
    given. Raises BadInput."""
    options: dict[Path, str] = {}
    for option, path in paths.items():
        if path is not None and (other := options.setdefault(path.resolve(), option)) != option:
            raise BadInput(f"{option} and {other} are the same file, {path}")


def write(option: str, path: Path, text: str) -> None:
    """Write a file. Its old content stays until the new one is complete, but devices and pipes are written to directly.
    Raises BadInput if it cannot be written.

    :param option: the option that named the file, for the message.
    """
    partial = path.with_name(f".{path.name}.part")
    try:
        # A device or a pipe must be written to; replacing it would put a file in its place.
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
        partial.write_text(text)
        os.replace(partial, path)
    except OSError as error:
        partial.unlink(missing_ok=True)
        raise BadInput(f"{option}: {path}: {error.strerror or error}") from None
