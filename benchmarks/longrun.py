"""Long runs in parts: a part that fails, or a run that is stopped, does not lose the figures of the other parts.

`LongRun.attempt` records the failure of a part, also of one that exceeds its time limit, and lets the run go on. The
caller writes the result with `write_json` after each part. Outputs and the machine are checked before the run.
"""

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
from benchmarks.benchmark import NotMeasurable
from benchmarks.processes import MeasurementFailed

PartResult = TypeVar("PartResult")

MINUTES = 15.0
"""Minutes that a part may take by default."""


class LongRun:
    """The parts of a run. `failed` has the reason of each failed part, so that no result looks complete that is not."""

    def __init__(self, say: Callable[[str], None], minutes: float = MINUTES) -> None:
        self._say = say
        self._minutes = minutes
        self.failed: dict[str, str] = {}

    async def attempt(self, name: str, part: Callable[[], Awaitable[PartResult]]) -> PartResult | None:
        """Run a part and return its result. Return None when it failed, which is recorded. Raise NotMeasurable,
        which is no failure."""
        try:
            async with asyncio.timeout(self._minutes * 60) as limit:
                return await part()
        except NotMeasurable:
            raise
        except MeasurementFailed as error:
            self.fail(name, str(error))
        except Exception as error:  # noqa: BLE001 - reported with its traceback
            late = isinstance(error, TimeoutError) and limit.expired()
            self.fail(name, f"it took more than {self._minutes:g} minutes" if late else _describe(error))
            if not late:
                self._say(traceback.format_exc())
        return None

    def fail(self, name: str, reason: str) -> None:
        """Record the failure of a part with its reason, and show it."""
        self.failed[name] = reason
        self._say(f"FAILED: {name}: {reason}")


def _describe(error: BaseException) -> str:
    if isinstance(error, BaseExceptionGroup):
        return "; ".join(_describe(part) for part in error.exceptions)
    return f"{type(error).__name__}: {error}"


def check_writable(*paths: Path | None) -> None:
    """Create the folders of the output files. Raise UsageError before the run, not after it, when one can't be
    written."""
    for path in filter(None, paths):
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryFile(dir=path.parent):
                pass
        except OSError as error:
            raise click.UsageError(f"{path} can't be written: {error.strerror}") from error


def check_same_machine(described: Mapping[str, object]) -> None:
    """Raise UsageError unless the described machine, where the rest of a result was measured, is this one."""
    here = machine.describe()
    for name in ("cpu", "cores"):
        if described[name] != here[name]:
            raise click.UsageError(
                f"the rest was measured on a machine with {name} {described[name]!r}, and this one has {here[name]!r}"
            )


def write_json(path: Path | None, result: Any) -> None:
    """Replace the file in one step: another process reads either the previous result or this one. No effect without a
    path."""
    if path is None:
        return
    temporary = path.with_name(f"{path.name}.part")
    temporary.write_bytes(msgspec.json.format(msgspec.json.encode(result), indent=2) + b"\n")
    os.replace(temporary, path)
