"""Standard input, output and errors that were closed before this process began (`2>&-`, a careless daemon). Without
them the next file or connection would get that number, and with it whatever is written to the errors: a broker's log
lines would stand in the middle of a client's stream.
"""

from __future__ import annotations

import os
import sys


def keep() -> None:
    """Puts /dev/null in their places. To be called before anything is opened. `sys.stdin` stays None when there is
    none, for that is no empty input."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest number that is free: this one
    if sys.stdout is None:
        sys.stdout = open(1, "w", encoding="utf-8", closefd=False)  # noqa: SIM115 - for as long as the process lives
    if sys.stderr is None:
        sys.stderr = open(2, "w", encoding="utf-8", closefd=False)  # noqa: SIM115
