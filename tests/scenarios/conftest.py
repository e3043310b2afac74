"""Options for the scenario tests: `pytest tests/scenarios --rewrite` writes the current transcripts to the scenario
files; review the difference."""

from __future__ import annotations

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--rewrite", action="store_true", help="rewrite the scenario files' transcripts")
