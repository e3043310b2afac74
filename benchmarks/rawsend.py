"""The loop of rawsend.c in Python: `transport.write` of bytes prepared once, on uvloop. Same arguments, same lines."""

from __future__ import annotations

import asyncio
import resource
import sys
import time
from pathlib import Path

import uvloop


class Connection(asyncio.Protocol):
    def __init__(self, transports: list[asyncio.Transport], complete: asyncio.Event, wanted: int) -> None:
        self._transports = transports
        self._complete = complete
        self._wanted = wanted

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transports.append(transport)  # type: ignore[arg-type]
        if len(self._transports) == self._wanted:
            self._complete.set()


async def main(frame: bytes, connections: int, topics: int) -> None:
    loop = asyncio.get_running_loop()
    transports: list[asyncio.Transport] = []
    complete = asyncio.Event()
    server = await loop.create_server(
        lambda: Connection(transports, complete, connections), "127.0.0.1", 0, backlog=4096
    )
    print("listening", server.sockets[0].getsockname()[1], flush=True)
    await complete.wait()
    print("ready", flush=True)
    by_topic = [[transport.write for transport in transports[topic::topics]] for topic in range(topics)]
    while line := await loop.run_in_executor(None, sys.stdin.readline):
        rate, seconds = map(float, line.split())
        bursts = int(rate * topics * seconds)
        before = resource.getrusage(resource.RUSAGE_SELF)
        start = time.monotonic()
        deliveries = 0
        for burst in range(bursts):
            wait = start + burst / (rate * topics) - time.monotonic()
            if wait > 0:
                await asyncio.sleep(wait)
            elif burst % 16 == 0:
                await asyncio.sleep(0)  # behind: the loop must still look at its sockets
            writes = by_topic[burst % topics]
            for write in writes:
                write(frame)
            deliveries += len(writes)
        after = resource.getrusage(resource.RUSAGE_SELF)
        user = round((after.ru_utime - before.ru_utime) * 1e6)
        system = round((after.ru_stime - before.ru_stime) * 1e6)
        print(deliveries, user, system, 0, flush=True)


if __name__ == "__main__":
    uvloop.run(main(Path(sys.argv[1]).read_bytes(), int(sys.argv[2]), int(sys.argv[3])))
