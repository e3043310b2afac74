"""An I/O process of a broker: an edge and its clients' sockets, nothing else. `python -m` this, by the broker alone.

The broker's process tells it what the logic says and gives it accepted sockets. It ends when that process is gone (its
channel ends; should it hang itself, the kernel kills it), and when it hears nothing of it for the fencing time: others
may go on without this broker then, so its clients are sent away. Signals to the group are the broker's: SIGTERM and
SIGINT are left to it.
"""

from __future__ import annotations

import asyncio
import ctypes
import logging
import os
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

import uvloop

from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic import events
from migratory_broker.runtime.accepting.limits import AcceptBudget, descriptor_room
from migratory_broker.runtime.clients.serving import ClientService, freeze
from migratory_broker.runtime.config import parse
from migratory_broker.runtime.errors import EXIT_FAILED
from migratory_broker.runtime.io_processes.channel import Channel, receive_sockets
from migratory_broker.runtime.io_processes.messages import (
    Beat,
    Begin,
    EdgeReport,
    IoHello,
    SocketCounts,
    ToIo,
    decoder,
    encode,
)
from migratory_broker.runtime.logs import LibraryLog, Log
from migratory_broker.runtime.pump import Pump

TICK = 0.1
EVERY = 5
"""Ticks after which something is said though nothing is different."""

STALL = 1.0
"""Seconds between two ticks after which this process stood still itself: the broker is not to blame for silence."""

PR_SET_PDEATHSIG = 1


class _Logic:
    """Stands for the logic: sends it what it is told, once a turn. `full` is called when it takes no more."""

    def __init__(self, channel: Channel, full: Callable[[], None]) -> None:
        self._channel = channel
        self._full = full

    def step(self, event: Any, now: float) -> tuple[()]:
        if type(event) is events.Flush:
            self._channel.flush()
            if self._channel.full:
                self._full()
        else:
            self._channel.put(encode(event))
        return ()


