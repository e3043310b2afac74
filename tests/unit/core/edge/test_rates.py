"""Rates: who publishes or subscribes faster than allowed is read later, in order and without a loss, and told so.
Others that do not share the rate notice nothing."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.edge import rates as module
from migratory_broker.core.edge.events import Credentials, More, Opened, RateLimits, Rates
from migratory_broker.core.edge.rates import MAX_TURNS
from migratory_broker.core.edge.state import REFILL
from migratory_broker.core.logic.events import Attach, Tick
from migratory_broker.core.security.authorizer import Authorizer, SecurityConfig
from migratory_broker.core.security.rules import Rule
from migratory_broker.core.security.tokens import KeySource, TokenConfig
from migratory_protocol import frames
from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import (
    Bye,
    Connect,
    Error,
    Ping,
    Pong,
    Publish,
    Subscribe,
    TopicRequest,
    Unsubscribe,
    Unsubscribed,
    Welcome,
)
from migratory_testing.edges import Bench, Reader
from migratory_testing.tokens import SECRET, sign

WALL = 1_800_000_000.0
RULE = Rule(("**",), ("subscribe", "publish"), anonymous=True)


def bench(*, tokens: bool = False, **limits: Any) -> Bench:
    config = EdgeConfig(rates=RateLimits(**limits))
    if not tokens:
        return Bench(config)
    security = SecurityConfig(TokenConfig((KeySource(("HS256",)),), leeway=0.0), (RULE,), anonymous=True)
    made = Bench(config, authorizer=Authorizer(security))
    made.step(Credentials((SECRET.encode(),)))
    made.step(Tick(WALL))
    return made


def connected(on: Bench, address: str = "", *, subject: str = "") -> Reader:
    number = len(on.readers) + 1
    reader = on.readers[number] = Reader(on, number, "msgpack", False)
    on.step(Opened(number, "msgpack", f"{address or '10.0.0.1'}:1", address=address))
    token = sign({"sub": subject, "exp": WALL + 300.0}) if subject else None
    reader.send(Connect(client="c", token=token))
    assert len(reader.take(Welcome)) == 1
    return reader


def publish(reader: Reader, first: int, last: int, size: int = 0) -> None:
    """Publish the numbers from `first` to `last`, each in a frame of its own, in one read."""
    reader.send(*[Publish("t", b"%d" % number + bytes(size)) for number in range(first, last + 1)])


def numbers(on: Bench) -> list[int]:
    return [int(publication.payload.rstrip(b"\0")) for publication in on.published()]


def test_publications_over_the_rate_wait_and_keep_their_order() -> None:
    on = bench(client=Rates(publications=10))
    flood, other = connected(on), connected(on)
    publish(flood, 1, 40)
    assert numbers(on) == list(range(1, 11))
    (error,) = flood.take(Error)
    assert (error.code, error.retry_after, error.closes) == ("rate_limited", REFILL, False)
    assert error.text == (
        "limit of publications of one client reached (10 a second); nothing is refused, the broker reads on in 0.25 s"
    )
    assert on.held == {flood.number}
    publish(other, 1, 10)
    assert (numbers(on), on.held) == (list(range(1, 11)), {flood.number})
    on.wait(2.0, 0.05)
    handled = numbers(on)
    assert handled == list(range(11, 11 + len(handled)))
    assert 17 <= len(handled) <= 21  # 20 of two seconds, give or take a refill
    assert len(flood.take(Error)) <= 2.0 / REFILL
    on.wait(2.0, 0.05)
    assert numbers(on)[-1] == 40
    assert on.held == set()
    assert on.edge.input_bytes == 0
    labels = {(each.metric, each.label) for each in on.observed}
    assert ("migratory_rate_limited_total", "client_publications") in labels
    first, *rest = [note.fields for note in on.notes if note.event == "client_rate_limited"]
    assert (first["client"], first["limit"], first["rate"], first["others"]) == ("c", "client_publications", 10, 0)
    assert len(rest) <= 3
    assert rest[0]["others"] > 0  # type: ignore[operator]


def test_bytes_of_a_long_publication_are_paid_for_afterwards() -> None:
    on = bench(client=Rates(bytes=1000))
    reader = connected(on)
    publish(reader, 1, 1, size=2999)
    assert numbers(on) == [1]
    publish(reader, 2, 3, size=99)
    (error,) = reader.take(Error)
    assert error.retry_after == 2.0 + REFILL
    assert "limit of bytes of one client reached (1000 a second)" in error.text
    on.wait(2.2)
    assert numbers(on) == []
    on.wait(0.1)
    assert numbers(on) == [2, 3]


def test_topics_of_subscribe_requests_have_a_rate_and_other_messages_none() -> None:
    on = bench(client=Rates(subscriptions=4))
    reader = connected(on)
    reader.send(Subscribe(1, [TopicRequest(name) for name in "abcd"]))
    assert len(on.requests_of(Attach)) == 4
    reader.send(Unsubscribe(2, ["a"]), Ping(), Publish("t", b"1"), Subscribe(3, [TopicRequest("e")]), Ping(), Bye())
    assert [type(each) for each in reader.received] == [Unsubscribed, Pong, Error]
    assert numbers(on) == [1]
    reader.received.clear()
    on.wait(0.5)
    assert [attach.topic for attach in on.requests_of(Attach)] == ["e"]
    assert (reader.received, reader.close_code) == ([Pong()], 1000)


def test_connections_of_one_identity_share_its_rate_and_others_do_not() -> None:
    on = bench(tokens=True, identity=Rates(publications=10))
    first, second, other, nobody = (connected(on, subject=name) for name in ("ann", "ann", "bob", ""))
    publish(first, 1, 10)
    publish(second, 11, 12)
    publish(other, 21, 30)
    publish(nobody, 31, 60)
    assert numbers(on) == [*range(1, 11), *range(21, 31), *range(31, 61)]
    assert on.held == {second.number}
    (note,) = [note for note in on.notes if note.event == "client_rate_limited"]
    assert (note.fields["subject"], note.fields["limit"]) == ("ann", "identity_publications")
    on.wait(0.5)
    assert numbers(on) == [11, 12]


def test_another_identity_counts_from_its_connect_on() -> None:
    on = bench(tokens=True, client=Rates(publications=20), identity=Rates(publications=10))
    reader = connected(on, subject="ann")
    publish(reader, 1, 10)
    reader.send(Connect(client="c", token=sign({"sub": "bob", "exp": WALL + 300.0})))
    publish(reader, 11, 25)
    assert numbers(on) == list(range(1, 21))
    assert {each.label for each in on.observed if each.metric == "migratory_rate_limited_total"} == {
        "client_publications"
    }


def test_addresses_share_a_rate_and_those_that_do_not_count_have_none() -> None:
    on = bench(address=Rates(publications=10))
    first, second, other, exempt = (connected(on, address) for address in ("10.0.0.1", "10.0.0.1", "10.0.0.2", ""))
    publish(first, 1, 10)
    publish(second, 11, 11)
    publish(other, 21, 30)
    publish(exempt, 31, 60)
    assert numbers(on) == [*range(1, 11), *range(21, 31), *range(31, 61)]
    assert on.held == {second.number}


def test_those_that_share_a_rate_have_their_turns_in_order() -> None:
    """A client that sends little gets its turn beside one of the same address that floods."""
    on = bench(address=Rates(publications=8))
    flood, small = connected(on, "10.0.0.1"), connected(on, "10.0.0.1")
    publish(flood, 1, 100)
    publish(small, 1001, 1001)
    on.wait(3 * REFILL, 0.05)
    handled = numbers(on)
    assert 1001 in handled
    assert handled.index(1001) <= 8 + 2 * REFILL * 8
    late = connected(on, "10.0.0.1")
    on.now += 10  # the bucket is full again, and the flood waits for its timer
    publish(late, 2001, 2001)
    assert numbers(on) == []
    on.wait(2 * REFILL)
    assert 2001 in numbers(on)


def test_many_that_wait_have_their_turns_in_several_steps() -> None:
    on = bench(address=Rates(publications=10_000))
    flood = connected(on, "10.0.0.1")
    publish(flood, 1, 1)
    on.edge._rates._shared["address", "publications", "10.0.0.1"].level = 0.0
    others = [connected(on, "10.0.0.1") for _ in range(MAX_TURNS + 5)]
    for reader in others:
        publish(reader, 2, 2)
    numbers(on)
    assert len(on.held) == MAX_TURNS + 5
    on.now += REFILL
    on.step(on.later.pop())
    assert len(numbers(on)) == MAX_TURNS
    on.wait(0.1)
    assert (len(numbers(on)), on.held) == (5, set())


def test_nobody_gets_a_full_rate_by_connecting_again(monkeypatch: pytest.MonkeyPatch) -> None:
    on = bench(address=Rates(publications=10))
    publish(connected(on, "10.0.0.1"), 1, 12)
    on.readers[1].lose_socket()
    publish(connected(on, "10.0.0.1"), 11, 12)
    assert numbers(on) == list(range(1, 11))
    on.readers[2].lose_socket()
    assert len(on.edge._rates._shared) == 1
    on.wait(2.0)  # full again, and not needed
    assert (on.edge._rates._shared, on.edge._rates._unused) == ({}, {})
    monkeypatch.setattr(module, "MAX_UNUSED", 2)
    for number in range(4):
        publish(connected(on, f"10.0.1.{number}"), 1, 10)
        on.readers[len(on.readers)].lose_socket()
    assert [key[2] for key in on.edge._rates._shared] == ["10.0.1.2", "10.0.1.3"]


@pytest.mark.parametrize("end", ["lost", "bye"])
def test_client_that_ends_while_it_waits_is_forgotten(end: str) -> None:
    on = bench(client=Rates(publications=1), address=Rates(publications=1))
    first, second = connected(on, "10.0.0.1"), connected(on, "10.0.0.1")
    publish(first, 1, 3)
    publish(second, 4, 4)
    if end == "lost":
        first.lose_socket()
    else:
        on.now += 100.0
        first.send_bytes(b"")
        on.edge._connections.close(on.edge._connections.table[1], CloseCode.DRAINING, "drained", "")
        on.step(Tick())
        assert first.close_code == 1001
    on.wait(2.0)
    assert numbers(on) == [1, 4]
    assert on.edge.input_bytes == 0


def test_limits_change_while_clients_are_connected() -> None:
    """Changed limits apply to open connections: those at a former limit go on."""
    on = bench()
    first, second = connected(on, "10.0.0.1"), connected(on, "10.0.0.2")
    assert on.edge._connections.table[1].meter is None
    on.step(RateLimits(address=Rates(publications=5), addresses={1: "10.0.0.1"}))
    for reader in (first, second):
        publish(reader, 1, 10)
    assert len(numbers(on)) == 15
    assert on.held == {1}
    on.step(RateLimits(address=Rates(publications=2), addresses={1: "10.0.0.1", 2: "10.0.0.2"}))
    assert (len(numbers(on)), on.held) == (2, {1})
    on.step(RateLimits())
    assert (len(numbers(on)), on.held) == (3, set())
    assert on.edge._connections.table[1].meter is None
    on.wait(1.0)
    assert numbers(on) == []


def test_buckets_without_users_are_bounded_whatever_ends_or_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection leaves a bucket of each kind of rate behind, and a change those of all connections."""
    monkeypatch.setattr(module, "MAX_UNUSED", 2)
    rates = Rates(publications=10, bytes=1000, subscriptions=10)
    on = bench(address=rates)
    readers = [connected(on, f"10.0.1.{number}") for number in range(6)]
    for reader in readers[:2]:
        reader.lose_socket()
    assert len(on.edge._rates._unused) == 2
    addresses = {reader.number: f"10.0.1.{reader.number - 1}" for reader in readers[2:]}
    on.step(RateLimits(address=rates, addresses=addresses))
    assert (len(on.edge._rates._shared), on.edge._rates._unused) == (12, {})
    on.step(RateLimits())
    assert (on.edge._rates._shared, on.edge._rates._unused) == ({}, {})


