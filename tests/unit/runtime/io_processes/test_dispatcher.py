"""The dispatcher of new connections: each goes to the I/O process with the fewest clients."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from migratory_broker.runtime.io_processes import handle as iolife
from migratory_broker.runtime.io_processes.messages import IoHello
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
