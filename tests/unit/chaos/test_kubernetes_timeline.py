"""The timeline of the load: when every client received publications again, and how many reconnected."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_chaos.kubernetes.result import clients_recovery, count_reconnects, find_unserved
from migratory_loadtest import LoadEvent

SUBSCRIBERS, PUBLISHERS = 6, 2


def moments(count: int = 30, **changes: dict[int, float]) -> list[LoadEvent]:
    """Return `count` entries, one a second, in which 10 publications a second are each delivered to 3 subscribers.
    `changes` replaces a key's value at given seconds."""
    timeline = []
    for second in range(count):
        values: dict[str, Any] = {
            "phase": "measuring", "elapsed": float(second), "total": 90.0, "late": 0, "oldest": 0.1, "reconnects": 0,
            "connected": SUBSCRIBERS, "subscribers": SUBSCRIBERS, "publishers": PUBLISHERS,
            "published": 10 * second, "acknowledged": 10 * second, "received": 30 * second, "expected": 30 * second,
        }  # fmt: skip
        values.update({key: at[second] for key, at in changes.items() if second in at})
        timeline.append(LoadEvent(**values))
    return timeline


def recovery(timeline: list[LoadEvent], began: float = 10.0, ended: float = 29.0) -> float | None:
    return clients_recovery(timeline, began, ended, PUBLISHERS)


def test_clients_recovery_is_zero_when_nothing_was_wrong() -> None:
    assert recovery(moments()) == 0.0


@pytest.mark.parametrize(
    ("key", "value", "text"),
    [
        ("connected", 5, "1 subscribers have no broker"),
        ("publishers", 0, "2 publishers have no broker"),
        ("oldest", 2.1, "a publication waits for 2.1 s"),
        ("received", 300, "behind"),
    ],
)
def test_clients_recovery_lasts_until_nothing_is_wrong(key: str, value: float, text: str) -> None:
    changes: dict[str, Any] = {key: dict.fromkeys((13, 14, 15), value)}
    timeline = moments(**changes)
    assert recovery(timeline) == 6.0, "from the injection at 10 until the entry at 16"
    assert recovery(timeline, began=20.0) == 0.0
    (wrong,) = find_unserved(timeline, 14, PUBLISHERS)
    assert text in wrong or wrong.endswith("deliveries are behind")


def test_deliveries_are_behind_after_their_limit_only() -> None:
    timeline = moments(received={14: 30 * 13})
    assert find_unserved(timeline, 14, PUBLISHERS) == []
    late = moments(received={14: 30 * 12 - 1})
    assert find_unserved(late, 14, PUBLISHERS) == ["1 deliveries are behind"]


def test_clients_recovery_is_none_when_clients_are_unserved_at_the_end() -> None:
    assert recovery(moments(connected=dict.fromkeys(range(25, 30), 4.0))) is None
    assert recovery(moments(connected=dict.fromkeys(range(25, 29), 4.0))) == 19.0


def test_count_reconnects_counts_between_two_times() -> None:
    counts = {second: 0.0 if second < 5 else 4.0 if second < 12 else 9.0 for second in range(30)}
    assert count_reconnects(moments(reconnects=counts), 10.0, 20.0) == 5
    assert count_reconnects(moments(reconnects=counts), 2.0, 11.5) == 4
    assert count_reconnects([], 2.0, 11.5) == 0
