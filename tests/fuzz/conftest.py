"""Fixture that skips tests of fuzzers without atheris, which has wheels for Linux on x86-64 only."""

from __future__ import annotations

import importlib.util
import platform
import sys

import pytest

# the marker in pyproject.toml says the same
HAS_WHEELS = sys.platform == "linux" and platform.machine() == "x86_64"


@pytest.fixture(scope="session")
def atheris() -> None:
    """Skip a test that starts a fuzzer where atheris cannot run."""
    if not HAS_WHEELS:
        pytest.skip(f"platform: atheris has no wheels for {sys.platform} on {platform.machine()}")
    if importlib.util.find_spec("atheris") is None:
        pytest.skip("atheris is not installed: pip install --group dev")
