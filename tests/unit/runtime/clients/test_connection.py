"""Client connections: how they carry out the edge's effects at the transport, and throttled reading."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from migratory_broker.core.edge.events import Hold, Opened, Received, Send
from migratory_broker.core.logic.events import Note
from migratory_broker.runtime.clients.connection import MAX_UNREAD_BYTES, ClientConnections
from migratory_broker.runtime.clients.service import ClientService
from migratory_broker.runtime.config import parse


class Pump:
    """A stand-in for the pump that records the edge's events and queues actions until `turn`."""

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.waiting: list[Any] = []  # of what was read

    def to_edge(self, event: Any) -> None:
        self.events.append(event)

    step_edge = to_edge

    def call(self, action: Any, argument: Any) -> None:
        self.waiting.append(lambda: action(argument))

    call_for_client = defer = call

    def turn(self, most: int = 1000) -> None:
        """Run up to `most` queued actions."""
        for _ in range(min(most, len(self.waiting))):
            self.waiting.pop(0)()


class Transport:
    """A stand-in for a transport that records calls and written bytes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written: list[bytes] = []
        self.closing = False

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Return the peer's address for "peername", the only information that a connection may ask for."""
        assert name == "peername"
        return ("10.0.0.1", 1)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: Any) -> None: ...

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize("early", [b"", b"data"])
def test_a_connection_is_adopted_and_held(early: bytes) -> None:
    pump, transport = Pump(), Transport()
    connections = ClientConnections(pump, lambda: 1.0)  # type: ignore[arg-type]
    connections.adopt(transport, "json", False, 0.5, early)  # type: ignore[arg-type]
    pump.turn()
    opened = Opened(1, "json", "10.0.0.1:1", False, 0.5)
    assert pump.events == [opened, *([Received(1, early)] if early else [])]
    for number, on in ((1, True), (2, True), (1, False), (2, False)):
        connections.hold(Hold(number, on))
    assert transport.calls == ["pause", "resume"]
    assert [connections.remote(number) for number in (1, 2)] == ["10.0.0.1:1", ""]


async def test_log_lines_about_a_client_have_its_address() -> None:
    config = {"cluster": "c", "brokers": ["a"], "zookeeper": {"servers": "127.0.0.1:1"}, "delivery": {"minCopies": 1}}
    serving = ClientService(parse(json.dumps(config).encode()), "a", Pump(), lambda: 1.0)  # type: ignore[arg-type]
    serving.connections.adopt(Transport(), "json", False, 0.5, b"")  # type: ignore[arg-type]
    assert serving.with_address(Note("info", "dead_client", {"client": "me"}, 1)).fields == {
        "client": "me",
        "remote": "10.0.0.1:1",
    }
    assert serving.with_address(Note("info", "ready")).fields == {}
    assert serving.edge_status() is None
    serving.edge = Mock(status=lambda: {"slow": [{"client": "me", "connection": 1}]})
    assert serving.edge_status() == {"slow": [{"client": "me", "connection": 1, "remote": "10.0.0.1:1"}]}


def test_a_reply_dropped_by_a_closing_transport_ends_multicasts_too() -> None:
    """When a closing transport drops a reply, the connection gets no later multicasts either, until it ends: the
    client would take the live publications after the dropped page as complete."""
    pump, transport = Pump(), Transport()
    connections = ClientConnections(pump, lambda: 1.0)  # type: ignore[arg-type]
    connections.adopt(transport, "json", False, 0.5, b"")  # type: ignore[arg-type]
    connection = connections._open[1]
    connections.send(Send(1, b"reply"))
    assert (transport.written, connections.multicaster._behind) == ([b"reply"], {})
    transport.closing = True
    connections.send(Send(1, b"page"))
    assert (transport.written, list(connections.multicaster._behind)) == ([b"reply"], [connection])
    connection.resume_writing()
    connection.connection_lost(None)
    pump.turn()
    assert connections.multicaster._behind == {}


