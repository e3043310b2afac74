"""docs/concepts/guarantees.md and security.md: every promise and every defended attack names tests, every test that
they name exists, and every invariant is promised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
GUARANTEES, SECURITY = (
    (ROOT / "docs" / "concepts" / page).read_text("utf-8") for page in ("guarantees.md", "security.md")
)
PROMISES = re.split(r"^## ", GUARANTEES, flags=re.M)[1].split("\n\n**")[1:]
DEFENDED = [
    row for row in SECURITY.partition("## What is defended")[2].partition("\n## ")[0].splitlines() if "`" in row
]
NAMED = {name for text in PROMISES for name in re.findall(r"`([a-z_/0-9]+/[a-z_/.:0-9]+)`", text)}
NAMED |= {name for row in DEFENDED for name in re.findall(r"`([a-z_]+/[a-z_/0-9]+\.py(?:::[a-z_0-9]+)?)`", row)}


def test_every_promise_names_its_tests() -> None:
    assert len(PROMISES) >= 12
    for text in PROMISES:
        title = text.split("**")[0]
        tried = text.partition("\nTried by: ")[2]
        assert re.search(r"`[a-z_/0-9]+/[a-z_/.:0-9]+`", tried), f"{title}: no tests"


def test_every_attack_names_its_tests() -> None:
    assert len(DEFENDED) >= 15
    for row in DEFENDED:
        assert re.search(r"\.py|fuzzer", row), row


@pytest.mark.parametrize("name", sorted(NAMED))
def test_a_named_test_exists(name: str) -> None:
    file, _, test = name.partition("::")
    path = ROOT / "tests" / file
    assert path.is_file(), f"docs/concepts/guarantees.md or security.md names tests/{file}"
    if test:
        assert re.search(rf"^\s*(?:async )?def {test}\(", path.read_text("utf-8"), re.M), f"{file} has no {test}"


def test_every_invariant_is_promised() -> None:
    numbers = {int(number) for group in re.findall(r"\[([\d, ]+)\]", "".join(PROMISES)) for number in group.split(",")}
    assert numbers == {1, 2, 3, 4, 6, 7}  # 5 is an internal invariant that no client could observe
