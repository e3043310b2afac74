"""The logs of a broker's processes: one JSON line an event on stderr, written by a thread of its own.

A full disk or a blocked reader of the pipe must not stop the broker. So the queue is bounded: lines beyond it and lines
that cannot be written are dropped and counted, and the next written line carries the count.
"""

from __future__ import annotations

import logging
import os
import queue
import threading
import time
import traceback
from collections.abc import Mapping

import msgspec

LEVELS = {"debug": 10, "info": 20, "warning": 30, "error": 40}


class Log:
    """The writer of log lines: `log(level, event, **fields)` queues one. Lines below `level` are ignored. `common` are
    fields of every line, `capacity` is the length of the queue in lines. Field values that JSON lacks are written as
    their `str`. `descriptor` is that of the file that is written to."""

    def __init__(
        self,
        descriptor: int = 2,
        level: str = "info",
        common: Mapping[str, object] | None = None,
        capacity: int = 10_000,
    ) -> None:
        self._descriptor = descriptor
        self.level = level
        self._level = LEVELS[level]
        self._common = dict(common or {})
        self._queue: queue.Queue[bytes | None] = queue.Queue(capacity)
        self._dropped = 0
        self._thread = threading.Thread(target=self._write_all, name="log", daemon=True)
        self._thread.start()

    def __call__(self, level: str, event: str, **fields: object) -> None:
        """Queue a line, unless its level is below that of the log. This never blocks: if the queue is full, the line is
        dropped and counted. Raises KeyError for a level that is not in `LEVELS`."""
        if LEVELS[level] < self._level:
            return
        line: dict[str, object] = {"time": round(time.time(), 3), "level": level, "event": event}
        line.update(self._common)
        line.update(fields)
        dropped = self._dropped
        if dropped:
            line["dropped_lines"] = dropped
        try:
            self._queue.put_nowait(msgspec.json.encode(line, enc_hook=str) + b"\n")
        except queue.Full:
            self._dropped += 1
        else:
            self._dropped -= dropped  # not before: the line with the count may be dropped as well

    def close(self, timeout: float = 1.0) -> None:
        """End the writer's thread after the lines that are queued, and wait for it at most `timeout` seconds; lines
        that are logged afterwards are not written. If the queue is full, do nothing: the thread goes on."""
        try:
            self._queue.put_nowait(None)
        except queue.Full:
            return
        self._thread.join(timeout)

    def _write_all(self) -> None:
        """Write the queued lines until `close`, on the writer's thread. Drop and count a line that cannot be
        written."""
        while (line := self._queue.get()) is not None:
            try:
                while line:
                    line = line[os.write(self._descriptor, line) :]
            except OSError:
                self._dropped += 1


class LibraryLog(logging.Handler):
    """A logging handler that writes warnings and errors of libraries and the event loop as lines of `log`."""

    def __init__(self, log: Log) -> None:
        super().__init__(logging.WARNING)
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        trace = traceback.format_exception(record.exc_info[1]) if record.exc_info and record.exc_info[1] else None
        level = "error" if record.levelno >= logging.ERROR else "warning"
        self._log(level, "library", logger=record.name, message=record.getMessage(), trace=trace)