class TestThrottling:
    """Throttling: while too much is unhandled, each client is read at most once more, and no byte is lost."""

    def adopted(self, count: int) -> tuple[Pump, ClientConnections, list[Transport]]:
        pump = Pump()
        connections = ClientConnections(pump, lambda: 1.0)  # type: ignore[arg-type]
        transports = [Transport() for _ in range(count)]
        for transport in transports:
            connections.adopt(transport, "json", False, 0.5, b"")  # type: ignore[arg-type]
        pump.turn()
        pump.events.clear()
        return pump, connections, transports

    def test_a_throttled_client_is_read_once_until_there_is_room(self) -> None:
        pump, connections, transports = self.adopted(3)
        connections.throttle("channel", True)
        connections.throttle("channel", True)
        for number in (1, 2):
            connections._open[number].data_received(b"x")
        pump.turn()
        assert pump.events == [Received(1, b"x"), Received(2, b"x")]
        assert [transport.calls for transport in transports] == [["pause"], ["pause"], []]
        connections.throttle("channel", False)
        connections.throttle("channel", False)
        assert [transport.calls for transport in transports] == [["pause", "resume"], ["pause", "resume"], []]
        connections._open[3].data_received(b"x")
        assert transports[2].calls == []

    def test_holds_of_the_edge_and_throttling_are_independent(self) -> None:
        _, connections, transports = self.adopted(2)
        connections.throttle("channel", True)
        connections._open[1].data_received(b"x")
        connections.hold(Hold(1, True))
        connections.throttle("channel", False)
        assert transports[0].calls == ["pause", "pause"]
        connections.hold(Hold(1, False))
        assert transports[0].calls[-1] == "resume"
        connections.hold(Hold(2, True))
        connections.throttle("channel", True)
        connections._open[2].data_received(b"what was read before")
        connections.hold(Hold(2, False))
        assert "resume" not in transports[1].calls
        connections.throttle("channel", False)
        assert transports[1].calls[-1] == "resume"

    def test_throttling_skips_closed_and_closing_connections(self) -> None:
        _, connections, transports = self.adopted(2)
        connections.throttle("channel", True)
        for number in (1, 2):
            connections._open[number].data_received(b"x")
        connections.lost(1)
        transports[1].closing = True
        connections.throttle("channel", False)
        assert [transport.calls for transport in transports] == [["pause"], ["pause"]]

    def test_a_flood_stays_in_the_sockets_until_half_is_handled(self) -> None:
        """Once the unhandled bytes exceed their limit, each client that sends more is paused, and all continue when
        half is handled; otherwise the loop would read from every client in each turn, and handle the reads of a few."""
        pump, connections, transports = self.adopted(3)
        part = bytes(MAX_UNREAD_BYTES // 4)
        for number in (1, 2, 1, 2):
            connections._open[number].data_received(part)
        assert [transport.calls for transport in transports] == [[], [], []]
        connections._open[1].data_received(part)
        connections._open[3].data_received(b"x")
        assert [transport.calls for transport in transports] == [["pause"], [], ["pause"]]
        pump.turn(3)
        assert [transport.calls for transport in transports] == [["pause"], [], ["pause"]]
        pump.turn(1)
        assert [transport.calls[-1:] for transport in transports] == [["resume"], [], ["resume"]]
        pump.turn()
        assert [len(event.data) for event in pump.events] == [len(part)] * 5 + [1]
        connections._open[1].data_received(part)
        assert transports[0].calls == ["pause", "resume"]

    def test_throttling_lasts_until_every_reason_ended(self) -> None:
        pump, connections, (transport,) = self.adopted(1)
        connections._open[1].data_received(bytes(MAX_UNREAD_BYTES + 1))
        connections.throttle("channel", True)
        pump.turn()
        assert transport.calls == ["pause"]
        connections.throttle("channel", False)
        assert transport.calls == ["pause", "resume"]
