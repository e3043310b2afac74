"""What a process has started: its descendants, and which of them runs what."""

from __future__ import annotations

import psutil


def descendants(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children(recursive=True)


def runs(process: psutil.Process, text: str) -> bool:
    """Whether its command line has the text; not when it has just ended."""
    try:
        return text in " ".join(process.cmdline())
    except psutil.NoSuchProcess:  # also what has ended and was not waited for yet
        return False
