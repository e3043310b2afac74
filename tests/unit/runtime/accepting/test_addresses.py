"""Limits of each client address: connections at a time and a second, networks that are exempt, and the answer."""

from __future__ import annotations

import asyncio
import socket
import time
from collections.abc import Iterator
from typing import Any

import pytest
from migratory_broker.runtime.accepting.addresses import (
    MIN_RATES,
    AddressLease,
    AddressLimits,
    AddressRefusal,
)
from migratory_broker.runtime.accepting.limits import AcceptRate
from migratory_broker.runtime.accepting.listener import Acceptor, bind, listen
from migratory_testing.waiting import until


class Clock:
    now = 100.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


def limits(clock: Clock, connections: int = 0, rate: int = 0, exempt: tuple[str, ...] = ()) -> AddressLimits:
    made = AddressLimits(clock)
    made.configure(connections, rate, exempt)
    return made


def admitted(made: AddressLimits, host: str) -> AddressLease:
    lease = made.admit(host)
    assert isinstance(lease, AddressLease)
    return lease


def test_without_limits_nothing_is_counted(clock: Clock) -> None:
    made = limits(clock)
    assert [made.admit("192.0.2.1") for _ in range(10)] == [None] * 10
    assert not made._connections


def test_an_address_has_its_limit_of_connections_until_one_ends(clock: Clock) -> None:
    made = limits(clock, connections=2)
    first, _ = admitted(made, "192.0.2.1"), admitted(made, "192.0.2.1")
    refusal = made.admit("192.0.2.1")
    assert isinstance(refusal, AddressRefusal)
    assert refusal.limit == "address_connections"
    assert refusal.text == "192.0.2.1: limit of connections of one address reached (2)"
    admitted(made, "192.0.2.2")
    first.release()
    first.release()  # once
    admitted(made, "192.0.2.1")
    assert isinstance(made.admit("192.0.2.1"), AddressRefusal)
    assert made.refused == {"address_connections": 2}


def test_an_address_without_connections_takes_no_memory(clock: Clock) -> None:
    made = limits(clock, connections=2)
    for number in range(100):
        admitted(made, f"192.0.2.{number}").release()
    assert not made._connections


def test_an_address_has_its_rate_and_a_burst_of_a_second(clock: Clock) -> None:
    made = limits(clock, rate=10)
    for _ in range(10):
        admitted(made, "192.0.2.1")
    refusal = made.admit("192.0.2.1")
    assert isinstance(refusal, AddressRefusal)
    assert (refusal.limit, refusal.retry_after) == ("address_rate", 1)
    assert refusal.text == "192.0.2.1: limit of new connections of one address reached (10 a second)"
    admitted(made, "192.0.2.2")
    for _ in range(50):  # refused ones do not count
        made.admit("192.0.2.1")
    clock.now += 0.1
    admitted(made, "192.0.2.1")
    assert isinstance(made.admit("192.0.2.1"), AddressRefusal)
    clock.now += 100
    assert sum(isinstance(made.admit("192.0.2.1"), AddressLease) for _ in range(30)) == 10


def test_the_table_of_rates_holds_those_who_connected_lately(clock: Clock) -> None:
    made = limits(clock, rate=1000)
    for number in range(3 * MIN_RATES):
        clock.now += 0.01
        admitted(made, f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}")
    assert len(made._due) <= MIN_RATES + 1


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("192.0.2.1", "::ffff:192.0.2.1", True),
        ("192.0.2.1", "192.0.2.2", False),
        ("2001:db8:0:1::1", "2001:db8:0:1:ffff::2", True),
        ("2001:db8:0:1::1", "2001:db8:0:2::1", False),
        ("fe80::1%lo", "fe80::2", True),
    ],
)
def test_an_ipv6_network_of_64_bits_counts_as_one_address(clock: Clock, first: str, second: str, same: bool) -> None:
    made = limits(clock, connections=1)
    admitted(made, first)
    assert isinstance(made.admit(second), AddressRefusal) is same


def test_exempt_networks_have_no_limit(clock: Clock) -> None:
    made = limits(clock, connections=1, rate=1, exempt=("10.0.0.0/8", "2001:db8::/32", "192.0.2.7"))
    for host in ("10.1.2.3", "::ffff:10.1.2.3", "2001:db8::5", "192.0.2.7"):
        assert [made.admit(host) for _ in range(5)] == [None] * 5
    admitted(made, "192.0.2.8")
    assert isinstance(made.admit("192.0.2.8"), AddressRefusal)


def test_changed_limits_apply_to_connections_that_count_already(clock: Clock) -> None:
    made = limits(clock, connections=3)
    leases = [admitted(made, "192.0.2.1") for _ in range(3)]
    made.configure(1, 0, ())
    for lease in leases[:2]:
        lease.release()
        assert isinstance(made.admit("192.0.2.1"), AddressRefusal)
    leases[2].release()
    admitted(made, "192.0.2.1")
    made.configure(0, 0, ())
    assert made.admit("192.0.2.1") is None
    with pytest.raises(ValueError, match=r"10\.0\.0\.0/99"):
        made.configure(1, 1, ("10.0.0.0/99",))


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0, "clients") as bound:
        yield listen(bound, "clients")


async def test_a_refused_address_is_answered_and_takes_no_token_of_the_rate(
    listening: socket.socket, log: Any, clock: Clock
) -> None:
    started: list[tuple[socket.socket, AddressLease | None]] = []
    made = limits(clock, connections=1)
    rate = AcceptRate(4, time.monotonic)
    acceptor = Acceptor(listening, lambda *entry: started.append(entry), log, rate=rate, addresses=made)
    address = listening.getsockname()
    first, second = [await asyncio.open_connection(*address) for _ in range(2)]
    answer = (await asyncio.wait_for(second[0].read(), 5)).decode()
    assert answer.startswith("HTTP/1.1 429 Too Many Requests\r\n")
    assert "\r\nRetry-After: 5\r\n" in answer
    assert answer.endswith("127.0.0.1: limit of connections of one address reached (1); try again after 5 s\n")
    assert log.lines[0]["reason"] == "127.0.0.1: limit of connections of one address reached (1)"
    for _ in range(8):
        other = await asyncio.open_connection(*address)
        assert b"429" in await asyncio.wait_for(other[0].read(), 1)
        other[1].close()
    ((accepted, lease),) = started
    assert lease is not None
    lease.release()
    third = await asyncio.open_connection(*address)
    await until(lambda: len(started) == 2)
    for sock in (accepted, started[1][0]):
        sock.close()
    for connection in (first, second, third):
        connection[1].close()
    acceptor.close()
