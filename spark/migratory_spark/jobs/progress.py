"""Progress of Spark's tasks, in one line of a terminal."""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console

if TYPE_CHECKING:
    from pyspark import SparkStageInfo
    from pyspark.sql import SparkSession

_INTERVAL = 1.0
"""Seconds between two looks at the tasks."""


@contextmanager
def task_progress(session: SparkSession) -> Iterator[None]:
    """A context that shows on the standard error, each second, how many tasks of the running stages are done. Show
    nothing unless the standard error is a terminal."""
    if not sys.stderr.isatty():
        yield
        return
    ended = threading.Event()
    tracker = session.sparkContext.statusTracker()

    def show() -> None:
        while not ended.wait(_INTERVAL):
            stages = [tracker.getStageInfo(stage) for stage in tracker.getActiveStageIds()]
            status.update(describe([stage for stage in stages if stage is not None]))

    with Console(stderr=True).status("samples are read") as status:
        thread = threading.Thread(target=show, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def describe(stages: list[SparkStageInfo]) -> str:
    """Return the line that is shown for the running stages of Spark: how many of all their tasks are done."""
    done, total = sum(stage.numCompletedTasks for stage in stages), sum(stage.numTasks for stage in stages)
    return f"samples are read: {done:,} of {total:,} tasks done" if total else "samples are read"
