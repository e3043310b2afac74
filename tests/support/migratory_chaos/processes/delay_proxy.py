"""A TCP proxy that forwards data after a delay, for faults of one kind of link. It stands in for netem, which the
kernel may lack."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

MAX_BUFFERED = 4 * 2**20
"""Bytes buffered in one direction. Then the proxy stops reading, as a full link does."""
_CHUNK = 65_536


@dataclass
class Passed:
    """Totals of what a proxy forwarded. `shortest_delay` is in seconds."""

    connections: int = 0
    bytes: int = 0
    shortest_delay: float = float("inf")


class DelayProxy:
    """A proxy that accepts connections at `port` while its context is open, and forwards them to the address `to` in
    order.

    :param delay: seconds in each direction. :param jitter: random seconds that are added at most.
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
            raise RuntimeError("the proxy does not listen: use it as a context manager")
        return int(self._server.sockets[0].getsockname()[1])

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._serve(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Forward one connection in both directions until either side ends, then abort both sides, as a broken
        router would. If the target does not accept, abort the connection."""
        self.passed.connections += 1
        writers = [writer]
        try:
            target_reader, target_writer = await asyncio.open_connection(*self._to)
            writers.append(target_writer)
            directions = [
                asyncio.create_task(self._forward(reader, target_writer)),
                asyncio.create_task(self._forward(target_reader, writer)),
            ]
            try:
                await asyncio.wait(directions, return_when=asyncio.FIRST_COMPLETED)
            finally:
                for direction in directions:
                    direction.cancel()
                await asyncio.gather(*directions, return_exceptions=True)
        except OSError:
            pass  # nothing listens there: the dialling side sees its connection end
        finally:
            for end in writers:
                end.transport.abort()

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        buffered = asyncio.Queue[tuple[float, float, bytes]](MAX_BUFFERED // _CHUNK)

        async def send_when_due() -> None:
            while True:
                came, due, data = await buffered.get()
                await asyncio.sleep(max(0.0, due - loop.time()))
                if not data:
                    return
                self.passed.shortest_delay = min(self.passed.shortest_delay, loop.time() - came)
                self.passed.bytes += len(data)
                writer.write(data)
                await writer.drain()

        async def read() -> None:
            due = 0.0
            data = b"first"
            while data:
                data = await reader.read(_CHUNK)
                now = loop.time()
                due = max(due, now + self._delay + self._random.uniform(0, self._jitter))
                await buffered.put((now, due, data))

        try:
            async with asyncio.TaskGroup() as tasks:
                tasks.create_task(send_when_due())
                tasks.create_task(read())
        except* OSError:
            pass  # the connection ended
