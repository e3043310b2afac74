"""A script that becomes another program, which the kernel kills when its parent dies: `launcher.py PARENT COMMAND...`.
The runner starts every process with it.

Linux sends the signal that is set here when the parent dies, however it dies, and keeps the setting over exec. A
process of its own sets it, because code between fork and exec in the runner could deadlock on a lock that another
thread holds. It is a module of its own and uses only the standard library, so that Python can start it with -I -S,
within milliseconds.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

PR_SET_PDEATHSIG = 1
"""The number of the operation of `prctl` that makes the kernel send a signal when the parent dies."""


def main(arguments: list[str]) -> None:
    """Let the kernel kill this process when its parent dies, and replace it by the command. `arguments` are the
    parent's pid and the command. Exit with 1 if the parent is dead already. Raise OSError if the kernel refuses, or the
    command cannot be run."""
    parent, command = int(arguments[0]), arguments[1:]
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        # The parent died before the setting was in force.
        sys.exit(1)
    os.execvp(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])