def test_client_that_waits_long_is_alive_and_hears_from_the_broker() -> None:
    """Its socket is not read, so neither end could see that the other lives."""
    on = bench(client=Rates(bytes=100))
    reader = connected(on)
    publish(reader, 1, 1, size=10_000)
    publish(reader, 2, 2)
    assert len(reader.take(Error)) == 1
    heartbeat = EdgeConfig().heartbeat
    for _ in range(4):
        on.wait(heartbeat + 1.0, 1.0)
        assert len(reader.take(Error)) == 1
    assert (reader.socket, reader.close_code) == ("open", None)
    on.wait(60.0, 1.0)
    assert numbers(on) == [1, 2]


def test_client_that_waits_goes_on_only_at_its_turn() -> None:
    """Neither a transport that takes bytes again nor a late `More` lets it go on earlier; a full one, later."""
    on = bench(client=Rates(publications=4))
    reader = connected(on)
    publish(reader, 1, 6)
    reader.pause()
    reader.resume()
    on.step(More(reader.number))
    assert numbers(on) == [1, 2, 3, 4]
    reader.pause()
    on.wait(1.0)
    assert numbers(on) == []
    reader.resume()
    assert numbers(on) == [5, 6]


def test_messages_of_one_frame_wait_as_well() -> None:
    on = bench(client=Rates(publications=4))
    reader = connected(on)
    codec = reader.codec
    batch = codec.join([codec.encode(Publish("t", b"%d" % number)) for number in range(1, 10)])
    reader.send_bytes(frames.binary_frame(batch, b"\1\2\3\4"))
    publish(reader, 10, 12)
    on.wait(4.0)
    assert numbers(on) == list(range(1, 13))
    assert on.held == set()


