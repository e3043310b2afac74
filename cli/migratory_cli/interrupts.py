"""Ctrl-C while a command is still being loaded: "Interrupted" and exit code 130, not the traceback of an import.

The libraries of `demo` take a second or two to load, and a KeyboardInterrupt in the middle of an import shows as that
import's failure. Until a command is ready, nothing has been started that would have to be ended.
"""

from __future__ import annotations

import os
import signal
from types import FrameType

INTERRUPTED = 128 + signal.SIGINT
MESSAGE = b"Interrupted\n"


def _end(number: int, frame: FrameType | None) -> None:
    os.write(2, MESSAGE)
    os._exit(INTERRUPTED)


def end_at_once() -> None:
    """From now on Ctrl-C ends this process on the spot. A handler that is not Python's own is left alone: SIGINT may be
    ignored (nohup, a shell's background job)."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _end)


def as_usual() -> None:
    """From now on Ctrl-C raises KeyboardInterrupt, so that `finally` blocks run."""
    if signal.getsignal(signal.SIGINT) is _end:
        signal.signal(signal.SIGINT, signal.default_int_handler)
