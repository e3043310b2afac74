"""Fan-outs past the transport: every byte once and in order, whatever the kernel takes, and never to another client."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest
import uvloop
from migratory_broker.core.edge.events import Multicast
from migratory_broker.runtime.direct import ClientSocket, Direct, wrap


class Owner(asyncio.Protocol):
    """A connection whose client end is `peer`, a blocking socket."""

    def __init__(self, direct: Direct, peer: socket.socket) -> None:
        self.direct = direct
        self.peer = peer
        self.transport: Any = None
        self.lost = False
        self.socket: ClientSocket | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost = True
        self.direct.forget(self)
        if self.socket is not None:
            self.socket.owner = None

    def adopted(self, own: ClientSocket | None) -> Owner:
        if own is not None:
            self.socket = own
            self.direct.adopt(own, self)
        return self

    @property
    def sink(self) -> Any:
        return self.transport.write if self.socket is None else self.socket.send

    async def read(self, count: int) -> bytes:
        """Exactly `count` bytes, within 10 s."""

        def work() -> bytes:
            data = b""
            while len(data) < count:
                found = self.peer.recv(count - len(data))
                if not found:
                    break
                data += found
            return data

        return await asyncio.wait_for(asyncio.to_thread(work), 10)


Make = Callable[..., Any]


def on_both_loops(test: Callable[[Make], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """The test once on asyncio's own loop and once on uvloop, whose transports differ."""

    @pytest.mark.parametrize("factory", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"])
    def both(factory: Callable[[], asyncio.AbstractEventLoop]) -> None:
        async def work() -> None:
            async with connections() as make:
                await test(make)

        with asyncio.Runner(loop_factory=factory) as runner:
            runner.run(work())

    both.__name__ = test.__name__
    return both


@asynccontextmanager
async def connections() -> AsyncIterator[Make]:
    direct = Direct()
    made: list[Owner] = []
    with socket.create_server(("127.0.0.1", 0)) as listening:

        async def build(buffer: int = 0, through: bool = True) -> Owner:
            peer = socket.socket()
            if buffer:
                peer.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, buffer)
            peer.settimeout(10)
            peer.connect(listening.getsockname())
            accepted, _ = listening.accept()
            accepted.setblocking(False)
            if buffer:
                accepted.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, buffer)
            own = wrap(accepted) if through else None
            owner = Owner(direct, peer)
            made.append(owner)
            await asyncio.get_running_loop().connect_accepted_socket(lambda: owner, own or accepted)
            return owner.adopted(own)

        yield build
        for owner in made:
            if not owner.lost:
                owner.transport.abort()
            owner.peer.close()


def frames(size: int, count: int) -> list[bytes]:
    return [bytes([number % 251]) * size for number in range(count)]


@on_both_loops
async def test_everybody_gets_the_same_bytes_directly_or_through_a_transport(make: Make) -> None:
    owners = [await make(), await make(through=False), await make()]
    assert [owner.socket is not None for owner in owners] == [True, False, True]
    for frame in frames(100, 5):
        owners[0].direct.multicast(Multicast(frame, tuple(owner.sink for owner in owners)))
    for owner in owners:
        assert await owner.read(500) == b"".join(frames(100, 5))


@on_both_loops
async def test_what_the_kernel_does_not_take_follows_in_order_and_others_do_not_wait(make: Make) -> None:
    slow, quick = await make(buffer=4096), await make()
    direct = slow.direct
    sent = frames(3000, 60)
    reading = asyncio.create_task(quick.read(180_000))
    for frame in sent:
        direct.multicast(Multicast(frame, (slow.sink, quick.sink)))
    assert slow in direct._behind
    assert quick not in direct._behind
    assert await reading == b"".join(sent)
    assert await slow.read(180_000) == b"".join(sent)
    async with asyncio.timeout(10):
        while slow.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    direct.multicast(Multicast(b"again", (slow.sink, quick.sink)))
    assert direct._behind == {}
    assert (await slow.read(5), await quick.read(5)) == (b"again", b"again")


@on_both_loops
async def test_a_reply_through_the_transport_is_not_overtaken(make: Make) -> None:
    owner = await make(buffer=4096)
    owner.transport.write(b"r" * 200_000)
    owner.direct.note(owner)
    owner.direct.multicast(Multicast(b"later", (owner.sink,)))
    assert await owner.read(200_005) == b"r" * 200_000 + b"later"