def test_client_that_does_not_read_delays_no_other_of_its_address() -> None:
    on = bench(address=Rates(publications=4))
    stalled, other = connected(on, "10.0.0.1"), connected(on, "10.0.0.1")
    publish(stalled, 1, 6)
    publish(other, 11, 12)
    stalled.pause()
    on.wait(1.0, 0.05)
    assert numbers(on) == [1, 2, 3, 4, 11, 12]
    stalled.resume()
    assert numbers(on) == [5, 6]


def test_client_that_waited_for_one_rate_may_wait_for_another() -> None:
    on = bench(client=Rates(publications=100, bytes=1000), address=Rates(publications=4))
    reader, other = connected(on, "10.0.0.1"), connected(on, "10.0.0.1")
    publish(other, 1, 4)
    publish(reader, 5, 6, size=3000)
    on.wait(0.5)
    assert numbers(on) == [1, 2, 3, 4, 5]
    assert [error.text.split()[4] for error in reader.take(Error)] == ["one", "one"]
    on.wait(5.0)
    assert numbers(on) == [6]


def test_client_may_have_to_wait_for_another_rate_at_its_turn() -> None:
    on = bench(tokens=True, identity=Rates(publications=8), address=Rates(publications=4))
    reader, same_address = connected(on, "10.0.0.1", subject="ann"), connected(on, "10.0.0.1", subject="bob")
    same_identity = connected(on, "10.0.0.2", subject="ann")
    publish(same_address, 1, 4)
    publish(reader, 21, 21)
    publish(same_identity, 11, 14)
    on.edge._rates._shared["identity", "publications", "ann"].level = -8.0
    on.wait(1.0)
    assert numbers(on) == [1, 2, 3, 4, 11, 12, 13, 14]
    assert [error.text.split()[5] for error in reader.take(Error)] == ["address", "identity"]
    on.wait(0.5)
    assert (numbers(on), on.held) == ([21], set())
