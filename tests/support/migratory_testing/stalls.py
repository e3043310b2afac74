"""Stalls of the event loop of a real process, by signals. The product has no hook for them: a module `sitecustomize`,
which Python imports at its start, installs handlers of the signals. They block in the thread of the event loop.

`monkeypatch.setenv("PYTHONPATH", stallable_path(folder))` before the process starts, then `os.kill(pid, HANG)`.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

HANG = signal.SIGUSR1
"""The signal that blocks the event loop for a minute. Other threads run, such as that of the ZooKeeper client."""
HOLD = signal.SIGUSR2
"""The signal that blocks the event loop for a minute in a call that holds the interpreter's lock, so that no other
thread runs either."""
PAUSE = signal.SIGRTMIN
"""The signal that blocks the event loop for a second and a half."""

_CODE = f"""
import ctypes, signal, time

def hang_here(*_):
    time.sleep(60)

def hold_here(*_):
    ctypes.PyDLL(None).sleep(60)

def pause_here(*_):
    time.sleep(1.5)

signal.signal({int(HANG)}, hang_here)
signal.signal({int(HOLD)}, hold_here)
signal.signal({int(PAUSE)}, pause_here)
"""


def stallable_path(folder: Path) -> str:
    """Write the module `sitecustomize` into `folder`. Return the value of PYTHONPATH with which a Python process can be
    stalled."""
    (folder / "sitecustomize.py").write_text(_CODE)
    return os.pathsep.join(filter(None, (str(folder), os.environ.get("PYTHONPATH"))))
