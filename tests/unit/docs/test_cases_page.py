"""docs/contributing/cases.md: every test that it names exists, and every case has a row."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "contributing" / "cases.md").read_text("utf-8")


def test_every_named_test_exists() -> None:
    rows = [line for line in PAGE.splitlines() if line.startswith("| ")]
    named = {name for row in rows for name in re.findall(r"`([a-z0-9_/.]+)`", row.rsplit("|", 2)[1])}
    paths = {name for name in named if "/" in name or name in {"simulation", "conformance"}}
    assert len(paths) > 20
    for path in paths:
        assert (ROOT / "tests" / re.sub("^cases/", "integration/cases/", path)).exists(), path


def test_every_case_has_a_row() -> None:
    assert re.findall(r"^\| (A\d+)\. ", PAGE, re.M) == [f"A{number}" for number in range(1, 22)]
