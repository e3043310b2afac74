"""A TCP proxy that hands on what it gets after a while: delay on one kind of link, where the kernel can't do it."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections import deque
from dataclasses import dataclass

CHUNK = 65_536
MOST_HELD = 4 * 2**20
"""Bytes under way in one direction; then it reads no more, as a full link does."""


@dataclass
class Passed:
    """What went through it. `least` is the shortest time in seconds that anything was held."""

    connections: int = 0
    bytes: int = 0
    least: float = float("inf")


class DelayProxy:
    """`async with DelayProxy(host, to, delay, jitter, random) as proxy`: `proxy.port` takes connections.

    :param delay: seconds in each direction; `jitter` is the most that chance adds. Order is kept.
    """

    def __init__(self, host: str, to: tuple[str, int], delay: float, jitter: float, source: random.Random) -> None:
        self._host, self._to = host, to
        self._delay, self._jitter = delay, jitter
        self._random = source
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.passed = Passed()

    async def __aenter__(self) -> DelayProxy:
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._server is not None:
            self._server.close()
        for task in self._open:
            task.cancel()
        if self._open:
            await asyncio.wait(self._open, timeout=5.0)

    @property
    def port(self) -> int:
        if self._server is None:
            raise RuntimeError("the proxy does not listen")
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Until either side ends; then both are ended, as a router that breaks does it."""
        self.passed.connections += 1
        writers = [writer]
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._to)
            writers.append(far_writer)
            ways = [
                asyncio.create_task(self._carry(reader, far_writer)),
                asyncio.create_task(self._carry(far_reader, writer)),
            ]
            try:
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for way in ways:
                    way.cancel()
                await asyncio.gather(*ways, return_exceptions=True)
        except OSError:
            pass  # nobody is there: the one that dialled sees its connection end
        finally:
            for end in writers:
                end.transport.abort()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        held: deque[tuple[float, float, bytes]] = deque()
        size = 0
        more, room = asyncio.Event(), asyncio.Event()

        async def hand_on() -> None:
            nonlocal size
            while True:
                while not held:
                    more.clear()
                    await more.wait()
                came, due, data = held[0]
                await asyncio.sleep(max(0.0, due - loop.time()))
                held.popleft()
                if not data:
                    return
                size -= len(data)
                room.set()
                self.passed.least = min(self.passed.least, loop.time() - came)
                self.passed.bytes += len(data)
                writer.write(data)
                await writer.drain()

        handing = asyncio.create_task(hand_on())
        due = 0.0
        try:
            with contextlib.suppress(OSError):
                while True:
                    data = await reader.read(CHUNK)
                    now = loop.time()
                    due = max(due, now + self._delay + self._random.uniform(0, self._jitter))
                    held.append((now, due, data))
                    size += len(data)
                    more.set()
                    if not data:
                        break
                    while size > MOST_HELD:
                        room.clear()
                        await room.wait()
                await handing
        finally:
            handing.cancel()
            await asyncio.gather(handing, return_exceptions=True)
