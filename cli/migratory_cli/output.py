"""Standard output of the commands that go on for long, written by a thread of its own: its reader may stand still, go
away, or be a full disk, and must hold up neither connections nor supervision nor Ctrl-C meanwhile.

It writes the descriptor, because a lock of `sys.stdout` that is held at the interpreter's end aborts the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections import deque

from migratory_cli.failures import Failed

LIMIT = 262_144
"""Bytes that may wait before `room` waits for the reader."""


class NotWritable(Failed):
    """Standard output takes nothing: a full disk, say."""


class Output:
    """`put` never waits; who puts much awaits `room` in between. `error` is what made writing impossible: nothing is
    written after that."""

    def __init__(self, descriptor: int = 1) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._waiter: tuple[int, asyncio.Future[None]] | None = None
        threading.Thread(target=self._write_all, name="stdout", daemon=True).start()

    def put(self, data: bytes) -> None:
        with self._changed:
            if self.error is None:
                self._parts.append(data)
                self._size += len(data)
                self._changed.notify_all()

    def line(self, text: str) -> None:
        """Put a line, in UTF-8 whatever the locale is: what comes with it (payloads, JSON) is UTF-8 as well."""
        self.put(text.encode("utf-8", "backslashreplace") + b"\n")

    async def room(self, limit: int = LIMIT) -> None:
        """Returns when at most `limit` bytes wait; 0: when all is written. One at a time may wait.

        Raises BrokenPipeError when the reader has enough, with which click ends a command without a word, and
        NotWritable for what a person should hear of."""
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._size > limit and self.error is None:
                self._waiter = limit, waiter
            else:
                waiter.set_result(None)
        await waiter
        if isinstance(self.error, BrokenPipeError):
            raise self.error
        if self.error is not None:
            raise NotWritable(f"cannot write standard output: {self.error.strerror}")

    def flush(self, seconds: float) -> None:
        """Wait until all is written, or can't be, but no longer than that."""
        with self._changed:
            self._changed.wait_for(lambda: self._size == 0 or self.error is not None, seconds)

    def _write_all(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts)
                data = b"".join(self._parts)
                self._parts.clear()
            error: OSError | None = None
            try:
                left = memoryview(data)
                while left:
                    left = left[os.write(self._descriptor, left) :]
            except OSError as failed:
                error = failed
            with self._changed:
                self.error = error
                self._size -= len(data)
                self._changed.notify_all()
                self._tell()
            if error is not None:
                return

    def _tell(self) -> None:
        if self._waiter is None:
            return
        limit, waiter = self._waiter
        if self._size <= limit or self.error is not None:
            self._waiter = None
            with contextlib.suppress(RuntimeError):  # its loop has ended
                waiter.get_loop().call_soon_threadsafe(_release, waiter)


def _release(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
