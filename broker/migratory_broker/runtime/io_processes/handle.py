"""One life of an I/O process, as the broker's process has it: started, given clients and events, watched, ended.

It can end in any way and at any moment, and takes its own clients along, no more. A process that does not answer, that
does not take what it is sent, or that does not close its clients when it must, is killed: its clients then see at once
that their connections are gone, and resume.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

from migratory_broker.core.edge.events import Detach
from migratory_broker.core.logic.events import Attach, NextPage
from migratory_broker.runtime.io_processes.channel import Channel, send_socket, socket_pair
from migratory_broker.runtime.io_processes.messages import Beat, EdgeReport, FromIo, SocketCounts, decoder, encode
from migratory_broker.runtime.pump import Pump

BEAT = 0.4
"""Seconds after which something is said to a process to which nothing else had to be."""

LATE = 1.0
"""A process that was silent for so long gets no new clients, until it is heard again."""

SILENCE = 5.0
"""A process that was silent for so long hangs, and is killed."""

START = 120.0
"""The same while it starts: libraries are imported, on a busy machine slowly."""

CLOSING = 1.0
"""Seconds in which it must have closed its clients when the broker is cut off or ends."""

UNDER_WAY = 128
"""Sockets that were given and not taken: more are not given."""

_FROM_IO = decoder(FromIo)
_BEAT = encode(Beat())


def start_process(ends: tuple[int, int]) -> subprocess.Popen[bytes]:
    """A process with the other ends: of its channel, and of the way that sockets come. Raises OSError."""
    command = [sys.executable, "-m", "migratory_broker.runtime.io_processes.process", str(os.getpid()), *map(str, ends)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends)


class IoProcessHandle:
    """:param process: its place among the broker's I/O processes; `number` is its edge's, never used again.

    `take(life, messages, size)` gets what it says, `lost(life)` is called once, when it is gone. `ask(life, request)`
    is called in a turn of `pump` for each request whose answer needs room in the channel, when there is. Raises what
    `start` does.
    """

    def __init__(
        self,
        process: int,
        number: int,
        now: float,
        take: Callable[[IoProcessHandle, list[Any], int], None],
        lost: Callable[[IoProcessHandle], None],
        ask: Callable[[IoProcessHandle, Any], None],
        pump: Pump,
        start_process: Callable[[tuple[int, int]], subprocess.Popen[bytes]],
    ) -> None:
        self.process = process
        self.number = number
        self.started = self.heard = now
        self.alive = True
        self.room = 0  # connections that it can hold; it has said Hello when there is one
        self.begun = False  # it was told which edge it is
        self.given = 0  # sockets
        self.held = SocketCounts(0, 0, 0)
        self.report: EdgeReport | None = None
        self.killed = ""  # why it was killed
        self._said = now
        self._owes: tuple[int, float] | None = None  # batch that it must have worked off, until when
        self.channel = Channel(
            _FROM_IO, lambda messages, size: take(self, messages, size), lambda: self._lost(lost), self.go_on
        )
        self._ask: Callable[[Any], None] = partial(ask, self)
        self._requests = DeferredRequests(pump.call, self._full, self._ask)
        self._pages = DeferredRequests(pump.call_late, self._full, self._ask)
        mine, other = socket.socketpair()
        self._way, other_way = socket_pair()
        try:
            with other, other_way:
                self.popen = start_process((other.fileno(), other_way.fileno()))
        except BaseException:
            mine.close()
            self._way.close()
            raise
        self._connecting = asyncio.get_running_loop().create_task(self._connect(mine))

    async def _connect(self, mine: socket.socket) -> None:
        mine.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=mine)

    def _lost(self, lost: Callable[[IoProcessHandle], None]) -> None:
        if self.alive:
            self.alive = False
            self._requests.clear()
            self._pages.clear()
            self._way.close()
            lost(self)

    # ---- requests ------------------------------------------------------------------------------------------------

    def request(self, message: Attach | NextPage | Detach) -> None:
        """In a turn of the pump. Pages of replays wait in a line of their own, for what a turn has for them; the others
        are answered in their place, and all only while the channel has room."""
        if isinstance(message, NextPage):
            self._pages.put(message)
        elif self._requests or self._full():
            self._requests.put(message)
        else:
            self._ask(message)

    def go_on(self) -> None:
        """The channel may have room again."""
        self._requests.go_on()
        self._pages.go_on()

    def _full(self) -> bool:
        return self.channel.full

    @property
    def held_back(self) -> int:
        """Requests that wait."""
        return len(self._requests) + len(self._pages)

    # ---- clients -------------------------------------------------------------------------------------------------

    @property
    def load(self) -> int:
        """Connections that it holds, and that are on their way to it."""
        return self.held.load + self.given - self.held.given

    def takes(self, now: float) -> bool:
        """Whether it can be given one more socket now."""
        return (
            self.begun
            and self.alive
            and not self.killed
            and now - self.heard < LATE
            and self.given - self.held.given < UNDER_WAY
        )

    def give(self, accepted: socket.socket) -> bool:
        given = send_socket(self._way, accepted)
        self.given += given
        return given

    # ---- for those who ask ---------------------------------------------------------------------------------------

    def status(self, now: float) -> dict[str, Any]:
        """For /v1/status."""
        return {
            "process": self.process,
            "pid": self.popen.pid,
            "state": "up" if self.report is not None else "starting",
            "uptime_seconds": round(now - self.started, 3),
            "silent_seconds": round(now - self.heard, 3),
            "connections": self.held.connections,
            "sockets_under_way": self.given - self.held.given,
            "waiting_bytes": self.channel.waiting,
            "requests_held_back": self.held_back,
            "edge": self.report.edge if self.report is not None else None,
        }

    # ---- what it must do -----------------------------------------------------------------------------------------

    def must_close(self, now: float) -> None:
        """What was put into the channel last closes all its clients."""
        self._owes = (self.channel.batches + 1, now + CLOSING)

    def tick(self, now: float, stalled: bool, most: int) -> None:
        """`stalled`: it was this process that stood still. `most`: bytes that may wait for it."""
        if stalled:
            self.heard = now
        if self._owes is not None:
            batch, until = self._owes
            if self.report is not None and self.report.batches >= batch:
                self._owes = None
            elif now > until and not stalled:
                self.kill("it does not close its clients")
        if self.channel.waiting > most:
            self.kill(f"{self.channel.waiting} bytes wait for it")
        if now - self.heard > (SILENCE if self.begun else START):
            self.kill(f"it is silent for {now - self.heard:.1f} s")
        if self.begun and now - self._said >= BEAT:
            self._said = now
            self.channel.put(_BEAT)
            self.channel.flush()

    def kill(self, why: str) -> None:
        """Its sockets close when it is dead, and then it is `lost`."""
        if not self.killed and self.alive:
            self.killed = why
            self.popen.send_signal(signal.SIGKILL)

    def close(self) -> None:
        """The end of its channel is the sign to end."""
        self.channel.close()


class DeferredRequests:
    """`call(action, argument)` brings an action into a turn of the pump, `full()` tells whether there is no room now,
    `answer(request)` is called from within such a turn. Each request is an action of its own, behind what came
    meanwhile: so one process holds up neither what is live nor the others."""

    def __init__(
        self,
        call: Callable[[Callable[[Any], None], Any], None],
        full: Callable[[], bool],
        answer: Callable[[Any], None],
    ) -> None:
        self._call = call
        self._full = full
        self._answer = answer
        self._waiting: deque[Any] = deque()
        self._called = False

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, request: Any) -> None:
        self._waiting.append(request)
        self.go_on()

    def go_on(self) -> None:
        """There may be room again."""
        if self._waiting and not self._called and not self._full():
            self._called = True
            self._call(self._next, None)

    def clear(self) -> None:
        self._waiting.clear()

    def _next(self, _: None) -> None:
        self._called = False
        if self._waiting and not self._full():
            self._answer(self._waiting.popleft())
        self.go_on()
