"""What a target tells the fuzzer beyond the lines of Python that ran.

msgspec is C and shows no lines: without a word about which message or which mistake it found, all inputs would look
alike to the fuzzer. `seen(label)` makes each label a piece of coverage of its own; when nobody listens it does nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager

MOST = 4000
"""Labels that are told apart; more would be the contents of inputs rather than kinds of them."""

_DIGITS = re.compile(r"\d+")

_listener: Callable[[str], None] | None = None


def seen(label: str) -> None:
    if _listener is not None:
        _listener(_DIGITS.sub("0", label[:100]))


def told(text: str) -> None:
    """An error's text, up to where it begins to quote its input."""
    seen(re.split("['\"]", text, maxsplit=1)[0])


def mark_each(make: Callable[[], Callable[[], object]]) -> None:
    """From now on each new label gets what `make` returns, called whenever the label is seen."""
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


@contextmanager
def listening(labels: set[object]) -> Iterator[None]:
    """What is seen meanwhile goes into `labels`."""
    global _listener
    before, _listener = _listener, labels.add
    try:
        yield
    finally:
        _listener = before
