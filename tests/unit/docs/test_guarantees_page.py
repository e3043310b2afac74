"""docs/concepts/guarantees.md: every promise names tests, every test that it names exists, and every invariant is
promised."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "concepts" / "guarantees.md").read_text("utf-8")
PROMISES = re.split(r"^## ", PAGE, flags=re.M)[1].split("\n\n**")[1:]
NAMED = sorted({name for text in PROMISES for name in re.findall(r"`([a-z_/0-9]+/[a-z_/.:0-9]+)`", text)})


def test_every_promise_names_its_tests() -> None:
    assert len(PROMISES) >= 12
    for text in PROMISES:
        title = text.split("**")[0]
        tried = text.partition("\nTried by: ")[2]
        assert re.search(r"`[a-z_/0-9]+/[a-z_/.:0-9]+`", tried), f"{title}: no tests"


@pytest.mark.parametrize("name", NAMED)
def test_a_named_test_exists(name: str) -> None:
    file, _, test = name.partition("::")
    path = ROOT / "tests" / file
    assert path.is_file(), f"docs/concepts/guarantees.md names tests/{file}"
    if test:
        assert re.search(rf"^\s*(?:async )?def {test}\(", path.read_text("utf-8"), re.M), f"{file} has no {test}"


def test_every_invariant_is_promised() -> None:
    numbers = {int(number) for group in re.findall(r"\[([\d, ]+)\]", "".join(PROMISES)) for number in group.split(",")}
    assert numbers == {1, 2, 3, 4, 6, 7}  # 5 is an internal invariant that no client could observe
