"""Multicasts that bypass the transports: every client gets every byte once and in order, however much the kernel
accepts, and no byte of another client."""

from __future__ import annotations

import asyncio
import gc
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any
from weakref import ref

import pytest
from migratory_broker.core.edge.events import Multicast, Recipients
from migratory_broker.runtime.clients.multicast import SMALL_AUDIENCE, Multicaster
from migratory_testing.loops import on_both_loops


class Target(asyncio.Protocol):
    """A connection in the table of a multicaster. `peer` is the other end, a blocking socket."""

    def __init__(self, table: dict[int, Target], number: int, peer: socket.socket) -> None:
        self.table = table
        self.number = number
        self.peer = peer
        self.transport: Any = None
        self.lost = False
        self.socket: socket.socket | None = None
        self.send: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        del self.table[self.number]

    def adopted(self, own: socket.socket | None) -> Target:
        self.socket = own
        self.send = self.transport.write if own is None else own.send
        self.table[self.number] = self
        return self

    async def read(self, count: int) -> bytes:
        """Return the next `count` bytes that arrive at the other end, or fewer if the connection ends. Raise
        TimeoutError after 10 s."""

        def work() -> bytes:
            data = b""
            while len(data) < count:
                piece = self.peer.recv(count - len(data))
                if not piece:
                    break
                data += piece
            return data

        return await asyncio.wait_for(asyncio.to_thread(work), 10)


class Site:
    """A multicaster and its table, to which `connect` adds real connections."""

    def __init__(self, listening: socket.socket) -> None:
        self.listening = listening
        self.table: dict[int, Target] = {}
        self.multicaster = Multicaster(self.table)
        self.made: list[Target] = []

    async def connect(self, buffer: int = 0, through: bool = True) -> Target:
        """Connect a target to the multicaster and return it. `buffer` is the size of the kernel's buffers in bytes
        (0: the default). Unless `through`, multicasts to it are written to its transport."""
        peer = socket.socket()
        if buffer:
            peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
        peer.settimeout(10)
        peer.connect(self.listening.getsockname())
        accepted, _ = self.listening.accept()
        accepted.setblocking(False)
        if buffer:
            accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
        target = Target(self.table, len(self.made) + 1, peer)
        self.made.append(target)
        await asyncio.get_running_loop().connect_accepted_socket(lambda: target, accepted)
        return target.adopted(accepted if through else None)

    def multicast(self, data: bytes, *targets: Target) -> None:
        self.multicaster.multicast(Multicast(data, recipients(*targets)))


def recipients(*targets: Target) -> Recipients:
    return Recipients(tuple(target.number for target in targets))


@asynccontextmanager
async def sites() -> AsyncIterator[Site]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        site = Site(listening)
        yield site
        for target in site.made:
            if not target.lost:
                target.transport.abort()
            target.peer.close()


def frames(size: int, count: int) -> list[bytes]:
    return [bytes([number % 251]) * size for number in range(count)]


@on_both_loops(sites)
async def test_every_recipient_gets_the_same_bytes_directly_or_through_its_transport(site: Site) -> None:
    for count in (3, SMALL_AUDIENCE + 4):
        targets = [await site.connect(through=number % 3 != 1) for number in range(count)]
        assert [target.socket is not None for target in targets][:3] == [True, False, True]
        everyone = recipients(*targets)
        for frame in frames(100, 5):
            site.multicaster.multicast(Multicast(frame, everyone))
        for target in targets:
            assert await target.read(500) == b"".join(frames(100, 5))


@on_both_loops(sites)
async def test_send_methods_are_kept_for_as_long_as_the_recipients_live(site: Site) -> None:
    targets = [await site.connect() for _ in range(SMALL_AUDIENCE + 1)]
    everyone, few = recipients(*targets), recipients(*targets[1:])
    for _ in range(2):
        for audience in (everyone, few):
            site.multicaster.multicast(Multicast(b"x", audience))
    assert list(site.multicaster._sends) == [everyone]
    gone = ref(everyone)
    del everyone, audience
    gc.collect()
    assert gone() is None
    assert len(site.multicaster._sends) == 0
    assert await targets[1].read(4) == b"xxxx"


@on_both_loops(sites)
async def test_recipient_lost_before_the_lookup_does_not_affect_others(site: Site) -> None:
    targets = [await site.connect() for _ in range(SMALL_AUDIENCE + 3)]
    everyone = recipients(*targets)
    targets[2].transport.abort()
    async with asyncio.timeout(10):
        while not targets[2].lost:  # noqa: ASYNC110
            await asyncio.sleep(0)
    targets[5].transport.write(b"r" * 2_000_000)
    for behind in (False, True):  # the second time each recipient is looked at
        if behind:
            site.multicaster.note(targets[5])
        site.multicaster.multicast(Multicast(b"news", everyone))
    for number, target in enumerate(targets):
        if number not in (2, 5):
            assert await target.read(8) == b"newsnews"


@on_both_loops(sites)
async def test_bytes_that_the_kernel_refuses_follow_in_order_and_others_do_not_wait(site: Site) -> None:
    slow, quick = await site.connect(buffer=4096), await site.connect()
    behind = site.multicaster._behind
    sent = frames(3000, 60)
    reading = asyncio.create_task(quick.read(180_000))
    for frame in sent:
        site.multicast(frame, slow, quick)
    assert slow in behind
    assert quick not in behind
    assert await reading == b"".join(sent)
    assert await slow.read(180_000) == b"".join(sent)
    async with asyncio.timeout(10):
        while slow.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    site.multicast(b"again", slow, quick)
    assert behind == {}
    assert (await slow.read(5), await quick.read(5)) == (b"again", b"again")


