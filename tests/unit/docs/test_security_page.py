"""docs/concepts/security.md: every attack that is defended names tests, and every test that it names exists."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "concepts" / "security.md").read_text("utf-8")
DEFENDED = [row for row in PAGE.partition("## What is defended")[2].partition("\n## ")[0].splitlines() if "`" in row]
NAMED = sorted({name for row in DEFENDED for name in re.findall(r"`([a-z_]+/[a-z_/0-9]+\.py(?:::[a-z_0-9]+)?)`", row)})


def test_every_attack_names_its_tests() -> None:
    assert len(DEFENDED) >= 15
    for row in DEFENDED:
        assert re.search(r"\.py|fuzzer", row), row


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    file, _, test = name.partition("::")
    path = ROOT / "tests" / file
    assert path.is_file(), f"docs/concepts/security.md names tests/{file}"
    if test:
        assert re.search(rf"^\s*(?:async )?def {test}\(", path.read_text("utf-8"), re.M), f"{file} has no {test}"
