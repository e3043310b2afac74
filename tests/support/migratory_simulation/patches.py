"""Structural edits of the product's source, for planted faults. An edit says which symbol, which statements or
expression in it, and what replaces them.

An edit names a symbol by the end of its dotted name (`Replica.accept`, or `logic.context.must` where the short name is
not unique), so that a module can move without changing any edit. The text to replace is Python, and is compared as a
syntax tree: whitespace, quotes, comments and line breaks do not matter. It must occur exactly once in the symbol.

    old = "mark = next(iter(queue.waiting))"    one or more statements, or an expression
    old = "if queue.chunks: ..."                a header: `...` stands for the statement's body and its `else`
    no old                                      the body of a function, or the value of a constant

An empty `new` deletes the statements. Where `new` has `...`, the body that `old` left out is put there.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]

Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
Symbol = Definition | ast.Assign | ast.AnnAssign


@dataclass(frozen=True)
class Edit:
    """A replacement of `old` by `new` in the symbol `at`. Without `old`, the whole body of the function or the whole
    value of the constant is replaced."""

    at: str
    old: str | None
    new: str

    @property
    def path(self) -> Path:
        return _resolve(self.at)[0]

    def applied(self) -> str:
        """Return the changed source of the module, without comments. Raise ValueError unless `old` occurs exactly once
        in the symbol."""
        return patched([self])[module_name(self.path)]


def patched(edits: Sequence[Edit]) -> dict[str, str]:
    """Return the changed source of each module by its name, without comments. Edits of one module apply one after the
    other. Raise ValueError if an edit does not apply."""
    trees: dict[Path, ast.Module] = {}
    for edit in edits:
        if edit.path not in trees:
            trees[edit.path] = ast.parse(edit.path.read_text())
        replace(trees[edit.path], _resolve(edit.at)[1], edit)
    return {module_name(path): ast.unparse(tree) for path, tree in trees.items()}


# ---- symbols


def module_name(path: Path) -> str:
    """Return the dotted name of a product's module."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    start = next(index for index, part in enumerate(parts) if part.startswith("migratory_"))
    return ".".join(part for part in parts[start:] if part != "__init__")


@cache
def _sources() -> dict[Path, str]:
    """Return the source of every module of the product, by its path."""
    packages = [*ROOT.glob("*/migratory_*"), *ROOT.glob("clients/*/migratory_*")]
    return {path: path.read_text() for package in packages for path in sorted(package.rglob("*.py"))}


@cache
def _names(path: Path) -> tuple[str, ...]:
    """Return the qualified names of all symbols of a module."""
    return tuple(name for name, _ in symbols(ast.parse(_sources()[path])))


@cache
def _resolve(at: str) -> tuple[Path, str]:
    """Return the module's path and the qualified name in it of the one symbol whose dotted name ends with `at`. Raise
    ValueError unless there is exactly one."""
    *_, last = at.split(".")
    mentions = re.compile(rf"^\s*(?:(?:async )?def |class )?{re.escape(last)}\b", re.MULTILINE)
    candidates = [
        (path, name)
        for path, source in _sources().items()
        if last in source and mentions.search(source)
        for name in _names(path)
        if f".{module_name(path)}.{name}".endswith(f".{at}")
    ]
    if len(candidates) != 1:
        names = ", ".join(f"{module_name(path)}.{name}" for path, name in candidates) or "none"
        raise ValueError(f"{at}: {len(candidates)} symbols of the product have this name, not one: {names}")
    return candidates[0]


def symbols(tree: ast.Module | ast.ClassDef, prefix: str = "") -> Iterator[tuple[str, Symbol]]:
    """Yield the qualified name and the node of each class, function and constant of a module or class."""
    for node in tree.body:
        if isinstance(node, Definition):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from symbols(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign | ast.AnnAssign):
            target = node.targets[0] if isinstance(node, ast.Assign) else node.target
            if isinstance(target, ast.Name):
                yield prefix + target.id, node


# ---- matching


