"""Whether an object is as it is wanted; pure.

Wanted is what a builder says, and no more: the API server adds defaults and others add fields of their own. A list is
wanted as a whole, entry by entry.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from migratory_operator.names import Object


def differs(wanted: Object, live: Object | None) -> bool:
    """True as well when there is none."""
    return live is None or first_difference(wanted, live) is not None


def first_difference(wanted: Any, live: Any, path: str = "") -> str | None:
    """The path of something that is not as wanted, for a log line."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            # The API leaves out what is empty.
            return None if not wanted and live is None else path or "."
        parts: list[tuple[str, Any, Any]] = [(f"{path}.{key}", value, live.get(key)) for key, value in wanted.items()]
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        present = live if isinstance(live, Sequence) and not isinstance(live, str) else []
        if len(wanted) != len(present):
            return path or "."
        parts = [
            (f"{path}[{index}]", value, there) for index, (value, there) in enumerate(zip(wanted, present, strict=True))
        ]
    else:
        return None if _same(wanted, live) else path or "."
    return next((found for part in parts if (found := first_difference(part[1], part[2], part[0])) is not None), None)


def _same(wanted: Any, live: Any) -> bool:
    # The API leaves out false, 0 and "" in many places. True is no 1.
    return (type(wanted) is type(live) and wanted == live) or (not wanted and live is None)
