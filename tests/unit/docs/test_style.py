"""The part of docs/contributing/style.md that a machine can check: how docstrings begin, and which names recur."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PRODUCT = ("protocol", "broker", "clients", "loadtest", "resources", "local", "operator", "spark", "cli")
NO_SUBJECT = re.compile(r"(Who|Whoever|What|That which|So many|As many|Of (a|an|the|one|all)|One too many)\b")
QUALIFIED = {"Close", "Received", "Send", "Tick"}
"""Events and effects of the broker's and the client's sans-I/O cores, read as `events.Close`."""


def modules(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


def _texts(body: list[ast.stmt]) -> list[str]:
    """Return a body's strings that stand alone: the docstring, and those that describe the constant above them."""
    values = [item.value for item in body if isinstance(item, ast.Expr)]
    return [value.value for value in values if isinstance(value, ast.Constant) and isinstance(value.value, str)]


@pytest.mark.parametrize("folder", [*PRODUCT, "benchmarks", "tests"])
def test_docstrings_begin_with_a_subject_or_a_verb(folder: str) -> None:
    wrong = []
    for path in modules(folder):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                texts = [text for text in _texts(node.body) if NO_SUBJECT.match(text)]
                wrong += [f"{path.relative_to(ROOT)}: {text.splitlines()[0]}" for text in texts]
    assert wrong == []


def test_a_class_name_recurs_only_where_its_module_qualifies_it() -> None:
    places = defaultdict(set)
    for folder in PRODUCT:
        for path in modules(folder):
            for node in ast.parse(path.read_text("utf-8")).body:
                if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                    places[node.name].add(str(path.relative_to(ROOT)))
    assert {name: files for name, files in places.items() if len(files) > 1 and name not in QUALIFIED} == {}
