"""Node.js and the JavaScript client, for tests in Python."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

CLIENT = Path(__file__).parents[3] / "clients" / "js"
"""The folder of the JavaScript client."""


def axe() -> str:
    """Return the source of axe-core, which checks a page's accessibility. Skip the test where it is not installed."""
    file = CLIENT / "node_modules" / "axe-core" / "axe.min.js"
    if not file.is_file():
        pytest.skip(f"no {file.relative_to(CLIENT)}: install what the JavaScript client's tests need (make js)")
    return file.read_text("utf-8")


def violations(ask: Callable[[str], Any], passed: set[str]) -> list[tuple[str, str]]:
    """Return the rules of axe that the page of a browser breaks, each with the element. Raise AssertionError if one of
    the rules `passed` was not checked and passed, and skip the test where axe is not installed.

    :param ask: `Browser.ask` of the browser.
    """
    if ask("typeof axe") == "undefined":
        ask(f"{axe()}; 0")
    found = ask("axe.run().then(({passes, violations}) => ({passes, violations}))")
    missing = passed - {rule["id"] for rule in found["passes"]}
    assert missing == set(), f"not checked: {missing}"
    return [(rule["id"], node["html"]) for rule in found["violations"] for node in rule["nodes"]]


def node() -> str:
    """Return the path of Node.js: of the virtual environment, else of PATH. Skip the test where there is none."""
    found = shutil.which("node", path=str(Path(sys.executable).parent)) or shutil.which("node")
    if found is None:
        pytest.skip("no node on PATH: install Node.js 20 or newer (make js)")
    return found
