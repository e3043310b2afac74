"""Comparison of a live object of Kubernetes with the wanted one, to decide whether to apply it; pure.

Only the fields that a builder sets are compared, also within entries of lists: the API server adds defaults, and others
add fields of their own. Lists must have the same length and order. A wanted false, 0, "", empty list or empty mapping
equals an absent field, because the API server drops it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from migratory_resources.fields import QUANTITY
from migratory_resources.quantities import parse_amount

from migratory_operator.names import Object


def differs(wanted: Object, live: Object | None) -> bool:
    """Return whether `wanted` must be applied: there is no live object, or it does not have every wanted value."""
    return live is None or first_difference(wanted, live) is not None


def first_difference(wanted: Any, live: Any, path: str = "") -> str | None:
    """Return the path of the first wanted value that the live object does not have, such as `.spec.ports[0].port`, or
    None if it has all."""
    if isinstance(wanted, Mapping):
        if not isinstance(live, Mapping):
            # The API server drops empty mappings.
            return None if not wanted and live is None else path or "."
        parts: list[tuple[str, Any, Any]] = [(f"{path}.{key}", value, live.get(key)) for key, value in wanted.items()]
    elif isinstance(wanted, Sequence) and not isinstance(wanted, str):
        present = live if isinstance(live, Sequence) and not isinstance(live, str) else []
        if len(wanted) != len(present):
            return path or "."
        parts = [
            (f"{path}[{index}]", value, other) for index, (value, other) in enumerate(zip(wanted, present, strict=True))
        ]
    else:
        is_same = _is_same_value(wanted, live) or (".resources." in path and _is_same_amount(wanted, live))
        return None if is_same else path or "."
    differences = (first_difference(value, other, part) for part, value, other in parts)
    return next((difference for difference in differences if difference is not None), None)


def _is_same_value(wanted: Any, live: Any) -> bool:
    # The API server drops false, 0 and "" in many places. True and 1 are different.
    return (type(wanted) is type(live) and wanted == live) or (not wanted and live is None)


def _is_same_amount(wanted: Any, live: Any) -> bool:
    # The API server writes amounts of CPU and memory in its own form: 1024Mi becomes 1Gi.
    amounts = [text for text in (wanted, live) if isinstance(text, str) and re.fullmatch(QUANTITY, text)]
    return len(amounts) == 2 and parse_amount(amounts[0]) == parse_amount(amounts[1])
