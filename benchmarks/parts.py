"""A long run in parts: what goes wrong in one is named and does not lose the others, and the result is written after
each, so that a run that is stopped has told what it knew."""

from __future__ import annotations

import asyncio
import os
import tempfile
import traceback
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from typing import Any, TypeVar

import click
import msgspec

from benchmarks import machine
from benchmarks.bench import Missing
from benchmarks.processes import Broken

Found = TypeVar("Found")
MINUTES = 15.0  # that a part may take


class Parts:
    """`failed` has the parts that went wrong, each with the reason: no figure may look as if it were all."""

    def __init__(self, say: Callable[[str], None], minutes: float = MINUTES) -> None:
        self._say = say
        self._minutes = minutes
        self.failed: dict[str, str] = {}

    async def attempt(self, name: str, part: Callable[[], Awaitable[Found]]) -> Found | None:
        """None when it failed. Raises Missing, which is no failure."""
        try:
            async with asyncio.timeout(self._minutes * 60) as limit:
                return await part()
        except Missing:
            raise
        except Broken as error:
            self.fail(name, str(error))
        except Exception as error:  # noqa: BLE001 - it is named, and told with its traceback
            late = isinstance(error, TimeoutError) and limit.expired()
            self.fail(name, f"it took more than {self._minutes:g} minutes" if late else _words(error))
            if not late:
                self._say(traceback.format_exc())
        return None

    def fail(self, name: str, reason: str) -> None:
        self.failed[name] = reason
        self._say(f"FAILED: {name}: {reason}")


def _words(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_words(one) for one in error.exceptions)
    return f"{type(error).__name__}: {error}"


def prepare(*paths: Path | None) -> None:
    """Makes the folders that files will be written to. Raises UsageError now, and not when all is measured."""
    for path in filter(None, paths):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise click.UsageError(f"{path} can't be written: {error.strerror}") from error


def of_this_machine(described: Mapping[str, object]) -> None:
    """What is missing in a result is measured where the rest was. Raises UsageError elsewhere."""
    here = machine.describe()
    for name in ("cpu", "cores"):
        if described[name] != here[name]:
            raise click.UsageError(
                f"the rest was measured on a machine with {name} {described[name]!r}, and this one has {here[name]!r}"
            )


def write_json(path: Path | None, result: Any) -> None:
    """At once: who reads it meanwhile sees the one before, whole."""
    if path is None:
        return
    beside = path.with_name(f"{path.name}.part")
    beside.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    os.replace(beside, path)
