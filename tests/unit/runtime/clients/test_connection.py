"""Client connections: how they carry out the edge's effects at the transport, and throttled reading."""

from __future__ import annotations

import json
from typing import Any
from unittest.mock import Mock

import pytest
from migratory_broker.core.edge.events import Hold, Lost, Opened, RateLimits, Rates, Received, Send
from migratory_broker.core.logic.events import Note
from migratory_broker.runtime.clients.connection import THROTTLED_BYTES, ClientConnections
from migratory_broker.runtime.clients.service import ClientService
from migratory_broker.runtime.clients.unhandled import MAX_CLIENT_BYTES
from migratory_broker.runtime.config import BrokerConfig, parse
from migratory_broker.runtime.pump import DEFERRED_SECONDS, Pump
from migratory_testing.pumps import RecordedPump


class Transport:
    """A stand-in for a transport that records calls and written bytes."""

    def __init__(self) -> None:
        self.calls: list[str] = []
        self.written: list[bytes] = []
        self.closing = False
        self.host = "10.0.0.1"

    def is_closing(self) -> bool:
        return self.closing

    def get_extra_info(self, name: str) -> tuple[str, int]:
        """Return the peer's address for "peername", the only information that a connection may ask for."""
        assert name == "peername"
        return (self.host, 1)

    def write(self, data: bytes) -> None:
        self.written.append(data)

    def get_write_buffer_size(self) -> int:
        return 0

    def set_protocol(self, protocol: Any) -> None: ...

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def abort(self) -> None:
        self.calls.append("abort")

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize("early", [b"", b"data"])
def test_a_connection_is_adopted_and_held(early: bytes) -> None:
    pump, transport = RecordedPump(), Transport()
    connections = ClientConnections(pump.pump, lambda: 1.0)
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
    serving = ClientService(parse(json.dumps(config).encode()), "a", RecordedPump().pump, lambda: 1.0)
    serving.connections.adopt(Transport(), "json", False, 0.5, b"")  # type: ignore[arg-type]
    assert serving.with_address(Note("info", "dead_client", {"client": "me"}, 1)).fields == {
        "client": "me",
        "remote": "10.0.0.1:1",
    }
    assert serving.with_address(Note("info", "ready")).fields == {}
    assert serving.edge_status() is None
    serving.edge = Mock(status=lambda: {"input_bytes": 1, "slow": [{"client": "me", "connection": 1}]})
    assert serving.edge_status() == {
        "input_bytes": 1,
        "slow": [{"client": "me", "connection": 1, "remote": "10.0.0.1:1"}],
    }


def test_a_reply_dropped_by_a_closing_transport_ends_multicasts_too() -> None:
    """When a closing transport drops a reply, the connection gets no later multicasts either, until it ends: the
    client would take the live publications after the dropped page as complete."""
    pump, transport = RecordedPump(), Transport()
    connections = ClientConnections(pump.pump, lambda: 1.0)
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


FLOOD = bytes(THROTTLED_BYTES + 1)


class TestThrottling:
    """Throttling, while the channel is full: little is read of each client, and no byte is lost."""

    def adopted(self, count: int) -> tuple[RecordedPump, ClientConnections, list[Transport]]:
        pump = RecordedPump()
        connections = ClientConnections(pump.pump, lambda: 1.0)
        transports = [Transport() for _ in range(count)]
        for transport in transports:
            connections.adopt(transport, "json", False, 0.5, b"")  # type: ignore[arg-type]
        pump.turn()
        pump.events.clear()
        return pump, connections, transports

    def test_who_sends_much_is_not_read_until_there_is_room_and_others_are(self) -> None:
        """Regression: each client was read once and then not again, also those that send little."""
        pump, connections, transports = self.adopted(4)
        connections.throttle(on=True)
        connections.throttle(on=True)
        for number in (1, 2):
            connections._open[number].data_received(FLOOD)
        for _ in range(10):
            connections._open[3].data_received(b"x")
        pump.turn()
        assert pump.events == [Received(1, FLOOD), Received(2, FLOOD), *[Received(3, b"x")] * 10]
        assert [transport.calls for transport in transports] == [["pause"], ["pause"], [], []]
        connections.throttle(on=False)
        connections.throttle(on=False)
        assert [transport.calls for transport in transports] == [["pause", "resume"], ["pause", "resume"], [], []]
        connections._open[4].data_received(FLOOD)
        assert transports[3].calls == []

    def test_holds_of_the_edge_and_throttling_are_independent(self) -> None:
        _, connections, transports = self.adopted(2)
        connections.throttle(on=True)
        connections._open[1].data_received(FLOOD)
        connections.hold(Hold(1, True))
        connections.throttle(on=False)
        assert transports[0].calls == ["pause", "pause"]
        connections.hold(Hold(1, False))
        assert transports[0].calls[-1] == "resume"
        connections.hold(Hold(2, True))
        connections.throttle(on=True)
        connections._open[2].data_received(FLOOD)
        connections.hold(Hold(2, False))
        assert "resume" not in transports[1].calls
        connections.throttle(on=False)
        assert transports[1].calls[-1] == "resume"

    def test_throttling_skips_closed_and_closing_connections(self) -> None:
        _, connections, transports = self.adopted(2)
        connections.throttle(on=True)
        for number in (1, 2):
            connections._open[number].data_received(FLOOD)
        connections.lost(1)
        transports[1].closing = True
        connections.throttle(on=False)
        assert [transport.calls for transport in transports] == [["pause"], ["pause"]]

    def test_throttling_lasts_until_every_reason_ended(self) -> None:
        pump, connections, (transport,) = self.adopted(1)
        connections.throttle(on=True)
        connections._open[1].data_received(bytes(MAX_CLIENT_BYTES))
        assert transport.calls == ["pause", "pause"]
        connections.throttle(on=False)
        assert transport.calls == ["pause", "pause"]
        pump.turn()
        assert transport.calls == ["pause", "pause", "resume"]


