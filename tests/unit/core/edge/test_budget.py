"""The budget of an edge: what each kind counts, refusals at the limit of subscriptions, and room for other clients."""

from __future__ import annotations

import gc
import tracemalloc

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.budget import (
    RETRY_AFTER,
    SUBSCRIPTION_BYTES,
    topic_bytes,
)
from migratory_broker.core.logic.events import Attach, Attached, Observe
from migratory_protocol.messages import Subscribe, Subscribed, TopicReceipt, TopicRequest, Unsubscribe
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, Reader

ONE = topic_bytes("topic-000") + SUBSCRIPTION_BYTES
"""Bytes that count for the only subscription to a topic whose name has nine letters."""


def names(first: int, count: int) -> list[str]:
    return [f"topic-{number:03}" for number in range(first, first + count)]


def subscribe(bench: Bench, reader: Reader, topics: list[str]) -> list[TopicReceipt]:
    """Subscribe, answer each attach request of the edge with `complete`, and return the receipts."""
    reader.send(Subscribe(1, [TopicRequest(topic) for topic in topics]))
    while attaches := bench.requests_of(Attach):
        for attach in attaches:
            bench.step(Attached(0, attach.reference, attach.topic, "complete", Position(1, 0)))
    return [receipt for message in reader.take(Subscribed) for receipt in message.topics]


def refused(receipts: list[TopicReceipt]) -> list[str]:
    return [receipt.topic for receipt in receipts if receipt.receipt is None]


def test_a_client_has_at_most_what_is_free_and_others_subscribe() -> None:
    limit = 100 * ONE
    bench = Bench(EdgeConfig(subscriptions_total=limit))
    hogs = [bench.client() for _ in range(4)]
    held = []
    for number, hog in enumerate(hogs):
        receipts = subscribe(bench, hog, names(100 * number, 90))
        held.append(90 - len(refused(receipts)))
    assert held == [50, 25, 13, 6]
    last = next(receipt for receipt in receipts if receipt.receipt is None)
    assert (last.code, last.retry_after) == ("overloaded", RETRY_AFTER)
    assert last.text == (
        f"limit of memory of all clients' subscriptions: {6 * ONE} of {limit} bytes are free, and this client has "
        f"{6 * ONE}; try again after 5 s, or at another broker"
    )
    assert bench.observed.count(Observe("migratory_refusals_total", label="subscriptions_total")) == 360 - sum(held)
    assert refused(subscribe(bench, bench.client(), names(500, 3))) == []
    hogs[0].lose_socket()
    assert refused(subscribe(bench, hogs[3], names(600, 10))) == []


def test_nobody_subscribes_above_the_limit() -> None:
    limit = 100 * ONE
    bench = Bench(EdgeConfig(subscriptions_total=limit))
    for number in range(120):
        receipts = subscribe(bench, bench.client(), names(number, 1))
        assert refused(receipts) == (names(number, 1) if number >= 100 else [])
    assert f"0 of {limit} bytes are free, and this client has 0; try" in receipts[0].text
    assert bench.edge.subscription_bytes == limit
    assert refused(subscribe(bench, bench.readers[1], names(0, 1))) == []  # its own again
    bench.readers[1].send(Unsubscribe(2, names(0, 1)))
    bench.readers[1].received.clear()
    assert refused(subscribe(bench, bench.readers[110], names(500, 1))) == []


def test_a_shared_topic_counts_once() -> None:
    bench = Bench()
    for number in range(1, 6):
        subscribe(bench, bench.client(), ["quotes"])
        assert bench.edge.subscription_bytes == topic_bytes("quotes") + number * SUBSCRIPTION_BYTES
    assert bench.edge.subscriptions == 5


@pytest.mark.parametrize("end", ["unsubscribed", "lost", "refused by the logic"])
def test_ended_subscriptions_do_not_count(end: str) -> None:
    bench = Bench()
    reader, other = bench.client(), bench.client()
    subscribe(bench, other, ["topic-001"])
    alone = bench.edge.subscription_bytes
    if end == "refused by the logic":
        for topic in names(0, 3):
            attach = reader.subscribe(topic)
            bench.attached(attach, Position(1, 0), receipt=None, code="too_many_topics", text="no")
    else:
        subscribe(bench, reader, names(0, 3))
        assert bench.edge.subscription_bytes == alone + 2 * ONE + SUBSCRIPTION_BYTES
        if end == "lost":
            reader.lose_socket()
        else:
            reader.send(Unsubscribe(3, names(0, 3)))
    assert bench.edge.subscription_bytes == alone
    subscribe(bench, other, names(1, 1))
    other.lose_socket()
    assert bench.edge.subscription_bytes == 0


def test_requests_count_as_input_while_they_wait() -> None:
    bench = Bench(EdgeConfig(attaches_per_client=2))
    reader = bench.client()
    before = bench.edge.input_bytes
    reader.send(Subscribe(1, [TopicRequest(topic) for topic in [*names(0, 50), *(f"\n{n}" for n in range(50))]]))
    assert bench.edge.input_bytes - before > 50 * 512 + 50 * 1024
    while attaches := bench.requests_of(Attach):
        for attach in attaches:
            bench.step(Attached(0, attach.reference, attach.topic, "complete", Position(1, 0)))
    assert bench.edge.input_bytes == before == 0
    assert bench.edge.status()["input_bytes"] == 0


@pytest.mark.parametrize(("length", "shared"), [(250, False), (20, False), (20, True)])
def test_the_counted_bytes_are_those_that_subscriptions_take(length: int, shared: bool) -> None:
    bench = Bench()
    readers = [bench.client() for _ in range(40)]
    for reader in readers:
        subscribe(bench, reader, ["first"])
    counted = bench.edge.subscription_bytes
    gc.collect()
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for number, reader in enumerate(readers):
            owner = 0 if shared else number
            subscribe(bench, reader, [f"{owner:03}-{topic:03}".ljust(length, "x") for topic in range(100)])
            reader.writes.clear()
        gc.collect()
        taken = tracemalloc.get_traced_memory()[0] - before
    finally:
        tracemalloc.stop()
    counted = bench.edge.subscription_bytes - counted
    assert 0.7 * taken < counted < 1.5 * taken
