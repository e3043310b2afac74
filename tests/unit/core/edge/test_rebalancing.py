"""Clients that an edge asks to go elsewhere for balance, and what it tells the logic of them."""

from __future__ import annotations

from migratory_broker.core.edge import EdgeConfig
from migratory_broker.core.logic.events import Admission, MoveClients
from migratory_protocol.messages import Connect, Drain, Server
from migratory_testing.edges import Bench, Reader

THERE = Server("ws://there")
ASK = Drain(5.0, [THERE], closes=False)


def ready() -> Bench:
    bench = Bench(EdgeConfig())
    bench.step(Admission(True))
    return bench


def client(bench: Bench, moves: int) -> Reader:
    reader = bench.open()
    reader.say(Connect(client="c", moves=moves))
    return reader


def told(bench: Bench) -> tuple[int, ...]:
    """What the logic is told at the next tick."""
    bench.counted = ()
    bench.wait(0.1)
    return bench.counted


def asked(bench: Bench, count: int, *readers: Reader) -> list[int]:
    """The places of those that were asked to move."""
    bench.step(MoveClients(0, count, 5.0, THERE))
    return [place for place, reader in enumerate(readers) if reader.take(Drain) == [ASK]]


def test_the_logic_is_told_who_is_here_by_moves_when_that_changes() -> None:
    bench = ready()
    assert told(bench) == ()  # nobody: what it knows already
    readers = [client(bench, moves) for moves in (0, 2, 0, 1, 9)]
    bench.open()  # has not said `connect`
    assert told(bench) == (2, 1, 1, 1, 0)
    readers[0].lose()
    readers[1].say(Connect(client="c", token="fresh", moves=5))  # a fresh token, later
    assert told(bench) == (1, 1, 1, 1, 0)
    assert told(bench) == ()


def test_those_that_moved_least_are_asked_and_of_those_the_oldest() -> None:
    bench = ready()
    readers = [client(bench, moves) for moves in (1, 0, 3, 0, 0)]
    assert asked(bench, 2, *readers) == [1, 3]
    assert asked(bench, 2, *readers) == [0, 4]
    assert told(bench) == (0, 0, 0, 1, 4)
    assert asked(bench, 2, *readers) == [0, 2]  # whoever was asked comes last
    assert asked(bench, 9, *readers) == [0, 1, 2, 3, 4]
    assert bench.edge.clients == 5
    readers[0].lose()
    assert told(bench) == (0, 0, 0, 0, 4)


def test_who_has_not_said_connect_or_is_leaving_is_not_asked() -> None:
    bench = ready()
    waiting = bench.open()
    here = client(bench, 0)
    assert asked(bench, 5, waiting, here) == [1]
    bench.step(Admission(False, "fenced"))
    bench.step(MoveClients(0, 5, 5.0, THERE))
    assert here.take(Drain) == []
