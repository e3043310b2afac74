"""The compiler that the cores are compiled with: which of its parts this machine lacks. `python -m
migratory_compiled.compiler` prints that, and an empty line if the cores can be compiled."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import sysconfig
from pathlib import Path


def missing() -> str:
    """Return what this machine lacks to compile the cores, and how to get it; "" if it lacks nothing."""
    if sys.implementation.name != "cpython":
        return f"only CPython runs them compiled, and this is {sys.implementation.name}"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")[0]
    if shutil.which(compiler) is None:
        return f"there is no C compiler {compiler}; install it (Debian: gcc), or name another one in CC"
    headers = Path(sysconfig.get_path("include"), "Python.h")
    if not headers.exists():
        return f"Python's headers are missing ({headers}); install them (Debian: python3-dev)"
    return ""


if __name__ == "__main__":
    print(missing())