@on_both_loops
async def test_who_has_caught_up_or_is_gone_is_noticed_without_a_fan_out(make: Make) -> None:
    reading, gone, stuck = await make(buffer=4096), await make(buffer=4096), await make(buffer=4096)
    direct = reading.direct
    for owner in (reading, gone, stuck):
        owner.transport.write(b"r" * 2_000_000)
        direct.note(owner)
    direct.look()
    assert list(direct._behind) == [reading, gone, stuck]
    gone.transport.abort()
    direct.look()
    assert list(direct._behind) == [reading, gone, stuck]
    await reading.read(2_000_000)
    async with asyncio.timeout(10):
        while reading.transport.get_write_buffer_size():  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    direct.look()
    assert list(direct._behind) == [stuck]


@on_both_loops
async def test_a_closed_or_broken_connection_harms_nobody(make: Make) -> None:
    for closing in ("close", "abort"):
        first, through, last = await make(), await make(through=False), await make()
        sinks = (first.sink, through.sink, last.sink)
        getattr(first.transport, closing)()
        getattr(through.transport, closing)()
        async with asyncio.timeout(10):
            while first.socket.fileno() >= 0:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        stranger = await make()  # may well get the descriptor that just became free
        last.direct.multicast(Multicast(b"news", sinks))
        stranger.direct.multicast(Multicast(b"own", (stranger.sink,)))
        assert await last.read(4) == b"news"
        assert await stranger.read(3) == b"own"


@on_both_loops
async def test_a_client_that_ended_its_half_gets_what_its_transport_holds_and_nothing_behind_it(make: Make) -> None:
    """Its transport closes as soon as it is empty. What would go past it meanwhile would come too early."""
    owner, other = await make(buffer=4096), await make()
    sent: list[bytes] = []

    def fan_out() -> None:
        sent.append(len(sent).to_bytes(4) * 25)
        owner.direct.multicast(Multicast(sent[-1], (owner.sink, other.sink)))

    for _ in range(50):  # until no more of it goes through
        while owner.transport.get_write_buffer_size() < 30_000:
            fan_out()
        await asyncio.sleep(0.001)
    before = len(sent)
    owner.peer.shutdown(socket.SHUT_WR)
    async with asyncio.timeout(10):
        while not owner.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.001)
        assert owner.transport.get_write_buffer_size()
        owner.peer.setblocking(False)
        got = b""
        while owner.socket.fileno() >= 0 and len(sent) < 20_000:
            with suppress(BlockingIOError):
                got += owner.peer.recv(1000)
            fan_out()
            await asyncio.sleep(0)
        owner.peer.settimeout(1)
        while found := owner.peer.recv(65_536):
            got += found
    in_order = got == b"".join(sent[:before])  # as a word: pytest would compare what is torn for minutes
    assert in_order
    assert before < len(sent)
    others = await other.read(100 * len(sent)) == b"".join(sent)
    assert others
    assert owner.direct._behind == {}


@on_both_loops
async def test_what_a_closing_connection_did_not_get_is_not_left_out_of_the_middle(make: Make) -> None:
    """Neither of a reply nor of the rest of a fan-out that the kernel took in part."""
    for part in (0, 50):
        owner = await make()
        owner.transport.close()
        if part:
            owner.direct._rest(owner.sink, b"x" * 100, part)
        else:
            owner.direct.note(owner)
        for _ in range(2):
            owner.direct.multicast(Multicast(b"later", (owner.sink,)))
        assert await owner.read(5) == b""
        assert owner.direct._behind == {}


@on_both_loops
async def test_a_peer_that_reset_the_connection_ends_it(make: Make) -> None:
    gone, other = await make(), await make()
    gone.peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    gone.peer.close()
    for _ in range(3):
        gone.direct.multicast(Multicast(b"x", (gone.sink, other.sink)))
    assert await other.read(3) == b"xxx"
    async with asyncio.timeout(10):
        while not gone.transport.is_closing():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


@on_both_loops
async def test_an_error_of_a_sink_that_is_not_about_its_connection_is_not_hidden(make: Make) -> None:
    owner = await make()

    class Wrong:
        def is_closing(self) -> bool:
            return False

        def write(self, data: bytes) -> None:
            raise RuntimeError("a mistake of our own")

    with pytest.raises(RuntimeError, match="of our own"):
        owner.direct.multicast(Multicast(b"x", (owner.sink, Wrong().write)))