class TestUnhandledInput:
    """Unhandled input: a client that holds much of it is not read, or closed, and nobody else."""

    def test_flood_of_new_connections_does_not_pause_an_established_client(self) -> None:
        """Hundreds of new connections, each with a megabyte that takes long to handle, do not stop an established
        client from being read in each turn. Regression: above 16 MiB of all clients each was read once more, and
        again only when half was handled, seconds later."""
        spent = [0.0]
        calls: list[Any] = []
        handled: list[Received] = []

        def step(event: Any, _: float) -> list[Any]:
            if type(event) is Received:
                spent[0] += DEFERRED_SECONDS / 2 if event.connection > 1 else 0.0
                handled.append(event)
            return []

        core = Mock(step=step)
        pump = Pump(core, calls.append, lambda: spent[0], Mock())
        pump.set_handlers({})
        pump.attach(core)
        connections = ClientConnections(pump, lambda: spent[0])
        transports = [Transport() for _ in range(500)]
        connections.adopt(transports[0], "json", False, 0.0, b"connect")  # type: ignore[arg-type]
        calls.pop(0)()
        for transport in transports[1:]:
            connections.adopt(transport, "json", False, 0.0, b"")  # type: ignore[arg-type]
        for number in range(2, 501):
            for _ in range(4):  # reads of one turn of the loop
                if "pause" not in transports[number - 1].calls:
                    connections._open[number].data_received(bytes(262_144))
        assert connections.unhandled.total > 100 * 2**20
        handled.clear()
        begin = spent[0]
        for number in range(20):
            connections._open[1].data_received(b"%d" % number)
            assert transports[0].calls == []
            calls.pop(0)()
            assert handled[0] == Received(1, b"%d" % number)
            handled.clear()
        assert spent[0] - begin <= 20 * 2 * DEFERRED_SECONDS

    def adopted(self, hosts: list[str], limit: int = 2**40) -> tuple[RecordedPump, ClientConnections, list[Transport]]:
        pump = RecordedPump()
        connections = ClientConnections(pump.pump, lambda: 1.0, limit)
        transports = [Transport() for _ in hosts]
        for transport, host in zip(transports, hosts, strict=True):
            transport.host = host
            connections.adopt(transport, "json", False, 0.5, b"")  # type: ignore[arg-type]
        pump.turn()
        pump.events.clear()
        return pump, connections, transports

    def test_client_with_much_unhandled_is_read_again_when_it_is_handled(self) -> None:
        pump, connections, (flood, other) = self.adopted(["10.0.0.1"] * 2)
        part = bytes(MAX_CLIENT_BYTES // 2)
        for number in (1, 1, 1, 2):
            connections._open[number].data_received(part)
        assert (flood.calls, other.calls) == (["pause"], [])
        pump.turn(2)
        assert flood.calls == ["pause"]
        pump.turn()
        assert flood.calls == ["pause", "resume"]
        assert pump.events == [*[Received(1, part)] * 3, Received(2, part)]
        assert connections.unhandled.total == 0

    def test_hold_of_the_edge_outlasts_unhandled_input(self) -> None:
        pump, connections, (transport,) = self.adopted(["10.0.0.1"])
        connections._open[1].data_received(bytes(MAX_CLIENT_BYTES))
        connections.hold(Hold(1, True))
        connections.hold(Hold(1, False))
        assert transport.calls == ["pause", "pause"]
        connections.hold(Hold(1, True))
        pump.turn()
        assert "resume" not in transport.calls
        connections.hold(Hold(1, False))
        assert transport.calls[-1] == "resume"

    def test_largest_of_the_address_with_the_most_are_aborted_at_the_limit(self) -> None:
        """Four connections of one address hold more than one with a longer message from another address."""
        pump, connections, transports = self.adopted(["10.0.0.2", *["10.0.0.1"] * 4], limit=200_000)
        connections._open[1].data_received(bytes(60_000))
        for number, size in ((2, 30_000), (3, 40_000), (4, 50_000), (5, 20_000)):
            connections._open[number].data_received(bytes(size))
        assert [transport.calls for transport in transports] == [[], [], [], ["abort"], []]
        assert (connections.evicted, connections.unhandled.total <= 175_000) == (1, True)
        connections.lost(4)
        pump.turn()
        assert [(event.connection, len(event.data)) for event in pump.events[:-1]] == [
            (1, 60_000), (2, 30_000), (3, 40_000), (5, 20_000),
        ]  # fmt: skip
        assert pump.events[-1] == Lost(4)

    def test_input_of_a_connection_that_is_gone_goes_at_the_limit(self) -> None:
        _, connections, transports = self.adopted(["10.0.0.1", "10.0.0.2"], limit=100_000)
        connections._open[1].data_received(bytes(60_000))
        connections.lost(1)
        connections._open[2].data_received(bytes(50_000))
        assert (transports[0].calls, transports[1].calls, connections.evicted) == ([], [], 1)
        assert connections.unhandled.total < 51_000

    @pytest.mark.parametrize("reset", [False, True])
    def test_reset_before_the_first_bytes_are_handled_drops_them(self, reset: bool) -> None:
        """An end without a reset, or after an answer, drops nothing: the client may have published."""
        pump = RecordedPump()
        connections = ClientConnections(pump.pump, lambda: 1.0)
        for _ in range(2):
            connections.adopt(Transport(), "json", False, 0.5, b"connect")  # type: ignore[arg-type]
        pump.turn(2)
        connections._open[1].data_received(b"publish")
        for number in (1, 2):
            connections._open[number].connection_lost(ConnectionResetError() if reset else None)
        pump.turn()
        reads = [event.data for event in pump.events if type(event) is Received and event.connection == 2]
        assert reads == ([] if reset else [b"connect"])
        assert [event.data for event in pump.events if type(event) is Received and event.connection == 1] == [
            b"connect", b"publish",
        ]  # fmt: skip
        assert [event for event in pump.events if type(event) is Lost] == [Lost(1), Lost(2)]
        assert connections.unhandled.total == 0


async def test_rates_of_addresses_reach_open_and_new_connections() -> None:
    """Connections count as their address, or as none from an exempt network or while there are no such rates."""
    settings: dict[str, Any] = {
        "cluster": "c", "brokers": ["a"], "zookeeper": {"servers": "127.0.0.1:1"}, "delivery": {"minCopies": 1},
    }  # fmt: skip

    def config(**addresses: Any) -> BrokerConfig:
        return parse(json.dumps({**settings, "limits": {"addresses": addresses}}).encode())

    pump = RecordedPump()
    service = ClientService(config(), "a", pump.pump, lambda: 1.0)
    service.set_rate_limits(config(publicationsPerSecond=5))  # before there is an edge
    service.set_rate_limits(config())
    service.edge = Mock()

    def adopt(host: str) -> Opened:
        transport = Transport()
        transport.host = host
        service.connections.adopt(transport, "json", False, 0.5, b"")  # type: ignore[arg-type]
        (event,) = pump.turn()
        assert isinstance(event, Opened)
        return event

    for host in ("10.0.0.1", "2001:db8::7", "10.9.0.1"):
        assert adopt(host).address == ""
    service.set_rate_limits(config(publicationsPerSecond=5, exempt=["10.9.0.0/16"]))
    assert pump.turn() == [RateLimits(address=Rates(publications=5), addresses={1: "10.0.0.1", 2: "2001:db8::/64"})]
    assert [adopt(host).address for host in ("10.0.0.2", "10.9.0.2")] == ["10.0.0.2", ""]
    service.set_rate_limits(config())
    assert pump.turn() == [RateLimits()]
    assert adopt("10.0.0.3").address == ""
