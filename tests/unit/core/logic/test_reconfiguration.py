"""A change of the configured brokers while the cluster runs: each wait for all brokers then waits for the new ones.
And a change of a broker's weight."""

from __future__ import annotations

import pytest
from migratory_broker.core.logic.events import BrokersConfigured, ServerList, WeightConfigured
from migratory_protocol.messages import Server
from migratory_testing.brokers import Cluster

TWO = ("a", "b")


def owned(cluster: Cluster, name: str) -> int:
    return sum(cluster.coordinator(group) == name for group in range(cluster.groups))


def test_first_records_wait_for_the_present_brokers() -> None:
    cluster = Cluster(min_copies=1)
    cluster.start(*TWO)
    cluster.run(2.0)
    assert cluster.coordinators() == [], "c is configured, and waited for"
    for name in TWO:
        cluster.give(name, BrokersConfigured(TWO))
    cluster.run(2.0)
    assert len(cluster.coordinators()) == 1
    assert [note.fields for note in cluster["a"].notes("brokers_configured")] == [{"brokers": ["a", "b"]}]


@pytest.mark.unmeasured
def test_groups_are_balanced_over_the_present_brokers() -> None:
    cluster = Cluster(("a", "b", "c", "d"), groups=6).up(40.0)
    cluster.crash("d")
    cluster.run(10.0)
    cluster.crash("c")
    cluster.run(10.0)
    cluster.restart("c")
    cluster.run(40.0)
    assert owned(cluster, "c") == 0, "d is away: nothing moves"
    for name in "abc":
        cluster.give(name, BrokersConfigured(("a", "b", "c")))
    cluster.run(40.0)
    assert [owned(cluster, name) for name in "abc"] == [2, 2, 2]


def test_added_broker_becomes_a_member_and_gets_its_share() -> None:
    cluster = Cluster(groups=6, min_copies=1)
    cluster.start(*TWO)
    for name in TWO:
        cluster.give(name, BrokersConfigured(TWO))
    cluster.run(20.0)
    assert owned(cluster, "a") == owned(cluster, "b") == 3
    for name in TWO:
        cluster.give(name, BrokersConfigured(cluster.names))
    cluster.start("c")
    cluster.run(40.0)
    assert [owned(cluster, name) for name in cluster.names] == [2, 2, 2]
    assert cluster.logic("c").membership.ready


def test_a_changed_weight_reaches_every_broker_and_its_clients() -> None:
    cluster = Cluster().up()
    cluster.give("b", WeightConfigured(20))
    cluster.run(1.0)
    for name in cluster.names:
        assert cluster[name].of(ServerList)[-1].servers == (
            Server("ws://a"),
            Server("ws://b", 20),
            Server("ws://c"),
        )
    assert [note.fields for note in cluster["b"].notes("weight_configured")] == [{"weight": 20}]
