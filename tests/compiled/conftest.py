"""Fixture: the environment of a process that runs one form of the cores. `make compiled-check` runs these tests."""

from __future__ import annotations

import pytest
from migratory_compiled import SWITCH, Form


@pytest.fixture(params=["compiled", "interpreted"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Form:
    """Let processes that the test starts run one form of the cores, and return it."""
    monkeypatch.setenv(SWITCH, "1" if request.param == "compiled" else "0")
    chosen: Form = request.param
    return chosen
