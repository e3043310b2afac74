"""The places where a module can be changed a little, each with its change of the syntax tree.

Docstrings, annotations, the cores' own assertions (`must`), log lines and metrics are left alone: no test needs to
notice them.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from copy import copy
from typing import Any, NamedTuple

from migratory_simulation.patches import Swap

OPPOSITES: dict[type[ast.AST], tuple[str, type[ast.AST], str]] = {
    ast.Lt: ("<", ast.LtE, "<="),
    ast.LtE: ("<=", ast.Lt, "<"),
    ast.Gt: (">", ast.GtE, ">="),
    ast.GtE: (">=", ast.Gt, ">"),
    ast.Eq: ("==", ast.NotEq, "!="),
    ast.NotEq: ("!=", ast.Eq, "=="),
    ast.In: ("in", ast.NotIn, "not in"),
    ast.NotIn: ("not in", ast.In, "in"),
    ast.Is: ("is", ast.IsNot, "is not"),
    ast.IsNot: ("is not", ast.Is, "is"),
    ast.Add: ("+", ast.Sub, "-"),
    ast.Sub: ("-", ast.Add, "+"),
    ast.Mult: ("*", ast.Div, "/"),
    ast.Div: ("/", ast.Mult, "*"),
    ast.And: ("and", ast.Or, "or"),
    ast.Or: ("or", ast.And, "and"),
}
"""For each operator its text, and the operator that replaces it."""

SILENT = frozenset({"must", "note", "observe", "Note", "Observe", "reveal_type"})
"""Calls of these functions are not changed."""

Change = tuple[ast.expr | ast.stmt, ast.AST, str]
"""A node, the node that replaces it, and a title."""


class Site(NamedTuple):
    """A possible change: its number in the module, the line and its text, and a title such as "and -> or"."""

    number: int
    line: int
    text: str
    title: str

    def applied(self, source: str) -> str:
        """Return the source of the module with this change."""
        tree = ast.parse(source)
        old, new, _ = _changes(tree)[self.number]
        return ast.unparse(ast.fix_missing_locations(Swap(old, new).visit(tree)))


def sites(source: str) -> list[Site]:
    """Return the sites of a module's functions, in the order of the lines."""
    lines = source.splitlines()
    found = [
        Site(number, old.lineno, lines[old.lineno - 1].strip(), title)
        for number, (old, _, title) in enumerate(_changes(ast.parse(source)))
    ]
    return sorted(found, key=lambda site: (site.line, site.number))


def _changes(tree: ast.Module) -> list[Change]:
    found: dict[tuple[int, str], Change] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                for change in _walk(statement):
                    found.setdefault((id(change[0]), change[2]), change)
    return list(found.values())


def _walk(node: ast.AST) -> Iterator[Change]:
    if (isinstance(node, ast.Call) and _called(node) in SILENT) or _is_text(node):
        return
    if isinstance(node, ast.expr):
        yield from _expression(node)
    elif isinstance(node, ast.stmt):
        yield from _statement(node)
    for name, value in ast.iter_fields(node):
        if name not in ("annotation", "returns", "type_params", "decorator_list"):
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST):
                    yield from _walk(child)


def _expression(node: ast.expr) -> Iterator[Change]:
    if isinstance(node, ast.Compare):
        for index, operator in enumerate(node.ops):
            text, opposite, other = OPPOSITES[type(operator)]
            yield node, _with(node, ops=[*node.ops[:index], opposite(), *node.ops[index + 1 :]]), f"{text} -> {other}"
    elif isinstance(node, ast.BoolOp | ast.BinOp) and type(node.op) in OPPOSITES:
        yield _opposite(node, "")
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield node, node.operand, "not -> "
    elif isinstance(node, ast.Constant) and isinstance(node.value, bool):
        yield node, ast.Constant(not node.value), f"{node.value} -> {not node.value}"
    elif isinstance(node, ast.Constant) and isinstance(node.value, int | float):
        yield node, ast.Constant(node.value + 1), f"{node.value!r} -> {node.value + 1!r}"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        other = "max" if node.func.id == "min" else "min"
        yield node.func, ast.Name(other, ast.Load()), f"{node.func.id} -> {other}"


def _statement(node: ast.stmt) -> Iterator[Change]:
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) not in SILENT
    sets_state = isinstance(node, ast.Assign) and not isinstance(node.targets[0], ast.Name | ast.Tuple)
    if isinstance(node, ast.AugAssign) and type(node.op) in OPPOSITES:
        yield _opposite(node, "=")
    elif (
        is_call
        or isinstance(node, ast.Delete | ast.Continue | ast.Break)
        or (isinstance(node, ast.Assign) and sets_state and not isinstance(node.value, ast.Lambda))
    ):
        yield node, ast.Pass(), f"{_short(node)} -> pass"
    elif isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Continue):
        yield node.test, ast.Constant(value=False), f"{_short(node.test)} -> False"


def _opposite(node: ast.BoolOp | ast.BinOp | ast.AugAssign, suffix: str) -> Change:
    text, opposite, other = OPPOSITES[type(node.op)]
    return node, _with(node, op=opposite()), f"{text}{suffix} -> {other}{suffix}"


def _with(node: ast.AST, **fields: Any) -> ast.AST:
    changed = copy(node)
    for name, value in fields.items():
        setattr(changed, name, value)
    return changed


def _short(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())[:60]


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)
