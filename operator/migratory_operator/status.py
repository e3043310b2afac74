"""Conditions and Events of clusters and reports as values, the form of conditions and times in Kubernetes, and the
comparison of statuses; pure."""

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
    """The content of a condition without its transition time and generation, which `condition_object` adds. `status` is
    `True`, `False` or `Unknown`, as text; `reason` is one word, `message` is for people."""

    type: str
    status: str
    reason: str
    message: str


@dataclass(frozen=True)
class KubernetesEvent:
    """The content of a Kubernetes Event about a cluster or report. `type` is `Normal` or `Warning`, `reason` is one
    word, `message` is for people. `post_events` adds the resource and the time."""

    type: str
    reason: str
    message: str


def truncate_message(message: str) -> str:
    """Return the first 1,000 characters of the message; the schema allows 1,024."""
    return message[:_MAX_MESSAGE_LENGTH]


def format_time(time: datetime) -> str:
    """Return the time as Kubernetes writes it, in UTC and without fractions of a second: `2026-01-31T12:00:00Z`. `time`
    has a time zone."""
    return time.astimezone(UTC).strftime(_TIME_FORMAT)


def parse_time(text: str) -> datetime:
    """Return the time, in UTC, that `text` gives in the form of `format_time`.

    :raises ValueError: the text does not have that form.
    """
    return datetime.strptime(text, _TIME_FORMAT).replace(tzinfo=UTC)


def condition_object(value: ConditionValue, previous: Sequence[Object], generation: int, now: datetime) -> Object:
    """Return the condition as an entry of `status.conditions`, with its message cut to 1,000 characters. The transition
    time is `now` if `previous` has no condition of this type or one with another status (True, False, Unknown), else it
    is copied from `previous`.

    :param previous: the conditions of the present status.
    :param generation: the generation of the spec from which the condition was derived.
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
    """Return whether a top-level field of the wanted status, or one of its conditions as a whole, is missing from the
    present status or has another value there. Fields and conditions that are only in the present status do not
    count."""
    conditions = present.get("conditions", [])
    return any(present.get(key) != value for key, value in wanted.items() if key != "conditions") or any(
        condition not in conditions for condition in wanted.get("conditions", ())
    )
