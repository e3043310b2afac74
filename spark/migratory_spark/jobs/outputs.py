"""Files that results go into: tried before minutes are spent on their content, written whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from migratory_spark.jobs.command_line import BadInput


def check(option: str, path: Path | None) -> None:
    """Raises BadInput for a place that can't be written to."""
    if path is None:
        return
    made = not path.exists()
    try:
        with path.open("ab"):
            pass
        if made:
            path.unlink()
    except OSError as error:
        raise BadInput(f"{option}: {path}: {error.strerror or error}") from None


def check_folder(option: str, path: Path | None) -> None:
    """The same for a folder that may have to be made."""
    if path is None:
        return
    there = next(parent for parent in (path, *path.absolute().parents) if parent.exists())
    if not there.is_dir() or not os.access(there, os.W_OK | os.X_OK):
        raise BadInput(f"{option}: {path}: nothing can be written into {there}")


def check_apart(paths: Mapping[str, Path | None]) -> None:
    """Two results in one file would be one result. Raises BadInput."""
    seen: dict[Path, str] = {}
    for option, path in paths.items():
        if path is not None and (other := seen.setdefault(path.resolve(), option)) != option:
            raise BadInput(f"{option} and {other} are the same file, {path}")


def write(option: str, path: Path, text: str) -> None:
    """What was there before stays until the new content is complete. Raises BadInput."""
    part = path.with_name(f".{path.name}.part")
    try:
        # A device or a pipe is written to; replacing it would put a file in its place.
        if path.exists() and not path.is_file():
            path.write_text(text)
            return
        part.write_text(text)
        os.replace(part, path)
    except OSError as error:
        part.unlink(missing_ok=True)
        raise BadInput(f"{option}: {path}: {error.strerror or error}") from None
