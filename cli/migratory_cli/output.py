"""Output of commands: writing to standard output without blocking, tables, and result files."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import os
import select
import threading
from collections import deque
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path

import click
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from migratory_cli.runtime import CommandFailed
from migratory_cli.terminal import printable, printable_lines

MAX_BUFFERED_BYTES = 262_144
"""Bytes that may wait for the reader of standard output before `StdoutWriter.wait_for_room` blocks. Several reads of a
pipe (64 KiB) fit, so that the writer rarely has to wait."""

# ---- standard output --------------------------------------------------------------------------------------------


class StdoutFailed(CommandFailed):
    """Raised when standard output cannot be written, because of a full disk, for example."""


class StdoutWriter:
    """A writer of standard output with a thread of its own, which the constructor starts.

    The reader of standard output may pause or end, or the disk be full. That must not block connections, supervision or
    Ctrl-C. `error` is the failure after which nothing more is written, None before.

    The thread writes to the descriptor and not to `sys.stdout`, whose lock aborts the process if it is held at the
    interpreter's end.
    """

    def __init__(self, descriptor: int = 1) -> None:
        self.error: OSError | None = None
        self._descriptor = descriptor
        self._parts: deque[bytes] = deque()
        self._size = 0
        self._changed = threading.Condition()
        self._waiter: tuple[int, asyncio.Future[None]] | None = None
        self._dependent: tuple[asyncio.AbstractEventLoop, asyncio.Task[object]] | None = None  # ends with a failure
        threading.Thread(target=self._write_all, name="stdout", daemon=True).start()

    def put(self, data: bytes) -> None:
        """Buffer data for the thread, without waiting. Drop the data after a failure. Callers that write a lot await
        `wait_for_room` in between."""
        with self._changed:
            if self.error is None:
                self._parts.append(data)
                self._size += len(data)
                self._changed.notify_all()

    def put_line(self, text: str) -> None:
        """Buffer text and a line end in UTF-8, with an escape sequence for each character that does not print. It is
        UTF-8 whatever the locale is: payloads and JSON in the same output are UTF-8 as well."""
        self.put(printable_lines(text).encode() + b"\n")

    async def wait_for_room(self, limit: int = MAX_BUFFERED_BYTES) -> None:
        """Wait until at most `limit` bytes are buffered; 0 waits until all is written. Only one caller at a time may
        wait.

        :raises BrokenPipeError: the reader closed the pipe; click ends the command silently for it.
        :raises StdoutFailed: any other failure to write.
        """
        waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        with self._changed:
            if self._size > limit and self.error is None:
                self._waiter = limit, waiter
            else:
                waiter.set_result(None)
        await waiter
        self._raise_error()

    @asynccontextmanager
    async def required(self) -> AsyncIterator[None]:
        """Return a context whose block is cancelled as soon as standard output fails, or its reader goes away even
        though nothing is written. A failure is raised at the end of the block.

        :raises BrokenPipeError: the reader closed the pipe; click ends the command silently for it.
        :raises StdoutFailed: any other failure to write.
        """
        task = asyncio.current_task()
        assert task is not None
        with self._changed:
            self._dependent = asyncio.get_running_loop(), task
        threading.Thread(target=self._watch_reader, name="stdout reader", daemon=True).start()
        try:
            yield
        except asyncio.CancelledError:
            if self.error is None:
                raise  # by a signal
            task.uncancel()
            self._raise_error()
        finally:
            with self._changed:
                self._dependent = None

    def _raise_error(self) -> None:
        """Raise the failure to write, if there is one: BrokenPipeError if the reader closed the pipe, else
        StdoutFailed."""
        if isinstance(self.error, BrokenPipeError):
            raise self.error
        if self.error is not None:
            raise StdoutFailed(f"cannot write standard output: {self.error.strerror}")

    def flush(self, timeout: float) -> None:
        """Wait until all is written or writing failed, at most `timeout` seconds. Raise nothing."""
        with self._changed:
            self._changed.wait_for(lambda: self._size == 0 or self.error is not None, timeout)

    def _write_all(self) -> None:
        """Write what is buffered, in a thread, until a write fails."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._parts)
                data = b"".join(self._parts)
                self._parts.clear()
            error: OSError | None = None
            try:
                unwritten = memoryview(data)
                while unwritten:
                    unwritten = unwritten[os.write(self._descriptor, unwritten) :]
            except OSError as write_error:
                error = write_error
            with self._changed:
                self._size -= len(data)
                if error is not None:
                    self._fail(error)
                self._changed.notify_all()
                self._wake_waiter()
            if error is not None:
                return

    def _watch_reader(self) -> None:
        """Wait in a thread until no process can read standard output any more, and then record a broken pipe as the
        failure.

        Without requested events, `poll` returns for nothing else; for a file it never returns.
        """
        poll = select.poll()
        poll.register(self._descriptor, 0)
        poll.poll()
        with self._changed:
            self._fail(BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE)))
            self._changed.notify_all()
            self._wake_waiter()

    def _fail(self, error: OSError) -> None:
        """Record a failure, unless there is one already, and cancel the block of `required`. The caller holds the
        lock."""
        if self.error is None:
            self.error = error
        if self._dependent is not None:
            loop, _ = self._dependent
            with contextlib.suppress(RuntimeError):  # its event loop has ended
                loop.call_soon_threadsafe(self._end_dependent)

    def _end_dependent(self) -> None:
        """Cancel the task of the block of `required`, if it is still running."""
        if self._dependent is not None:
            self._dependent[1].cancel()

    def _wake_waiter(self) -> None:
        """Wake the caller of `wait_for_room` if there is room or a failure. The caller of this method holds the
        lock."""
        if self._waiter is None:
            return
        limit, waiter = self._waiter
        if self._size <= limit or self.error is not None:
            self._waiter = None
            with contextlib.suppress(RuntimeError):  # its event loop has ended
                waiter.get_loop().call_soon_threadsafe(_resolve, waiter)


