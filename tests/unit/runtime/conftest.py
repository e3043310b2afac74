"""Shared fixtures of the runtime's tests: a recording log, cores that record events, idle connections."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import Any

import pytest
import uvloop
from migratory_testing.ioprocesses import Site


class KeptLog:
    """A stand-in for `logs.Log` that stores the lines in a list."""

    def __init__(self) -> None:
        self.lines: list[dict[str, Any]] = []

    def __call__(self, level: str, event: str, **fields: Any) -> None:
        self.lines.append({"level": level, "event": event, **fields})

    def events(self) -> list[str]:
        return [line["event"] for line in self.lines]


class FakeCore:
    """A stand-in for a core that records events. It answers an event with the effects that `answers` returns for the
    event's class, or with none."""

    def __init__(self, answers: dict[type, Callable[[Any], list[Any]]] | None = None) -> None:
        self.events: list[Any] = []
        self.answers = answers or {}

    def step(self, event: Any, now: float) -> list[Any]:
        self.events.append(event)
        answer = self.answers.get(type(event))
        return answer(event) if answer else []

    def of(self, *classes: type) -> list[Any]:
        return [event for event in self.events if isinstance(event, classes)]


def pytest_asyncio_loop_factories() -> dict[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Run asynchronous tests on uvloop, the loop of brokers."""
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
def log() -> KeptLog:
    return KeptLog()


@pytest.fixture
def core() -> Callable[..., FakeCore]:
    return FakeCore


@pytest.fixture
async def idle() -> AsyncIterator[Callable[..., Any]]:
    """Return `idle(address, count)`, which opens idle connections and returns their readers. The connections are
    closed at the end of the test."""
    writers: list[asyncio.StreamWriter] = []

    async def connect(address: tuple[str, int], count: int) -> list[asyncio.StreamReader]:
        readers = []
        for _ in range(count):
            reader, writer = await asyncio.open_connection(*address)
            readers.append(reader)
            writers.append(writer)
        return readers

    yield connect
    for writer in writers:
        writer.close()
    for writer in writers:
        with suppress(OSError):  # it may have been reset
            await writer.wait_closed()


@pytest.fixture
async def site(core: Any, log: Any) -> AsyncIterator[Any]:
    """Return `site(processes, answers)`, which makes the broker's side of I/O processes with a stand-in for the
    logic. The sites are shut down at the end of the test, which fails if one has had errors."""
    made: list[Site] = []

    def make(processes: int = 2, answers: Any = None, **settings: Any) -> Site:
        made.append(Site(core(answers), log, processes, settings))
        return made[-1]

    yield make
    for item in made:
        assert item.errors == []
        item.clients.stop_listening()
        await item.clients.close()
        for io in item.started:
            for sock in (io.sock, io.way, *io.sockets):
                with suppress(OSError):
                    sock.close()
