"""Rebalancing: the clients that an edge asks to move, and the counts that it reports to the logic."""

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
    reader.send(Connect(client="c", moves=moves))
    return reader


def reported(bench: Bench) -> tuple[int, ...]:
    """Return the counts of clients that the edge reports to the logic at its next tick."""
    bench.counted = ()
    bench.wait(0.1)
    return bench.counted


def moved(bench: Bench, count: int, *readers: Reader) -> list[int]:
    """Ask the edge to move `count` clients. Return the indexes of those of the readers that it asked to move."""
    bench.step(MoveClients(0, count, 5.0, THERE))
    return [place for place, reader in enumerate(readers) if reader.take(Drain) == [ASK]]


def test_client_counts_are_reported_when_they_change() -> None:
    bench = ready()
    assert reported(bench) == ()  # no clients, as the logic assumes
    readers = [client(bench, moves) for moves in (0, 2, 0, 1, 9)]
    bench.open()  # has not sent `connect`
    assert reported(bench) == (2, 1, 1, 1, 0)
    readers[0].lose_socket()
    readers[1].send(Connect(client="c", token="fresh", moves=5))  # renews its token
    assert reported(bench) == (1, 1, 1, 1, 0)
    assert reported(bench) == ()


def test_move_chooses_fewest_moves_then_longest_connected() -> None:
    bench = ready()
    readers = [client(bench, moves) for moves in (1, 0, 3, 0, 0)]
    assert moved(bench, 2, *readers) == [1, 3]
    assert moved(bench, 2, *readers) == [0, 4]
    assert reported(bench) == (0, 0, 0, 1, 4)
    assert moved(bench, 2, *readers) == [0, 2]  # clients that were asked before come last
    assert moved(bench, 9, *readers) == [0, 1, 2, 3, 4]
    assert bench.edge.clients == 5
    readers[0].lose_socket()
    assert reported(bench) == (0, 0, 0, 0, 4)


def test_move_skips_opening_and_closing_connections() -> None:
    bench = ready()
    opening = bench.open()
    here = client(bench, 0)
    assert moved(bench, 5, opening, here) == [1]
    bench.step(Admission(False, "fenced"))
    bench.step(MoveClients(0, 5, 5.0, THERE))
    assert here.take(Drain) == []
