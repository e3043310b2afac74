"""docs/concepts/replication.md, the code, its tests and the model have the same rules. In the model each rule has a
switch, and each switch belongs to a rule."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
MODEL = ROOT / "tests" / "model"
PAGE = (ROOT / "docs" / "concepts" / "replication.md").read_text("utf-8")
LOGIC = ROOT / "broker" / "migratory_broker" / "core" / "logic"
NAME = re.compile(r"\b[A-Z][A-Z0-9]+(?:-[A-Z0-9]+)+\b")
ROWS = [line.split("\t") for line in (MODEL / "rules.tsv").read_text("utf-8").splitlines() if line[:1] not in ("", "#")]
# Not rules: sizes of the exploration, and its questions.
SIZES = {
    "copies", "copies2", "cache", "first_list", "window_ids", "list_min", "list_always", "bootstrap", "relist",
    "heal_source", "normal_form"
}  # fmt: skip
# How long is searched, and how many faults of each kind.
BUDGET = {"seconds", "losses", "suspicions", "crashes", "expiries"}
# Rules that other rules imply in the model, or variants that lose nothing.
WITHOUT_HOLE = {
    "owner_enough",
    "own_answer",
    "quick_relist",
    "born_activated",
    "by_incarnation",
    "unlisted_deliver",
    "duplicate_depends",
}


def rule_names(*files: Path) -> set[str]:
    """Return the names of rules of more than one word in the files."""
    return {name for file in files for name in NAME.findall(file.read_text("utf-8"))}


def asserted_rules(file: Path) -> list[str]:
    """Return what the calls of `must` in a module say before their first colon: the names of rules, of any length."""
    calls = [node for node in ast.walk(ast.parse(file.read_text("utf-8"))) if isinstance(node, ast.Call)]
    texts = [
        ast.literal_eval(call.args[1]) for call in calls if isinstance(call.func, ast.Name) and call.func.id == "must"
    ]
    return [text.partition(": ")[0] for text in texts if ": " in text]


def test_page_code_and_tests_name_the_same_rules() -> None:
    page = set(NAME.findall(PAGE))
    assert page == rule_names(*LOGIC.rglob("*.py"))
    assert page - rule_names(*(ROOT / "tests" / "unit" / "core" / "logic").glob("*.py")) == set()


def test_every_asserted_rule_is_on_the_page() -> None:
    words = set(re.findall(r"[A-Z]+(?:-[A-Z]+)*", PAGE.partition("## The model")[0]))
    found = {rule: file.name for file in LOGIC.rglob("*.py") for rule in asserted_rules(file)}
    assert len(found) > 10
    assert {rule: file for rule, file in found.items() if rule not in words} == {}


def switches_of(row: list[str]) -> set[str]:
    return {switch.split("=")[0] for switch in row[2].split()} - SIZES - BUDGET


def test_every_rule_of_the_model_is_on_the_page() -> None:
    rules = PAGE.partition("## The model")[0]
    assert len(ROWS) > 30
    for row in ROWS:
        assert len(row) == 5, row
        assert row[0] in rules, f"tests/model/rules.tsv: {row[0]} is not a rule of docs/concepts/replication.md"


def test_the_page_names_the_switch_of_each_rule() -> None:
    table = dict(re.findall(r"^\| ([A-Z-]+) \| (.*`) \|$", PAGE.partition("## The model")[2], re.M))
    named = {rule: set(re.findall(r"`(\w+)`", switches)) for rule, switches in table.items()}
    wanted: dict[str, set[str]] = {}
    for row in ROWS:
        wanted.setdefault(row[0], set()).update(switches_of(row))
    assert named == wanted


def test_every_switch_is_a_rule_or_a_size() -> None:
    header = (MODEL / "state.h").read_text("utf-8").partition("struct Switches")[2].partition("};")[0]
    switches = set(re.findall(r"^\s+(?:int|bool) (\w+) =", header, re.M))
    used = {switch for row in ROWS for switch in switches_of(row)}
    assert used <= switches
    assert switches == used | SIZES | WITHOUT_HOLE
    search = (MODEL / "search.cpp").read_text("utf-8")
    assert switches == set(re.findall(r"SWITCH\((\w+)\)", search)) - {"name"}
