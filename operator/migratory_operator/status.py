"""Conditions and Events of a resource's status, and how times are written; pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from migratory_operator.names import Object

_MAX_MESSAGE_LENGTH = 1000
"""Characters of a condition's message. The schema allows 1024."""
_TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True)
class ConditionValue:
    """The value of a condition, before it has a transition time."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class KubernetesEvent:
    """An Event to post about a resource, once."""

    type: str
    reason: str
    message: str


def truncate_message(message: str) -> str:
    """Return the message, cut to the length that the schema allows."""
    return message[:_MAX_MESSAGE_LENGTH]


def format_time(time: datetime) -> str:
    """Return the time as Kubernetes writes it, in UTC."""
    return time.astimezone(UTC).strftime(_TIME_FORMAT)


def parse_time(text: str) -> datetime:
    """Return the time that `format_time` wrote as `text`.

    :raises ValueError: if it is not in that form.
    """
    return datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)


def condition_object(value: ConditionValue, previous: Sequence[Object], generation: int, now: datetime) -> Object:
    """Return the condition as the status has it. The transition time stays while the status does.

    :param previous: the conditions of the present status.
    """
    old = next((condition for condition in previous if condition.get("type") == value.type), None)
    unchanged = old is not None and old.get("status") == value.status
    return {
        "type": value.type,
        "status": value.status,
        "reason": value.reason,
        "message": truncate_message(value.message),
        "lastTransitionTime": old["lastTransitionTime"] if unchanged and old else format_time(now),
        "observedGeneration": generation,
    }


def status_differs(wanted: Object, present: Object) -> bool:
    """Return whether a part of the wanted status is not in the present one. Conditions are compared one by one."""
    conditions = present.get("conditions", [])
    return any(present.get(key) != value for key, value in wanted.items() if key != "conditions") or any(
        condition not in conditions for condition in wanted.get("conditions", ())
    )
