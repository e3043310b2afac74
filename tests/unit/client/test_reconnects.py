"""Clients that lose their broker at the same moment reconnect at different times (`benchmarks/reconnects.py`)."""

from __future__ import annotations

from benchmarks.reconnects import AWAY, URLS, attempts, slices

CLIENTS = 1000


def test_clients_of_a_killed_broker_spread_over_a_second_and_all_brokers() -> None:
    attempted = attempts("killed", CLIENTS)
    assert len(attempted) == CLIENTS  # one attempt each: nobody tries the dead one again
    counts = slices(attempted)
    assert len(counts) == 10
    assert max(counts) <= 1.3 * CLIENTS / 10
    by_broker = [sum(url == broker for _, url in attempted) for broker in URLS]
    assert max(by_broker) <= 1.15 * CLIENTS / len(URLS)


def test_clients_without_a_broker_retry_less_and_less_often_and_spread() -> None:
    counts = slices(attempts("away", CLIENTS), 1.0)
    assert max(counts[10:]) <= 0.5 * max(counts)
    assert max(counts[int(AWAY) :]) <= 0.4 * CLIENTS  # when they are back, they are not overrun either
    assert len(counts) <= AWAY + 2 * 6