def replace(tree: ast.Module, name: str, edit: Edit) -> None:
    """Apply `edit` to the symbol of this qualified name. Raise ValueError if there is no such symbol, or if `edit.old`
    is given and does not occur exactly once in it."""
    symbol = next((node for known, node in symbols(tree) if known == name), None)
    if symbol is None:
        raise ValueError(f"{edit.at}: the symbol is gone")
    new = ast.parse(edit.new).body
    if edit.old is None:
        _replace_whole(tree, symbol, new)
        return
    old = ast.parse(edit.old).body
    places = [
        (body, start, rests)
        for body in _bodies(symbol)
        for start in range(len(body) - len(old) + 1)
        if (rests := _match(old, body[start : start + len(old)])) is not None
    ]
    pattern, replacement = _expression(old), _expression(new)
    nodes = (
        [] if places or pattern is None else [node for node in ast.walk(symbol) if _match(pattern, node) is not None]
    )
    if len(places) == 1:
        body, start, rests = places[0]
        body[start : start + len(old)] = _fill(new, rests)
        if not body:
            body.append(ast.Pass())
    elif len(nodes) == 1 and replacement is not None:
        Swap(nodes[0], replacement).visit(symbol)
    else:
        count = len(places) + len(nodes)
        raise ValueError(f"{edit.at}: the text to replace occurs {count} times, not once:\n{edit.old}")


Rests = list[tuple[list[ast.stmt], list[ast.stmt]]]
"""The bodies and the `else` parts of the statements that a pattern has as `header: ...`."""


def _replace_whole(tree: ast.Module, symbol: Symbol, new: list[ast.stmt]) -> None:
    """Replace the body of a function or class below its docstring, or the value of a constant. If `new` is no
    expression, replace the constant's whole assignment."""
    value = _expression(new)
    if isinstance(symbol, Definition):
        symbol.body[ast.get_docstring(symbol) is not None :] = new
    elif value is not None:
        symbol.value = value
    else:
        body = next(body for body in _bodies(tree) if symbol in body)
        place = body.index(symbol)
        body[place : place + 1] = new


def _expression(statements: list[ast.stmt]) -> ast.expr | None:
    """Return the expression if the statements are one expression alone, otherwise None."""
    if len(statements) == 1 and isinstance(statements[0], ast.Expr):
        return statements[0].value
    return None


def _bodies(node: ast.AST) -> Iterator[list[ast.stmt]]:
    """Yield every list of statements below a node."""
    for child in ast.walk(node):
        for _, value in ast.iter_fields(child):
            if isinstance(value, list) and value and isinstance(value[0], ast.stmt):
                yield value


def _is_rest(value: object) -> bool:
    """Return whether a body is `...` alone."""
    return isinstance(value, list) and len(value) == 1 and ast.dump(value[0]) == "Expr(value=Constant(value=Ellipsis))"


def _match(pattern: object, node: object) -> Rests | None:
    """Return the bodies for which `...` stands in the pattern, or None when pattern and node differ. Pattern and node
    are syntax trees or lists of them."""
    rests: Rests = []
    return rests if _same(pattern, node, rests) else None


def _same(pattern: object, node: object, rests: Rests) -> bool:
    """Return whether two syntax trees are the same. `...` as a body of the pattern matches any body and the `else`
    behind it, which are added to `rests`."""
    if isinstance(pattern, list) and isinstance(node, list):
        return len(pattern) == len(node) and all(_same(*pair, rests) for pair in zip(pattern, node, strict=True))
    if not isinstance(pattern, ast.AST) or type(pattern) is not type(node):
        return type(pattern) is type(node) and pattern == node
    skipped: tuple[str, ...] = ("ctx", "type_comment")
    if _is_rest(getattr(pattern, "body", None)):
        rests.append((node.body, getattr(node, "orelse", [])))  # type: ignore[attr-defined]
        skipped += ("body", "orelse")
    return all(
        _same(value, getattr(node, field), rests) for field, value in ast.iter_fields(pattern) if field not in skipped
    )


def _fill(new: list[ast.stmt], rests: Rests) -> list[ast.stmt]:
    """Return the statements of `new`, with the bodies that the pattern left out in the places of `...`."""
    filled: list[ast.stmt] = []
    for statement in new:
        if _is_rest([statement]) and rests:
            filled += rests.pop(0)[0]
            continue
        for node in ast.walk(statement):
            if _is_rest(getattr(node, "body", None)) and rests:
                node.body, rest = rests.pop(0)  # type: ignore[attr-defined]
                if rest and not node.orelse:  # type: ignore[attr-defined]
                    node.orelse = rest  # type: ignore[attr-defined]
        filled.append(statement)
    return filled


class Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST) -> None:
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else super().generic_visit(node)
