"""Which inputs are worth keeping: those that add a branch of the product, or something a target has seen, the shortest
first. Needs no fuzzer, so that everybody's corpus is chosen alike."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any

from migratory_fuzz import signals
from migratory_fuzz.targets import Target

Trace = Callable[[FrameType, str, Any], Any]


def chosen(target: Target, inputs: Iterable[bytes]) -> list[bytes]:
    """Those that reach more of the product's lines come first: when there is no room for all, labels matter less."""
    known: set[object] = set()
    by_lines: list[bytes] = []
    by_labels: list[bytes] = []
    for data in sorted(set(inputs), key=lambda data: (len(data), data)):
        new = reached(target, data) - known
        known |= new
        if any(not isinstance(step, str) for step in new):
            by_lines.append(data)
        elif new:
            by_labels.append(data)
    return by_lines + by_labels


def reached(target: Target, data: bytes) -> set[object]:
    """Steps from line to line in the product's modules, and the labels that the target saw. Raises what it raises."""
    steps: set[object] = set()
    lines: dict[int, int] = {}

    def local(frame: FrameType, event: str, argument: object) -> Trace:
        key = id(frame)
        steps.add((frame.f_code, lines.get(key, 0), frame.f_lineno))
        lines[key] = frame.f_lineno
        if event == "return":
            lines.pop(key, None)
        return local

    def enter(frame: FrameType, event: str, argument: object) -> Trace | None:
        return local if frame.f_globals.get("__name__") in target.product else None

    before = sys.gettrace()
    with signals.listening(steps):
        sys.settrace(enter)
        try:
            target.run(data)
        finally:
            sys.settrace(before)
    return steps
