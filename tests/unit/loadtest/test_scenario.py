"""The scenario: everything follows from the seed, and values out of range are errors."""

from __future__ import annotations

from collections import Counter
from math import inf, nan
from typing import Any

import pytest
from migratory_loadtest.scenario import Scenario

SERVERS = ("ws://127.0.0.1:1/ws",)


def test_topics_and_offsets_follow_from_the_seed() -> None:
    scenario, same, other = (Scenario(servers=SERVERS, seed=seed) for seed in (1, 1, 2))
    assert scenario.choices() == same.choices() != other.choices()
    assert scenario.offsets() == same.offsets() != other.offsets()


def test_subscribers_are_spread_evenly_over_the_topics() -> None:
    topics = Counter(Scenario(servers=SERVERS, subscribers=20_000, topics=10).choices())
    assert sum(topics.values()) == 20_000
    assert set(topics) == set(range(10))
    assert max(topics.values()) < 2_300


def test_offsets_spread_evenly_over_the_period() -> None:
    scenario = Scenario(servers=SERVERS, topics=100, rate=2.0)
    assert sorted(scenario.offsets()) == pytest.approx([index / 200 for index in range(100)])


def test_counts_follow_from_the_sizes() -> None:
    scenario = Scenario(servers=SERVERS, subscribers=9_000, topics=5, publishers=10, warmup=2, duration=8, rate=0.5)
    assert (scenario.worker_count(), scenario.publisher_count(), scenario.sends_per_topic()) == (3, 5, 5)
    assert scenario.topic_names()[4] == "bench/4"
    assert Scenario(servers=SERVERS, workers=1).worker_count() == 1


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("servers", ()),
        ("servers", ("http://x",)),
        ("subscribers", -1),
        ("topics", 0),
        ("payload", 8),
        ("publishers", -1),
        ("rate", 0.0),
        ("rate", inf),
        ("duration", nan),
        ("duration", inf),
        ("warmup", inf),
        ("patience", nan),
        ("duration", 0.0),
        ("warmup", -0.1),
        ("resume_limit", 0.0),
        ("settle", -1.0),
        ("metrics_listen", "9100"),
        ("metrics_listen", ":9100"),
        ("metrics_listen", "0.0.0.0:0"),
        ("metrics_listen", "0.0.0.0:65535"),
    ],
)
def test_value_out_of_range_is_an_error_that_names_the_field(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Scenario(**{"servers": SERVERS, field: value})


def test_each_worker_has_its_own_metrics_port() -> None:
    assert Scenario(servers=SERVERS).metrics_address(1) == ("127.0.0.1", 0)
    scenario = Scenario(servers=SERVERS, metrics_listen="0.0.0.0:9100")
    assert [scenario.metrics_address(worker) for worker in (0, 1)] == [("0.0.0.0", 9100), ("0.0.0.0", 9101)]
    assert Scenario(servers=SERVERS, metrics_listen="[::1]:9100").metrics_address(0) == ("::1", 9100)


def test_sources_are_that_many_loopback_addresses() -> None:
    assert Scenario(servers=("ws://x",)).source_addresses() == []
    assert Scenario(servers=("ws://x",), sources=3).source_addresses() == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    with pytest.raises(ValueError, match="sources: 201 is not allowed; use 0 to 200"):
        Scenario(servers=("ws://x",), sources=201)
