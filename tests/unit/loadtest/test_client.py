"""The simulated client's links: a dial that the core gives up makes no connection."""

from __future__ import annotations

import asyncio
import random
import select
import socket
from collections.abc import Iterator

import pytest
from migratory_client.core import events as ev
from migratory_client.core.settings import Settings
from migratory_loadtest.client import WorkerContext
from migratory_loadtest.histogram import bucket_bounds
from migratory_loadtest.meter import Meter
from migratory_loadtest.subscriber import LoadSubscriber, Transcript
from migratory_protocol.codec import MSGPACK
from migratory_protocol.messages import Server
from migratory_testing.waiting import until


@pytest.fixture
def busy() -> Iterator[socket.socket]:
    """A listening socket whose queue is full, so that further connects stay pending in the kernel."""
    with socket.socket() as listening, socket.socket() as filler:
        listening.bind(("127.0.0.1", 0))
        listening.listen(0)
        filler.connect(listening.getsockname())
        yield listening


def subscriber(address: tuple[str, int], settings: Settings) -> LoadSubscriber:
    server = Server("ws://{}:{}/ws".format(*address))
    context = WorkerContext(MSGPACK, (server,), settings, Meter(bucket_bounds(), 1.0))
    return LoadSubscriber(context, "s", random.Random(1), None, 0, Transcript("t"))


async def test_dial_that_outlasts_its_time_limit_makes_no_connection(busy: socket.socket) -> None:
    client = subscriber(busy.getsockname(), Settings(connect_timeout=0.05, first_retry=60.0))
    client.open()
    await until(lambda: client.context.errors, "the core gave the attempt up")
    await until(lambda: not client.context.dialling, "the dial ended", limit=5)
    assert client._links == {}
    with busy.accept()[0]:  # the filler
        assert select.select([busy], [], [], 0)[0] == [], "nobody else connected"
    client.step(ev.Close())


async def test_client_that_is_closed_while_it_dials_makes_no_connection(busy: socket.socket) -> None:
    client = subscriber(busy.getsockname(), Settings())
    client.open()
    await asyncio.sleep(0)  # the dial begins
    client.step(ev.Close())
    await until(lambda: not client.context.dialling, "the dial ended", limit=5)
    assert client._links == {}


async def test_client_that_is_closed_as_its_connection_is_made_ends_it() -> None:
    """The dial's task ends a turn of the loop after `connection_made`: a client may be closed between them."""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        client = subscriber(listening.getsockname(), Settings())
        client.open()
        (link,) = client.context.dialling
        while link.transport is None:  # noqa: ASYNC110 - the turn in which it is made
            await asyncio.sleep(0)
        client.step(ev.Close())
        await until(lambda: not client.context.dialling, "the dial ended", limit=5)
        assert client._links == {}
        loop = asyncio.get_running_loop()
        listening.setblocking(False)
        accepted, _ = await loop.sock_accept(listening)
        with accepted:
            accepted.setblocking(False)
            async with asyncio.timeout(30):
                while await loop.sock_recv(accepted, 4096):
                    pass
