"""The budget of an edge: what each kind counts, refusals at the limit of subscriptions, and room for other clients."""

from __future__ import annotations

import gc
import tracemalloc
from typing import Any

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge.budget import (
    RETRY_AFTER,
    SUBSCRIPTION_BYTES,
    topic_bytes,
)
from migratory_broker.core.edge.events import Credentials
from migratory_broker.core.logic.events import Attach, Attached, Observe, Tick
from migratory_broker.core.security.authorizer import Authorizer, SecurityConfig
from migratory_broker.core.security.rules import LEVEL_BYTES, Rule
from migratory_broker.core.security.tokens import KeySource, TokenConfig
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Bye,
    Connect,
    Error,
    Subscribe,
    Subscribed,
    TopicReceipt,
    TopicRequest,
    Unsubscribe,
    Welcome,
)
from migratory_protocol.positions import Position
from migratory_testing.edges import Bench, Reader
from migratory_testing.tokens import SECRET, sign

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


@pytest.mark.unmeasured
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


# ---- tokens ----------------------------------------------------------------------------------------------------

WALL = 1_800_000_000.0
OWN = 4 * LEVEL_BYTES
"""Bytes of own permissions with one pattern of one level: the roots of three trees, and the level."""


def token(levels: int = 0, **claims: Any) -> str:
    """Return a token, whose own permissions have a pattern with this many levels unless it is 0."""
    own = {"migratory": {"subscribe": ["/".join("*" * levels)]}} if levels else {}
    return sign({"sub": "ann", "exp": WALL + 300, **own, **claims})


def bench_with_tokens(**limits: Any) -> Bench:
    sources = TokenConfig((KeySource(("HS256",)),))
    rules = (Rule(("**",), ("subscribe",)),)
    bench = Bench(EdgeConfig(**limits), authorizer=Authorizer(SecurityConfig(sources, rules)))
    bench.step(Credentials((SECRET.encode(),)))
    bench.step(Tick(WALL))
    return bench


def connect(bench: Bench, credential: str) -> Reader:
    reader = bench.open()
    reader.send(Connect(token=credential))
    return reader


def test_own_permissions_of_tokens_count_until_their_connection_is_gone() -> None:
    bench = bench_with_tokens()
    first, second = connect(bench, token(1)), connect(bench, token(11))
    assert bench.edge.subscription_bytes == 2 * OWN + 10 * LEVEL_BYTES
    second.send(Connect(token=token()))
    assert bench.edge.subscription_bytes == OWN
    second.send(Connect(token=token(1)))
    first.lose_socket()
    assert bench.edge.subscription_bytes == OWN
    second.send(Bye())
    assert bench.edge.subscription_bytes == OWN, "the closing handshake"
    bench.wait(3.0)
    assert bench.edge.subscription_bytes == 0


def test_tokens_whose_permissions_do_not_fit_are_refused_and_others_connect() -> None:
    bench = bench_with_tokens(subscriptions_total=10 * OWN)
    readers = [connect(bench, token(1)) for _ in range(12)]
    assert [reader.close_code for reader in readers] == [None] * 10 + [CloseCode.TRY_ANOTHER] * 2
    (error,) = readers[-1].take(Error)
    assert (error.code, error.closes) == ("overloaded", True)
    assert error.text == (
        f"limit of memory of all clients' subscriptions: 0 of {10 * OWN} bytes are free, and the token's permissions "
        f"(claim migratory) take {OWN}; connect to another broker"
    )
    assert bench.observed.count(Observe("migratory_refusals_total", label="subscriptions_total")) == 2
    assert connect(bench, token()).close_code is None, "without permissions of its own"
    readers[0].send(Connect(token=token(2)))
    assert readers[0].close_code == CloseCode.TRY_ANOTHER
    bench.wait(3.0)
    assert connect(bench, token(1)).close_code is None


def test_own_permissions_count_as_held_by_their_client() -> None:
    bench = bench_with_tokens(subscriptions_total=OWN + 100 * LEVEL_BYTES + 3 * ONE)
    large, small = connect(bench, token(101)), connect(bench, token())
    assert refused(subscribe(bench, large, names(0, 1))) == names(0, 1)
    assert refused(subscribe(bench, small, names(0, 1))) == []


def test_tokens_of_requests_count_as_input_until_connect() -> None:
    bench = bench_with_tokens()
    held = token(profile="x" * 5000)
    reader, silent, lost = (bench.open(token=held) for _ in range(3))
    assert bench.edge.input_bytes == 3 * len(held)
    lost.lose_socket()
    reader.send(Connect())
    assert len(reader.take(Welcome)) == 1
    assert bench.edge.input_bytes == len(held)
    bench.wait(11.0)
    bench.wait(3.0)
    assert silent.close_code == CloseCode.TRY_ANOTHER
    assert bench.edge.input_bytes == 0


def test_tokens_that_wait_for_connect_are_evicted_at_the_limit() -> None:
    bench = bench_with_tokens(input_total=10_000)
    held = token(profile="x" * 1000)
    readers = [bench.open(token=held) for _ in range(10)]
    assert bench.edge.input_bytes <= 10_000
    closed = [reader for reader in readers if reader.close_code is not None]
    assert 0 < len(closed) < 10
    assert {reader.close_code for reader in closed} == {CloseCode.TRY_ANOTHER}
