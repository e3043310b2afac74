"""One condition of a resource, before and after it has a time, and how a time is written; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from migratory_operator.names import Object

_LONGEST_MESSAGE = 1000


@dataclass(frozen=True)
class Verdict:
    """One condition before it has a time."""

    type: str
    status: str
    reason: str
    message: str


def shortened(message: str) -> str:
    """As the schema takes it."""
    return message[:_LONGEST_MESSAGE]


def time_text(when: datetime) -> str:
    return when.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def written(verdict: Verdict, before: Sequence[Object], generation: int, now: datetime) -> Object:
    """As the status has it: the time of the transition stays while the status does."""
    old = next((condition for condition in before if condition.get("type") == verdict.type), None)
    same = old is not None and old.get("status") == verdict.status
    return {
        "type": verdict.type,
        "status": verdict.status,
        "reason": verdict.reason,
        "message": shortened(verdict.message),
        "lastTransitionTime": old["lastTransitionTime"] if same and old else time_text(now),
        "observedGeneration": generation,
    }
