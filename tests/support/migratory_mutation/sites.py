"""Where a module can be changed a little: one site, one edit of its text.

Left alone are docstrings, annotations, the cores' own assertions (`must`), log lines and metrics: nothing that a test
should have to notice.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

COMPARISONS: dict[type[ast.cmpop], tuple[str, str]] = {
    ast.Lt: ("<", "<="),
    ast.LtE: ("<=", "<"),
    ast.Gt: (">", ">="),
    ast.GtE: (">=", ">"),
    ast.Eq: ("==", "!="),
    ast.NotEq: ("!=", "=="),
    ast.In: ("in", "not in"),
    ast.NotIn: ("not in", "in"),
    ast.Is: ("is", "is not"),
    ast.IsNot: ("is not", "is"),
}
ARITHMETIC: dict[type[ast.operator], tuple[str, str]] = {
    ast.Add: ("+", "-"),
    ast.Sub: ("-", "+"),
    ast.Mult: ("*", "/"),
    ast.Div: ("/", "*"),
}
SILENT = frozenset({"must", "note", "observe", "Note", "Observe", "reveal_type"})


@dataclass(frozen=True)
class Site:
    """`start`..`end` of the module's text becomes `new`. `line` is where it begins, `text` that whole line."""

    line: int
    start: int
    end: int
    old: str
    new: str
    text: str

    def applied(self, source: str) -> str:
        return source[: self.start] + self.new + source[self.end :]

    @property
    def title(self) -> str:
        return f"{' '.join(self.old.split())[:60]} -> {' '.join(self.new.split())[:60]}"


class _Finder:
    def __init__(self, source: str) -> None:
        self.source = source
        self.lines = source.splitlines(keepends=True)
        self.starts = [0]
        for line in self.lines:
            self.starts.append(self.starts[-1] + len(line))

    def offset(self, line: int, column: int) -> int:
        """The place in the text of a position as `ast` counts: columns in bytes."""
        return self.starts[line - 1] + len(self.lines[line - 1].encode()[:column].decode())

    def span(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        assert node.end_lineno is not None
        assert node.end_col_offset is not None
        return self.offset(node.lineno, node.col_offset), self.offset(node.end_lineno, node.end_col_offset)

    def site(self, start: int, end: int, new: str) -> Site:
        line = self.source.count("\n", 0, start) + 1
        return Site(line, start, end, self.source[start:end], new, self.lines[line - 1].strip())

    def between(self, left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Site]:
        """The operator between two operands; none when a comment stands there that reads like it."""
        start, end = self.span(left)[1], self.span(right)[0]
        gap = self.source[start:end]
        if gap.count(old) == 1:
            place = start + gap.index(old)
            yield self.site(place, place + len(old), new)

    # ---- kinds of sites

    def walk(self, node: ast.AST) -> Iterator[Site]:
        if isinstance(node, ast.Call) and _called(node) in SILENT:
            return
        if isinstance(node, ast.expr):
            yield from self.expression(node)
        elif isinstance(node, ast.stmt):
            yield from self.statement(node)
        for name, value in ast.iter_fields(node):
            if name in ("annotation", "returns", "type_params", "decorator_list"):
                continue
            for child in value if isinstance(value, list) else [value]:
                if isinstance(child, ast.AST) and not _is_text(child):
                    yield from self.walk(child)

    def expression(self, node: ast.expr) -> Iterator[Site]:
        if isinstance(node, ast.Compare):
            for left, operator, right in zip([node.left, *node.comparators], node.ops, node.comparators, strict=False):
                yield from self.between(left, right, *COMPARISONS[type(operator)])
        elif isinstance(node, ast.BoolOp):
            old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
            for left, right in zip(node.values, node.values[1:], strict=False):
                yield from self.between(left, right, old, new)
        elif isinstance(node, ast.BinOp) and type(node.op) in ARITHMETIC:
            yield from self.between(node.left, node.right, *ARITHMETIC[type(node.op)])
        elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
            start = self.span(node)[0]
            yield self.site(start, self.span(node.operand)[0], "")
        elif isinstance(node, ast.Constant):
            yield from self.constant(node)
        elif isinstance(node, ast.Call) and _called(node) in ("min", "max") and isinstance(node.func, ast.Name):
            yield self.site(*self.span(node.func), "max" if node.func.id == "min" else "min")

    def constant(self, node: ast.Constant) -> Iterator[Site]:
        if isinstance(node.value, bool):
            yield self.site(*self.span(node), str(not node.value))
        elif isinstance(node.value, int | float):
            yield self.site(*self.span(node), repr(node.value + 1))

    def statement(self, node: ast.stmt) -> Iterator[Site]:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) and _called(node.value) not in SILENT:
            yield self.site(*self.span(node), "pass")
        elif isinstance(node, ast.AugAssign) and type(node.op) in ARITHMETIC:
            old, new = ARITHMETIC[type(node.op)]
            yield from self.between(node.target, node.value, f"{old}=", f"{new}=")
        elif isinstance(node, ast.Assign | ast.Delete | ast.Continue | ast.Break) and not isinstance(
            getattr(node, "value", None), ast.Lambda
        ):
            if not (isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name | ast.Tuple)):
                yield self.site(*self.span(node), "pass")
        elif isinstance(node, ast.If) and not node.orelse and isinstance(node.body[-1], ast.Return | ast.Continue):
            yield self.site(*self.span(node.test), "False")


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


def sites(source: str) -> list[Site]:
    """Of the module's functions, in the order of the text; each yields a module that compiles."""
    finder = _Finder(source)
    found: dict[tuple[int, int, str], Site] = {}
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef):
            for statement in node.body:
                if not _is_text(statement):
                    for site in finder.walk(statement):
                        found.setdefault((site.start, site.end, site.new), site)
    return [found[key] for key in sorted(found) if _compiles(found[key].applied(source))]


def _compiles(source: str) -> bool:
    try:
        compile(source, "mutant", "exec")
    except SyntaxError:
        return False
    return True
