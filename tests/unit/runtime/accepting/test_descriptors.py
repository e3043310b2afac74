"""Limits of descriptors: the capacity follows them, and a spare descriptor serves when no other is free. Also the limit
of what the kernel holds for a connection."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import resource
import socket
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from migratory_broker.runtime.accepting.limits import NEEDED_DESCRIPTORS, check_descriptors, connection_capacity
from migratory_broker.runtime.accepting.listener import MAX_UNSENT_BYTES, Acceptor, bind, listen
from migratory_broker.runtime.errors import DescriptorError
from migratory_testing.waiting import until


@pytest.mark.parametrize(
    ("limit", "capacity"), [(40, 0), (128, 0), (144, 16), (1024, 896), (resource.RLIM_INFINITY, 2**31 - 128)]
)
def test_capacity_leaves_the_reserve_and_follows_the_limit(
    monkeypatch: pytest.MonkeyPatch, limit: int, capacity: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    assert connection_capacity() == capacity
    if capacity < 16:
        with pytest.raises(DescriptorError, match=rf"may open {limit} files .* {NEEDED_DESCRIPTORS} or more"):
            check_descriptors()
    else:
        check_descriptors()


class Exhausted:
    """A stand-in for a listening socket that accepts only after a descriptor was released."""

    def __init__(self, listening: socket.socket, is_free: Callable[[], bool]) -> None:
        self._listening = listening
        self._is_free = is_free

    def accept(self) -> Any:
        if not self._is_free():
            raise OSError(errno.EMFILE, "Too many open files")
        return self._listening.accept()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._listening, name)


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with bind("127.0.0.1", 0, "clients") as bound:
        yield listen(bound, "clients")


def test_kernel_takes_little_for_a_client_that_does_not_read(listening: socket.socket) -> None:
    with socket.socket() as stalled:
        stalled.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        stalled.connect(listening.getsockname())
        accepted, _ = listening.accept()
        with accepted:
            accepted.setblocking(False)
            taken = 0
            with contextlib.suppress(BlockingIOError):
                while taken < 2**20:
                    taken += accepted.send(bytes(16_384))
    assert taken <= MAX_UNSENT_BYTES + 65_536  # and a segment


@pytest.mark.parametrize("serves", [False, True], ids=["refuses", "serves"])
async def test_without_descriptors_the_spare_one_answers(listening: socket.socket, log: Any, serves: bool) -> None:
    started: list[socket.socket] = []
    acceptors: list[Acceptor] = []
    exhausted: Any = Exhausted(listening, lambda: acceptors[0]._spare is None)
    acceptors.append(Acceptor(exhausted, lambda accepted, _: started.append(accepted), log, serve_on_spare=serves))
    address = listening.getsockname()
    reader, writer = await asyncio.open_connection(*address)
    if serves:
        await until(lambda: len(started) == 1)
        assert acceptors[0].refused == 0
        started[0].close()
    else:
        assert (await asyncio.wait_for(reader.read(), 5)).startswith(b"HTTP/1.1 503")
        assert acceptors[0].refused == 1
        assert started == []
        assert log.events() == ["accept_failed"]
        other, second = await asyncio.open_connection(*address)
        assert (await asyncio.wait_for(other.read(), 5)).startswith(b"HTTP/1.1 503")  # the spare was restored
        assert log.events() == ["accept_failed"]  # once in ten seconds
        second.close()
    writer.close()
    acceptors[0].close()
