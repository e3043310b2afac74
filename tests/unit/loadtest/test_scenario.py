"""Scenario: the seed decides everything, and what cannot be run is refused by name."""

from __future__ import annotations

from collections import Counter
from math import inf, nan
from typing import Any

import pytest
from migratory_loadtest.payload import Content, build, digest, parse
from migratory_loadtest.scenario import Scenario

SERVERS = ("ws://127.0.0.1:1/ws",)


def test_the_seed_decides_topics_and_offsets() -> None:
    one, same, other = (Scenario(servers=SERVERS, seed=seed) for seed in (1, 1, 2))
    assert one.choices() == same.choices() != other.choices()
    assert one.offsets() == same.offsets() != other.offsets()


def test_each_subscriber_has_one_topic_and_no_topic_is_much_preferred() -> None:
    chosen = Counter(Scenario(servers=SERVERS, subscribers=20_000, topics=10).choices())
    assert sum(chosen.values()) == 20_000
    assert set(chosen) == set(range(10))
    assert max(chosen.values()) < 2_300


def test_offsets_spread_evenly_over_the_period() -> None:
    scenario = Scenario(servers=SERVERS, topics=100, rate=2.0)
    assert sorted(scenario.offsets()) == pytest.approx([place / 200 for place in range(100)])


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
def test_what_cannot_be_run_is_refused_by_name(field: str, value: Any) -> None:
    with pytest.raises(ValueError, match=field):
        Scenario(**{"servers": SERVERS, field: value})


def test_each_worker_serves_its_metrics_on_a_port_of_its_own() -> None:
    assert Scenario(servers=SERVERS).metrics_address(1) == ("127.0.0.1", 0)
    asked = Scenario(servers=SERVERS, metrics_listen="0.0.0.0:9100")
    assert [asked.metrics_address(worker) for worker in (0, 1)] == [("0.0.0.0", 9100), ("0.0.0.0", 9101)]
    assert Scenario(servers=SERVERS, metrics_listen="[::1]:9100").metrics_address(0) == ("::1", 9100)


def test_a_payload_says_what_it_is_and_is_unique() -> None:
    content = Content(publisher=3, topic=7, number=2**40, due_ns=2**63)
    payload = build(140, 1, content)
    assert len(payload) == 140
    assert parse(payload) == content
    others = [
        build(140, 1, content._replace(number=5)),
        build(140, 2, content),
        build(140, 1, content._replace(topic=8)),
    ]
    assert len({digest(payload), *map(digest, others)}) == 4
    assert parse(b"short") is None


def test_connections_come_from_as_many_addresses_as_asked_for() -> None:
    assert Scenario(servers=("ws://x",)).source_addresses() == []
    assert Scenario(servers=("ws://x",), sources=3).source_addresses() == ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
    with pytest.raises(ValueError, match=r"sources: 201 is not in 0\.\.200"):
        Scenario(servers=("ws://x",), sources=201)
