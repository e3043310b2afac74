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
from collections.abc import Callable
from functools import partial
from typing import Any

from migratory_broker.core.edge.events import Detach
from migratory_broker.core.logic.events import Attach, NextPage
from migratory_broker.runtime import descriptors
from migratory_broker.runtime.channel import Channel
from migratory_broker.runtime.crossing import Beat, FromIo, Held, Report, decoder, encode
from migratory_broker.runtime.heldback import HeldBack
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


def start(ends: tuple[int, int]) -> subprocess.Popen[bytes]:
    """A process with the other ends: of its channel, and of the way that sockets come. Raises OSError."""
    command = [sys.executable, "-m", "migratory_broker.runtime.ioprocess", str(os.getpid()), *map(str, ends)]
    return subprocess.Popen(command, stdin=subprocess.DEVNULL, pass_fds=ends)


class IoLife:
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
        take: Callable[[IoLife, list[Any], int], None],
        lost: Callable[[IoLife], None],
        ask: Callable[[IoLife, Any], None],
        pump: Pump,
        start: Callable[[tuple[int, int]], subprocess.Popen[bytes]],
    ) -> None:
        self.process = process
        self.number = number
        self.started = self.heard = now
        self.alive = True
        self.room = 0  # connections that it can hold; it has said Hello when there is one
        self.begun = False  # it was told which edge it is
        self.given = 0  # sockets
        self.held = Held(0, 0, 0)
        self.report: Report | None = None
        self.killed = ""  # why it was killed
        self._said = now
        self._owes: tuple[int, float] | None = None  # batch that it must have worked off, until when
        self.channel = Channel(
            _FROM_IO, lambda messages, size: take(self, messages, size), lambda: self._lost(lost), self.go_on
        )
        self._ask: Callable[[Any], None] = partial(ask, self)
        self._requests = HeldBack(pump.call, self._full, self._ask)
        self._pages = HeldBack(pump.call_late, self._full, self._ask)
        mine, other = socket.socketpair()
        self._way, other_way = descriptors.pair()
        try:
            with other, other_way:
                self.popen = start((other.fileno(), other_way.fileno()))
        except BaseException:
            mine.close()
            self._way.close()
            raise
        self._connecting = asyncio.get_running_loop().create_task(self._connect(mine))

    async def _connect(self, mine: socket.socket) -> None:
        mine.setblocking(False)
        await asyncio.get_running_loop().create_unix_connection(lambda: self.channel, sock=mine)

    def _lost(self, lost: Callable[[IoLife], None]) -> None:
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
        given = descriptors.give(self._way, accepted)
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
