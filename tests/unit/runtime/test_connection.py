"""What the edge says about a client's socket, at the transport."""

from __future__ import annotations

from typing import Any

import pytest
from migratory_broker.core.edge.events import Hold, Opened, Received
from migratory_broker.runtime.connection import Connections


class Pump:
    """Keeps what the edge would be told."""

    def __init__(self) -> None:
        self.events: list[Any] = []

    def to_edge(self, event: Any) -> None:
        self.events.append(event)


class Transport:
    """Notes what is asked of it."""

    def __init__(self) -> None:
        self.calls: list[str] = []

    def get_extra_info(self, name: str) -> None:
        """There is no socket below: fan-outs are written here as well."""

    def write(self, data: bytes) -> None: ...

    def set_protocol(self, protocol: Any) -> None: ...

    def set_write_buffer_limits(self, high: int, low: int) -> None: ...

    def pause_reading(self) -> None:
        self.calls.append("pause")

    def resume_reading(self) -> None:
        self.calls.append("resume")


@pytest.mark.parametrize("early", [b"", b"data"])
def test_a_connection_is_adopted_and_held(early: bytes) -> None:
    pump, transport = Pump(), Transport()
    connections = Connections(pump, lambda: 1.0)  # type: ignore[arg-type]
    connections.adopt(transport, "json", "10.0.0.1:1", False, 0.5, early)  # type: ignore[arg-type]
    opened = Opened(1, transport.write, "json", "10.0.0.1:1", False, 0.5)
    assert pump.events == [opened, *([Received(1, early)] if early else [])]
    for number, on in ((1, True), (2, True), (1, False), (2, False)):
        connections.hold(Hold(number, on))
    assert transport.calls == ["pause", "resume"]
