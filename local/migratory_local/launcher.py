"""Becomes another program that can't outlive its parent. Run as a script: `launcher.py PARENT COMMAND...`.

Linux sends the signal that is set here when the parent dies, however it dies, and keeps the setting over exec. It is
set by a process of its own, not between fork and exec in the runner, where a thread may hold any lock. It uses the
standard library only, so that Python can start with -I -S, which takes a few milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    parent, command = int(arguments[0]), arguments[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # The parent died before the setting was in force.
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
