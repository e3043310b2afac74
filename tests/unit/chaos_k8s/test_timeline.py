"""What the load's progress says: when every client was served again, and how many reconnected."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_chaos_k8s.inside import KEYS
from migratory_chaos_k8s.timeline import Moment, clients_whole, read, reconnects, served

SUBSCRIBERS, PUBLISHERS = 6, 2


def moments(count: int = 30, **changes: dict[int, float]) -> list[Moment]:
    """One a second; 10 publications each, delivered to 3 within the second. `changes`: a key's values at seconds."""
    found = []
    for second in range(count):
        values = {
            "elapsed": float(second),
            "connected": SUBSCRIBERS,
            "publishers": PUBLISHERS,
            "oldest": 0.1,
            "published": 10.0 * second,
            "acknowledged": 10.0 * second,
            "received": 30.0 * second,
            "expected": 30.0 * second,
            "reconnects": 0.0,
        }
        for key, at in changes.items():
            values[key] = at.get(second, values[key])
        found.append(Moment(**values))
    return found


def whole(found: list[Moment], began: float = 10.0, ended: float = 29.0) -> float | None:
    return clients_whole(found, began, ended, SUBSCRIBERS, PUBLISHERS)


def test_when_nothing_was_missing_clients_were_served_all_the_time() -> None:
    assert whole(moments()) == 0.0


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("connected", 5.0, "1 subscribers have no broker"),
        ("publishers", 0.0, "2 publishers have no broker"),
        ("oldest", 2.1, "a publication waits for 2.1 s"),
        ("received", 300.0, "have"),
    ],
)
def test_each_thing_that_clients_miss_counts_until_its_end(key: str, value: float, said: str) -> None:
    changes: dict[str, Any] = {key: dict.fromkeys((13, 14, 15), value)}
    found = moments(**changes)
    assert whole(found) == 6.0, "from the blow at 10 until the entry at 16"
    assert whole(found, began=20.0) == 0.0
    (wrong,) = served(found, 14, SUBSCRIBERS, PUBLISHERS)
    assert said in wrong or wrong.endswith("deliveries are behind")


def test_what_is_on_its_way_is_not_behind() -> None:
    found = moments(received={14: 30.0 * 13})
    assert served(found, 14, SUBSCRIBERS, PUBLISHERS) == []
    late = moments(received={14: 30.0 * 12 - 1})
    assert served(late, 14, SUBSCRIBERS, PUBLISHERS) == ["1 deliveries are behind"]


def test_who_is_not_served_at_the_end_never_was() -> None:
    assert whole(moments(connected=dict.fromkeys(range(25, 30), 4.0))) is None
    assert whole(moments(connected=dict.fromkeys(range(25, 29), 4.0))) == 19.0


def test_reconnects_are_those_between_the_two_moments() -> None:
    counts = {second: 0.0 if second < 5 else 4.0 if second < 12 else 9.0 for second in range(30)}
    assert reconnects(moments(reconnects=counts), 10.0, 20.0) == 5
    assert reconnects(moments(reconnects=counts), 2.0, 11.5) == 4
    assert reconnects([], 2.0, 11.5) == 0


def test_entries_of_another_shape_are_refused() -> None:
    assert read([[float(number) for number in range(len(KEYS))]])[0].elapsed == 0.0
    with pytest.raises(ValueError, match="other keys"):
        read([[1.0, 2.0]])
