"""The dispatcher of new connections: each goes to the I/O process with the fewest clients, waits while none accepts,
and is refused when the broker is full or its address is at its limit."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from migratory_broker.runtime.io_processes import handle as iolife
from migratory_broker.runtime.io_processes.messages import IoHello, ReleasedAddresses
from migratory_testing.waiting import until


async def test_connections_go_to_the_process_with_the_fewest(site: Any, idle: Any) -> None:
    here = site(3)
    address = here.open()
    ios = [await here.up(io) for io in here.started]
    await idle(address, 31)
    await until(lambda: sum(io.take_sockets() * 0 + len(io.sockets) for io in ios) == 31)
    assert sorted(len(io.sockets) for io in ios) == [10, 10, 11]
    # one is new: it gets all that come until it has as many
    for sock in ios[1].sockets:
        sock.close()
    ios[1].sockets.clear()
    ios[1].take_sockets()
    await until(lambda: here.clients._processes[2].load == 0)
    await idle(address, 8)
    await until(lambda: ios[1].take_sockets() * 0 + len(ios[1].sockets) == 8)


async def test_connections_wait_while_no_process_is_accepting(site: Any, idle: Any) -> None:
    here = site(1)
    address = here.open()
    (reader,) = await idle(address, 1)
    with pytest.raises(TimeoutError):
        await asyncio.wait_for(reader.read(1), 0.3)
    io = await here.up(here.started[0])
    await until(io.take_sockets)
    io.sockets[0].send(b"x")
    assert await asyncio.wait_for(reader.read(1), 5) == b"x"


async def test_sockets_in_flight_to_a_process_are_bounded(
    site: Any, idle: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(iolife, "MAX_SOCKETS_IN_FLIGHT", 5)
    here = site(1)
    address = here.open()
    io = await here.up(here.started[0])
    await idle(address, 9)
    await until(lambda: here.clients._processes[1].sockets_sent == 5)
    assert here.clients._dealer.least_loaded() is None
    await until(lambda: io.take_sockets() * 0 + len(io.sockets) == 9)


async def test_a_full_broker_refuses_connections_with_an_answer(site: Any, idle: Any) -> None:
    here = site(1)
    address = here.open()
    io = here.started[0]
    await io.connect()
    io.say(IoHello(2))
    await until(lambda: io.got)
    readers = await idle(address, 3)
    await until(lambda: here.clients._dealer.refused)
    assert here.clients.status()["connections_refused"] == 1
    answers = await asyncio.wait_for(asyncio.gather(*(reader.read() for reader in readers[2:])), 5)
    assert answers[0].startswith(b"HTTP/1.1 503 ")


async def test_an_address_has_one_limit_over_all_processes(site: Any, idle: Any) -> None:
    here = site(2, limits={"addresses": {"connections": 3}})
    address = here.open()
    ios = [await here.up(io) for io in here.started]
    readers = await idle(address, 5)
    await until(lambda: sum(io.take_sockets() * 0 + len(io.sockets) for io in ios) == 3)
    assert sorted(len(io.sockets) for io in ios) == [1, 2]
    for reader in readers[3:]:
        assert b"HTTP/1.1 429 " in await asyncio.wait_for(reader.read(), 5)
    assert here.clients.addresses.refused == {"address_connections": 2}
    assert [key for io in ios for key in io.keys] == ["127.0.0.1"] * 3
    # a process reports the end of a connection, and the death of a process is the end of its connections
    first, second = sorted(ios, key=lambda io: len(io.sockets))
    first.say(ReleasedAddresses(("127.0.0.1",)))
    await until(lambda: here.clients.addresses._connections["127.0.0.1"] == 2)
    second.die(-9)
    await until(lambda: not here.clients.addresses._connections)
    await idle(address, 4)
    await until(lambda: first.take_sockets() * 0 + len(first.sockets) == 1 + 3)


async def test_addresses_are_not_counted_without_limits_or_when_exempt(site: Any, idle: Any) -> None:
    here = site(1, limits={"addresses": {"connections": 1, "exempt": ["127.0.0.0/8"]}})
    address = here.open()
    io = await here.up(here.started[0])
    await idle(address, 3)
    await until(lambda: io.take_sockets() * 0 + len(io.sockets) == 3)
    assert io.keys == ["", "", ""]
