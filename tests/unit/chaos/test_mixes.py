"""What seeds draw: every kind of fault, never too much at once, and what is left out is said."""

from __future__ import annotations

import dataclasses
import itertools
import json

import pytest
from migratory_chaos.crashes import FreezeBrokers, KillBrokers
from migratory_chaos.faults import Fault, Together
from migratory_chaos.mixes import MIXES, Faults


def drawn(mix: str, seed: int, most: int = 1, network: bool = True, count: int = 200) -> list[Fault]:
    return list(itertools.islice(Faults(mix, seed, most, network), count))


@pytest.mark.parametrize("mix", MIXES)
def test_a_seed_draws_the_same_faults_again_and_another_seed_others(mix: str) -> None:
    assert drawn(mix, 5) == drawn(mix, 5)
    assert drawn(mix, 5) != drawn(mix, 6)


@pytest.mark.parametrize("mix", MIXES)
def test_the_first_faults_are_one_of_each_kind(mix: str) -> None:
    first = drawn(mix, 7, count=len(MIXES[mix]))
    kinds = {fault.as_data()["kind"] if not isinstance(fault, Together) else "together" for fault in first}
    assert len(kinds) == len(MIXES[mix])


@pytest.mark.parametrize("most", [1, 2])
def test_no_more_brokers_are_away_than_the_promise_allows(most: int) -> None:
    counts: set[int] = set()
    for fault in drawn("all", 11, most, count=2000):
        parts = [fault.first, fault.second] if isinstance(fault, Together) else [fault]
        brokers = [part for part in parts if isinstance(part, KillBrokers | FreezeBrokers)]
        assert len(brokers) <= 1
        counts.update(part.count for part in brokers)
    assert counts == set(range(1, most + 1))


def test_without_networks_their_faults_are_left_out_and_named() -> None:
    assert not any(fault.needs_network for fault in drawn("all", 3, network=False, count=1000))
    left_out = Faults("all", 3, 1, network=False).left_out()
    assert left_out == [
        "cut ZooKeeper member", "delay", "full disk (ZooKeeper)", "full disk (logs)", "loss", "partition"
    ]  # fmt: skip
    assert Faults("all", 3, 1, network=True).left_out() == []
    assert Faults("processes", 3, 1, network=False).left_out() == []


def test_a_fault_is_data() -> None:
    for fault in drawn("all", 13):
        data = json.loads(json.dumps(fault.as_data()))
        assert data["kind"]
        assert all(field.name in data for field in dataclasses.fields(fault))  # type: ignore[arg-type]
