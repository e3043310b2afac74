"""Every kind of broker, and the simulation, carries out every effect of the cores and passes on every event to them.

The lists are the unions of effects and events of both cores. The type checker verifies that a core returns no other
effects.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, get_args

import pytest
from migratory_broker.core.edge import Edge, EdgeConfig
from migratory_broker.core.edge import events as edge_events
from migratory_broker.core.logic import events as logic_events
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.logic import Logic
from migratory_broker.runtime.config import Identity, parse
from migratory_broker.runtime.io_processes import pool as manyprocesses
from migratory_broker.runtime.io_processes import process as ioprocess
from migratory_broker.runtime.io_processes.channel import socket_pair
from migratory_broker.runtime.io_processes.messages import Begin, FromIo, ToIo
from migratory_broker.runtime.io_processes.process import IoProcess
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.process import Broker
from migratory_protocol.peer import LinkMessage
from migratory_simulation.process import Process

LOGIC_EFFECTS = set(get_args(logic_events.Effect))
EDGE_EFFECTS = set(get_args(edge_events.Effect))
OWN = {
    edge_events.Multicast,
    edge_events.Send,
    edge_events.Close,
    edge_events.Hold,
    edge_events.More,
    edge_events.Later,
}
"""Effects of an edge that its own process carries out; the others go to the logic, metrics and logs."""


def config(processes: int) -> bytes:
    return json.dumps(
        {"cluster": "c", "brokers": ["a"], "zookeeper": {"servers": "127.0.0.1:1"}, "delivery": {"minCopies": 1},
         "ioProcesses": processes}
    ).encode()  # fmt: skip


def test_the_cores_handle_every_event() -> None:
    logic = Logic(LogicConfig("c", "a", ("a",), min_copies=1))
    assert set(logic._events) == set(get_args(logic_events.Event))
    assert set(logic._messages) | set(logic._group_messages) == set(get_args(LinkMessage))
    assert set(Edge(EdgeConfig())._handlers) == set(get_args(edge_events.Event))


@pytest.mark.parametrize("processes", [0, 2])
async def test_a_broker_handles_every_effect(processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def not_started(ends: tuple[int, int]) -> Any:
        raise OSError("a test starts none")

    defaults = (not_started, lambda _: None, lambda: b"{}")
    monkeypatch.setattr(manyprocesses.IoProcessPool.__init__, "__defaults__", defaults)
    log = Log(level="error", common={})
    broker = Broker(parse(config(processes)), Identity("a"), log)
    sockets = broker._bind()
    try:
        broker._build(*sockets)
        assert set(broker._pump._logic_handlers) >= LOGIC_EFFECTS
        if processes == 0:
            assert set(broker._pump._edge_handlers) >= EDGE_EFFECTS
    finally:
        for listener in broker._listeners:
            listener.close()
        for sock in sockets:
            sock.close()
        log.close()


async def test_an_io_process_handles_or_forwards_every_effect(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ioprocess, "freeze_heap", lambda: None)
    here, there = socket_pair()
    with here, there:
        process = IoProcess(there)
        process._start_serving(Begin(1, 0, 1, "a", config(1), "error", 4.0))
        assert process._log is not None
        assert set(process._pump._edge_handlers) >= EDGE_EFFECTS
        tells = (process._pump.request, process._note)
        notified = {kind for kind, handler in process._pump._edge_handlers.items() if handler in tells}
        assert notified == EDGE_EFFECTS - OWN
        assert notified <= set(get_args(FromIo))
        assert set(get_args(logic_events.EdgeEffect)) <= set(get_args(ToIo))
        asyncio.get_running_loop().remove_reader(there)
        process._end(0)
        process._log.close()


def test_the_simulation_handles_every_effect() -> None:
    """In the simulation, an effect without a handler raises TypeError."""
    for unknown in (edge_events.Hold(1, True), logic_events.Stop("")):
        with pytest.raises(TypeError, match="no handler for"):
            Process.observe(None, unknown)  # type: ignore[arg-type]
