"""Steps of the command line that must come before libraries are imported: open standard descriptors, and handle Ctrl-C
during imports.

The libraries of `demo` take a second or two to import, and a KeyboardInterrupt in the middle of an import shows as that
import's failure. Nothing that must be cleaned up has been started by then, so the process can end at once. This module
uses the standard library only.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType

INTERRUPTED_EXIT_CODE = 128 + signal.SIGINT
INTERRUPTED_MESSAGE = b"Interrupted\n"


def _exit_interrupted(number: int, frame: FrameType | None) -> None:
    """End this process at once, with "Interrupted" on standard error and exit code 130. `finally` blocks do not run."""
    os.write(2, INTERRUPTED_MESSAGE)
    os._exit(INTERRUPTED_EXIT_CODE)


def exit_on_interrupt() -> None:
    """Make Ctrl-C end this process at once, with "Interrupted" and exit code 130.

    A handler other than Python's default is left alone: SIGINT may be ignored (nohup, a background job of a shell).
    """
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _exit_interrupted)


def restore_interrupt() -> None:
    """Make Ctrl-C raise KeyboardInterrupt again after `exit_on_interrupt`, so that `finally` blocks run. Leave any
    other handler alone."""
    if signal.getsignal(signal.SIGINT) is _exit_interrupted:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def open_standard_descriptors() -> None:
    """Open /dev/null as standard input, output or error where the parent process closed it (`2>&-`, a daemon), and let
    `sys.stdout` and `sys.stderr` write there.

    Otherwise the next file or connection would get that descriptor number and receive what is written to standard
    error: a broker's log lines would appear in a client's stream. Call it before anything is opened. `sys.stdin` stays
    None if there is no standard input, because that is not the same as an empty one.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - open for the life of the process
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
