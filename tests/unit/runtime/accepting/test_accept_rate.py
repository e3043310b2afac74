"""The rate of accepting: an attempt takes a token only if it accepts a connection."""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from migratory_broker.runtime.accepting import listener
from migratory_broker.runtime.accepting.limits import AcceptRate
from migratory_broker.runtime.accepting.listener import Acceptor, bind, listen
from migratory_broker.runtime.logs import Log
from migratory_testing.waiting import until

FAILURES = (errno.EAGAIN, errno.EINTR, errno.ECONNABORTED, errno.EMFILE, errno.ENFILE)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0, "clients") as bound:
        yield listen(bound, "clients")


async def test_connections_that_arrive_one_a_turn_take_one_token_each(listening: socket.socket, log: Any) -> None:
    started: list[socket.socket] = []
    rate = AcceptRate(8, lambda: 100.0)  # a burst of two, and no time passes
    acceptor = Acceptor(listening, lambda accepted, _: started.append(accepted), log, rate=rate)
    clients = [await asyncio.open_connection(*listening.getsockname())]
    await until(lambda: len(started) == 1)
    clients.append(await asyncio.open_connection(*listening.getsockname()))
    await until(lambda: len(started) == 2)
    clients.append(await asyncio.open_connection(*listening.getsockname()))
    await asyncio.sleep(0.05)
    assert len(started) == 2, "the third is beyond the burst"
    acceptor.close()
    for accepted in started:
        accepted.close()
    for _, writer in clients:
        writer.close()


class Counted:
    """A rate without a limit that counts the tokens taken."""

    taken = 0

    def try_acquire(self) -> bool:
        self.taken += 1
        return True

    def refund(self) -> None:
        self.taken -= 1

    def delay(self) -> float:
        raise AssertionError("it refuses nothing")


class Scripted:
    """A stand-in for a listening socket: `accept` makes a connection for each 0 of `script`, fails with its other error
    numbers, and finds that none waits after its end."""

    def __init__(self, listening: socket.socket) -> None:
        self._listening = listening
        self.script: list[int] = []
        self.calls = self.connections = 0

    def accept(self) -> tuple[socket.socket, tuple[str, int]]:
        self.calls += 1
        number = self.script.pop(0) if self.script else errno.EAGAIN
        if number:
            raise OSError(number, "scripted")  # as BlockingIOError and so on, by the number
        self.connections += 1
        mine, other = socket.socketpair()
        other.close()
        return mine, ("127.0.0.1", 1)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listening, name)


@settings(max_examples=50, deadline=None)
@given(st.lists(st.lists(st.sampled_from((0, 0, *FAILURES)), max_size=12), max_size=12), st.booleans())
def test_tokens_taken_equal_connections_accepted(turns: list[list[int]], serves: bool) -> None:
    async def run() -> None:
        with bind("127.0.0.1", 0, "clients") as bound:
            scripted: Any = Scripted(bound)
            pace = Counted()
            acceptor = Acceptor(
                scripted, lambda accepted, _: accepted.close(), Log(level="error"), rate=pace, serve_on_spare=serves
            )
            for turn in turns:
                scripted.script = list(turn)
                acceptor._accept()
                if acceptor._timer is not None:
                    acceptor._timer.cancel()
                    acceptor._resume()
                assert pace.taken == scripted.connections
            acceptor.close()

    asyncio.run(run())


async def test_attempts_without_descriptors_take_no_token_and_do_not_spin(
    listening: socket.socket, log: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[socket.socket] = []
    scripted: Any = Scripted(listening)
    scripted.script = [errno.EMFILE] * 12  # two in an attempt: the second with the spare descriptor
    rate = AcceptRate(8, lambda: 100.0)
    monkeypatch.setattr(listener, "RETRY_DELAY", 30.0)
    acceptor = Acceptor(scripted, lambda accepted, _: started.append(accepted), log, rate=rate)
    _, writer = await asyncio.open_connection(*listening.getsockname())  # the listener is readable from now on
    await until(lambda: scripted.calls)
    for _ in range(20):
        await asyncio.sleep(0)
    assert scripted.calls == 2, "it waits for RETRY_DELAY"
    monkeypatch.setattr(listener, "RETRY_DELAY", 0.001)
    assert acceptor._timer is not None
    acceptor._timer.cancel()
    scripted.script += [0, 0]
    acceptor._resume()
    await until(lambda: len(started) == 2)
    assert rate.try_acquire() is False
    acceptor.close()
    for accepted in started:
        accepted.close()
    writer.close()
