"""Node.js and the JavaScript client, for tests in Python."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[3] / "clients" / "js"
"""The folder of the JavaScript client."""


def node() -> str:
    """Return the path of Node.js: of the virtual environment, else of PATH. Skip the test where there is none."""
    found = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
    if found is None:
        pytest.skip("no node on PATH: install Node.js 20 or newer (make js)")
    return found
