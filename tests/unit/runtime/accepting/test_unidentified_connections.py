"""Eviction of unidentified connections: the oldest one of the host with the most."""

from __future__ import annotations

from migratory_broker.runtime.accepting.limits import UnidentifiedConnections, host_of


def test_the_oldest_connection_is_evicted_at_the_limit() -> None:
    strangers: UnidentifiedConnections[int] = UnidentifiedConnections(3)
    assert [strangers.add(number, "here") for number in range(5)] == [None, None, None, 0, 1]
    assert list(strangers) == [2, 3, 4]


def test_a_discarded_connection_frees_its_place() -> None:
    strangers: UnidentifiedConnections[int] = UnidentifiedConnections(2)
    strangers.add(1, "here")
    strangers.add(2, "here")
    strangers.discard(1)
    strangers.discard(1)
    assert strangers.add(3, "here") is None
    assert len(strangers) == 2


def test_the_host_with_the_most_connections_is_evicted_from() -> None:
    strangers: UnidentifiedConnections[int] = UnidentifiedConnections(4)
    strangers.add(1, "a broker's")
    for number in (2, 3, 4):
        strangers.add(number, "somebody's")
    assert strangers.add(5, "another broker's") == 2
    assert strangers.add(6, "somebody's") == 3
    assert list(strangers) == [1, 4, 5, 6]


def test_connections_without_an_address_count_as_one_host() -> None:
    assert host_of(None) == "unknown"