@on_both_loops(sites)
async def test_a_reply_through_the_transport_is_not_overtaken(site: Site) -> None:
    target, through = await site.connect(buffer=4096), await site.connect(through=False)
    target.transport.write(b"r" * 200_000)
    site.multicaster.note(target)
    site.multicast(b"later", target, through)
    assert await target.read(200_005) == b"r" * 200_000 + b"later"
    assert await through.read(5) == b"later"


@on_both_loops(sites)
async def test_a_review_drops_only_connections_that_have_caught_up(site: Site) -> None:
    reading, gone, stuck = [await site.connect(buffer=4096) for _ in range(3)]
    multicaster = site.multicaster
    for target in (reading, gone, stuck):
        target.transport.write(b"r" * 2_000_000)
        multicaster.note(target)
    multicaster.review()
    assert list(multicaster._behind) == [reading, gone, stuck]
    gone.transport.abort()
    multicaster.review()
    assert list(multicaster._behind) == [reading, gone, stuck]
    await reading.read(2_000_000)
    async with asyncio.timeout(10):
        while reading.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    multicaster.forget(gone)
    multicaster.review()
    assert list(multicaster._behind) == [stuck]


@on_both_loops(sites)
async def test_closed_or_broken_connection_does_not_affect_others(site: Site) -> None:
    for closing in ("close", "abort"):
        first, through, last = await site.connect(), await site.connect(through=False), await site.connect()
        crowd = [await site.connect() for _ in range(SMALL_AUDIENCE)]
        before = recipients(first, through, last, *crowd)
        site.multicaster.multicast(Multicast(b"old ", before))  # whose send methods are kept
        getattr(first.transport, closing)()
        getattr(through.transport, closing)()
        site.multicaster.multicast(Multicast(b"all ", before))
        site.multicaster._behind.clear()
        async with asyncio.timeout(10):
            while first.socket.fileno() >= 0:  # type: ignore[union-attr]  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        stranger = await site.connect()  # may well get the descriptor that just became free
        site.multicaster.multicast(Multicast(b"news", before))
        site.multicast(b"own", stranger)
        assert await last.read(12) == b"old all news"
        assert await stranger.read(3) == b"own"


@on_both_loops(sites)
async def test_half_closed_client_gets_the_bytes_of_its_transport_and_no_later_ones(site: Site) -> None:
    """A client that has closed its sending side gets all bytes that were in its transport, in order, and none that
    were sent later, while another client gets all."""
    target, other = await site.connect(buffer=4096), await site.connect()
    sent: list[bytes] = []

    def fan_out() -> None:
        sent.append(len(sent).to_bytes(4) * 25)
        site.multicast(sent[-1], target, other)

    for _ in range(50):  # until no more of it goes through
        while target.transport.get_write_buffer_size() < 30_000:
            fan_out()
        await asyncio.sleep(0.001)
    before = len(sent)
    target.peer.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(10):
        while not target.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert target.transport.get_write_buffer_size()
        target.peer.setblocking(False)
        received = b""
        while target.socket.fileno() >= 0 and len(sent) < 20_000:  # type: ignore[union-attr]
            with suppress(BlockingIOError):
                received += target.peer.recv(1000)
            fan_out()
            await asyncio.sleep(0)
        target.peer.settimeout(1)
        while data := target.peer.recv(65_536):
            received += data
    in_order = received == b"".join(sent[:before])  # as a word: pytest would compare what is torn for minutes
    assert in_order
    assert before < len(sent)
    others = await other.read(100 * len(sent)) == b"".join(sent)
    assert others


@on_both_loops(sites)
async def test_closing_connection_gets_nothing_after_a_publication_that_it_missed(site: Site) -> None:
    """A closing connection that missed a reply, or the rest of a multicast of which the kernel accepted a part, gets
    no later multicast."""
    for part in (0, 50):
        target = await site.connect()
        target.transport.close()
        if part:
            site.multicaster._write_rest(target, b"x" * 100, part)
        else:
            site.multicaster.note(target)
        for _ in range(2):
            site.multicast(b"later", target)
        assert await target.read(5) == b""
        site.multicaster.forget(target)


@on_both_loops(sites)
async def test_a_peer_that_reset_the_connection_ends_it(site: Site) -> None:
    gone, other = await site.connect(), await site.connect()
    gone.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    gone.peer.close()
    for _ in range(3):
        site.multicast(b"x", gone, other)
    assert await other.read(3) == b"xxx"
    async with asyncio.timeout(10):
        while not gone.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@on_both_loops(sites)
async def test_unexpected_error_of_a_send_is_raised(site: Site) -> None:
    target, wrong = await site.connect(), await site.connect(through=False)

    def write(data: bytes) -> None:
        raise RuntimeError("a mistake of our own")

    wrong.send = write
    with pytest.raises(RuntimeError, match="of our own"):
        site.multicast(b"x", target, wrong)


@on_both_loops(sites)
async def test_transport_that_raises_while_closing_does_not_affect_others(site: Site) -> None:
    targets = [await site.connect(through=number not in (1, 2, 4)) for number in range(5)]

    def write(data: bytes) -> None:
        raise RuntimeError("the handler is closed")

    for number in (1, 2, 4):
        targets[number].send = write
        targets[number].transport.close()
    site.multicast(b"x", *targets)
    for number in (0, 3):
        assert await targets[number].read(1) == b"x"
