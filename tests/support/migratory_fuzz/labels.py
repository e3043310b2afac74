"""Labels: coverage that a target reports beyond the executed lines of Python.

msgspec is C and shows no lines: without a label for the message or the mistake that was found, all inputs would look
alike to the fuzzer. `seen(label)` makes each label a piece of coverage of its own; without a fuzzer it does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable

MOST = 4000
"""The most different labels. More would be contents of inputs rather than kinds of them."""

_DIGITS = re.compile(r"\d+")

_listener: Callable[[str], None] | None = None


def seen(label: str) -> None:
    """Report a label, without its digits."""
    if _listener is not None:
        _listener(_DIGITS.sub("0", label[:100]))


def seen_error(text: str) -> None:
    """Report the text of an error up to where it begins to quote the input."""
    seen(re.split("['\"]", text, maxsplit=1)[0])


def mark_each(make: Callable[[], Callable[[], object]]) -> None:
    """From now on, call for each label that is seen the function that `make` returned for it. Ignore further labels
    after `MOST`."""
    global _listener
    marks: dict[str, Callable[[], object]] = {}

    def mark(label: str) -> None:
        found = marks.get(label)
        if found is None:
            if len(marks) >= MOST:
                return
            found = marks[label] = make()
        found()

    _listener = mark
