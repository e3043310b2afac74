"""Node.js and the JavaScript client, for tests in Python."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[3] / "clients" / "js"
"""The folder of the JavaScript client."""


def axe() -> str:
    """Return the source of axe-core, which checks a page's accessibility. Skip the test where it is not installed."""
    file = CLIENT / "node_modules" / "axe-core" / "axe.min.js"
    if not file.is_file():
        pytest.skip(f"no {file.relative_to(CLIENT)}: install what the JavaScript client's tests need (make js)")
    return file.read_text("utf-8")


def node() -> str:
    """Return the path of Node.js: of the virtual environment, else of PATH. Skip the test where there is none."""
    found = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
    if found is None:
        pytest.skip("no node on PATH: install Node.js 20 or newer (make js)")
    return found