def _resolve(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)


# ---- tables -----------------------------------------------------------------------------------------------------

UNLIMITED_WIDTH = 10_000
"""Characters of a line where standard output is not a terminal: no table is that wide."""

COLUMN_BORDER_WIDTH = 3
"""Characters that a column takes besides its content; the row's own border takes one more."""


class PrintableConsole(Console):
    """A console that escapes characters that do not print in the text that it renders, but not the sequences of its own
    styles."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterator[Segment]:
        for segment in super().render(renderable, options):
            text = segment.text
            yield segment if segment.control else segment._replace(text=printable_lines(text))


def open_console() -> Console:
    """Return a console on standard output that escapes characters that do not print. It is as wide as the terminal, or
    has unlimited width if standard output is not a terminal."""
    console = PrintableConsole()
    return console if console.is_terminal else PrintableConsole(width=UNLIMITED_WIDTH)


def omitted_columns(names: Iterable[str], suffix: str = "") -> Text:
    """Return the remark below a table that names its omitted columns, with `suffix` at its end."""
    return Text(f"columns omitted, because the terminal is narrow: {', '.join(names)}{suffix}", style="dim")


def print_table(
    console: Console,
    title: str,
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    optional: Sequence[str] = (),
) -> None:
    """Print a table whose first column names the rows and whose other columns are numbers. Print nothing without rows.

    No digit is ever cut: on a narrow terminal columns are omitted and named below the table. If the table is still too
    wide, cells are folded.

    :param optional: columns that may be omitted, the least important first.
    """
    if not rows:
        return
    rows = [tuple(map(printable, row)) for row in rows]
    widths = {
        name: max(len(row[index]) for row in (columns, *rows)) + COLUMN_BORDER_WIDTH
        for index, name in enumerate(columns)
    }
    omitted = []
    for name in optional:
        if sum(widths.values()) < console.width:
            break
        del widths[name]
        omitted.append(name)
    table = Table(title=title, title_justify="left")
    for index, name in enumerate(columns):
        if name in widths:
            table.add_column(name, justify="right" if index else "left", overflow="fold")
    for row in rows:
        table.add_row(*(cell for name, cell in zip(columns, row, strict=True) if name in widths))
    console.print(table)
    if omitted:
        console.print(omitted_columns(omitted), soft_wrap=True)


# ---- result files -----------------------------------------------------------------------------------------------


class ResultNotWritten(click.ClickException):
    """Raised when a result file cannot be written; the command exits with 2, because the user can fix it."""

    exit_code = 2


@contextmanager
def report_write_errors(option: str, path: Path) -> Iterator[None]:
    """Return a context that turns an OSError of its block into `ResultNotWritten`, which names the option and the
    file."""
    try:
        yield
    except OSError as error:
        raise ResultNotWritten(f"{option}: cannot write {path}: {error.strerror or error}") from error


def check_result_file(option: str, path: Path | None) -> None:
    """Check that a result file can be written, before minutes are spent on its content. Do nothing for None.

    The content of a file that exists stays. A new file is removed again, because a reader could take it for a result.

    :raises ResultNotWritten: the file cannot be opened for writing.
    """
    if path is not None:
        with report_write_errors(option, path):
            is_new = not path.exists()
            path.open("ab").close()
            if is_new:
                path.unlink()