class IoProcess:
    """`await run()` gives the exit code."""

    def __init__(self, way: socket.socket) -> None:
        self._loop = asyncio.get_running_loop()
        self._ended: asyncio.Future[int] = self._loop.create_future()
        self._way = way
        self._channel = Channel(decoder(ToIo), self._take, self._lost, self._flows)
        self._pump = Pump(_Logic(self._channel, self._full), self._loop.call_soon, time.monotonic, self._failed)
        self._serving: ClientService | None = None
        self._log: Log | None = None
        self._fencing = 0.0
        self._heard = self._ticked = time.monotonic()
        self._intake = AcceptBudget(time.monotonic)
        self._batches = 0
        self._given = 0
        self._ticks = 0
        self._told: EdgeReport | None = None

    async def run(self, channel: socket.socket) -> int:
        channel.setblocking(False)
        await self._loop.create_unix_connection(lambda: self._channel, sock=channel)
        self._channel.put(encode(IoHello(descriptor_room())))
        self._channel.flush()
        code = await self._ended
        self._pump.stopped = True
        if self._serving is not None:
            await self._serving.close()
        if self._log is not None:
            self._log.close()
        return code

    # ---- from the broker's process -------------------------------------------------------------------------------

    def _take(self, messages: list[Any], size: int) -> None:
        self._heard = time.monotonic()
        for message in messages:
            kind = type(message)
            if kind is Begin:
                self._begin(message)
            elif kind is not Beat:
                if kind is events.ServerList and self._serving is not None:
                    self._serving.servers = message.servers
                self._pump.to_edge(message)
        self._pump.call(self._worked_off, size)

    def _worked_off(self, size: int) -> None:
        self._batches += 1
        self._channel.done(size)

    def _begin(self, begin: Begin) -> None:
        config = parse(begin.config)
        log = self._log = Log(
            level=begin.level,
            common={"cluster": config.cluster, "broker": begin.broker, "io_process": begin.process},
        )
        logging.getLogger().addHandler(LibraryLog(log))
        self._fencing = begin.fencing
        serving = self._serving = ClientService(config, begin.broker, self._pump, time.monotonic)
        to_logic = self._pump.to_logic
        self._pump.carry_out(
            {
                **serving.handlers(),
                events.Observe: to_logic,
                events.Note: self._note,
                edge_events.Detach: to_logic,
            }
        )
        serving.begin(begin.incarnation, begin.edge)
        self._loop.add_reader(self._way, self._accepted)
        self._ticked = time.monotonic()
        self._loop.call_later(TICK, self._tick)
        freeze()

    def _note(self, effect: events.Note) -> None:
        named: Any = self._serving.named(effect) if self._serving is not None else effect
        self._pump.to_logic(named)

    def _lost(self) -> None:
        """The broker's process is gone, or wants this one to be."""
        self._end(0)

    def _accepted(self) -> None:
        assert self._serving is not None
        most = self._intake.most()
        given, taken = receive_sockets(self._way, most)
        self._intake.left(given == most)
        if not given:  # the other end is gone
            self._loop.remove_reader(self._way)
            return
        self._given += given
        for accepted in taken:
            self._serving.start(accepted)
        self._channel.put(encode(self._held()))
        self._channel.flush()

    def _full(self) -> None:
        """It does not: what clients say must wait in their sockets."""
        if self._serving is not None:
            self._serving.connections.choke("channel", True)

    def _flows(self) -> None:
        """The broker's process takes again what is sent to it."""
        if self._serving is not None:
            self._serving.connections.choke("channel", False)

    # ---- time ----------------------------------------------------------------------------------------------------

    def _tick(self) -> None:
        serving = self._serving
        if self._ended.done() or serving is None:
            return
        now = time.monotonic()
        if now - self._ticked > STALL:
            self._heard = now
        self._ticked = now
        self._loop.call_later(TICK, self._tick)
        serving.tick(now)
        self._pump.call(self._report, serving)
        if now - self._heard > self._fencing:
            self._say("error", "broker_silent", seconds=round(now - self._heard, 1))
            self._fencing = float("inf")
            self._pump.to_edge(events.Admission(False, "fenced"))
            self._leaving = self._loop.create_task(self._leave(serving))

    async def _leave(self, serving: ClientService) -> None:
        await serving.emptied()
        self._end(EXIT_FAILED)

    def _report(self, serving: ClientService) -> None:
        readings = serving.readings()
        assert readings is not None
        report = EdgeReport(self._batches, self._held(), readings, serving.counts())
        self._ticks += 1
        if report != self._told or self._ticks % EVERY == 0:
            self._told = report
            self._channel.put(encode(report))
            self._channel.flush()

    def _held(self) -> SocketCounts:
        assert self._serving is not None
        return SocketCounts(self._given, self._serving.load, len(self._serving))

    # ---- the end -------------------------------------------------------------------------------------------------

    def _failed(self, error: Exception) -> None:
        self._say("error", "broken_rule", error=repr(error), trace=traceback.format_exception(error))
        self._end(EXIT_FAILED)

    def _say(self, level: str, event: str, **fields: object) -> None:
        assert self._log is not None
        self._log(level, event, **fields)

    def _end(self, code: int) -> None:
        if not self._ended.done():
            self._ended.set_result(code)


def die_with(parent: int) -> None:
    """Whatever happens to the parent, and to this process: the kernel ends this one when the parent is dead."""
    if ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, signal.SIGKILL) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_PDEATHSIG)")
    if os.getppid() != parent:
        sys.exit(1)  # it died before the setting was in force


def main(arguments: Iterable[str]) -> int:
    parent, channel, way = map(int, arguments)
    die_with(parent)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, signal.SIG_IGN)

    async def run() -> int:
        return await IoProcess(socket.socket(fileno=way)).run(socket.socket(fileno=channel))

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(run())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
