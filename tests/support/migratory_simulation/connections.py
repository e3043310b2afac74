"""Client connections: bytes both ways, in order and delayed, lost with their end. A stalled reader pauses its edge."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Literal

from migratory_broker.core.edge.events import Lost, Opened, Paused, Received, Resumed

if TYPE_CHECKING:
    from migratory_simulation.clients import Client, ClientLink
    from migratory_simulation.process import EdgeProcess
    from migratory_simulation.world import World


class Connection:
    """A connection of a client to an edge, which is open until one side closes it. Nothing arrives at a side that has
    seen the end. Creating it tells the edge."""

    def __init__(self, world: World, client: Client, link: ClientLink, edge: EdgeProcess) -> None:
        self.world = world
        self.number = world.next_connection()
        self.client = client
        self.link = link
        self.edge = edge
        self.delay = world.options.client_delay
        self.client_open = True
        self.edge_open = True
        self.stalled = False
        self._paused = False
        self._held: deque[bytes] = deque()
        self._held_bytes = 0
        # Buffers of a silent direction until the network delivers again, the end of the connection included.
        self._silent_in: deque[tuple[Callable[..., None], tuple[object, ...]]] | None = None
        self._silent_out: deque[tuple[Callable[..., None], tuple[object, ...]]] | None = None
        self._last_in = self._last_out = world.scheduler.now
        edge.connections[self.number] = self
        wire: Literal["json", "msgpack"] = "msgpack" if link.codec.binary else "json"
        opened = Opened(self.number, wire, f"client:{self.number}")
        edge.process.run(edge.step, opened)

    # ---- from the client

    def to_edge(self, data: bytes) -> None:
        """Send bytes from the client to the edge."""
        if self.client_open and self.edge_open:
            self._towards_edge(self._at_edge, data)

    def close_by_client(self) -> None:
        """Close the connection at the client. The edge gets the bytes that were sent before, and then notices the
        end."""
        if self.client_open:
            self.client_open = False
            self._towards_edge(self._lost)

    def _towards_edge(self, action: Callable[..., None], *arguments: object) -> None:
        """Let an action happen at the edge's process, after the connection's delay and after earlier ones. While the
        direction is silent, keep it."""
        if self._silent_in is not None:
            self._silent_in.append((action, arguments))
            return
        self._last_in = self._arrival(self._last_in)
        self.world.scheduler.at(self._last_in, self.edge.process.run, action, *arguments)

    def silence(self, to_broker: bool, to_client: bool) -> None:
        """Buffer everything that is sent in these directions, without notice to either side, until `speak`."""
        if to_broker and self._silent_in is None:
            self._silent_in = deque()
        if to_client and self._silent_out is None:
            self._silent_out = deque()

    def speak(self) -> None:
        """Deliver in both directions again, what was kept first."""
        waiting, self._silent_in = self._silent_in, None
        for action, arguments in waiting or ():
            self._towards_edge(action, *arguments)
        waiting, self._silent_out = self._silent_out, None
        for action, arguments in waiting or ():
            self._towards_client(action, *arguments)

    def stall(self) -> None:
        """Let the client stop reading until `flow`."""
        self.stalled = True

    def flow(self) -> None:
        """Let the client read again: deliver the buffered bytes, and resume the edge if it was paused."""
        if not self.stalled:
            return
        self.stalled = False
        held, self._held, self._held_bytes = self._held, deque(), 0
        for data in held:
            self._send(data)
        if self._paused and self.edge_open:
            self._paused = False
            self.edge.process.run(self.edge.step, Resumed(self.number))

    # ---- from the edge

    def to_client(self, data: bytes) -> None:
        """Send bytes from the edge to the client; pause the edge when a stalled client's buffer is full."""
        if not self.client_open:
            return
        if self.stalled:
            self._held.append(bytes(data))
            self._held_bytes += len(data)
            if self._held_bytes > self.world.options.high_water and not self._paused:
                self._paused = True
                self.world.scheduler.after(0.0, self.edge.process.run, self._pause)
            return
        self._send(bytes(data))

    def closed_by_broker(self, abort: bool) -> None:
        """Close the connection at the broker. With `abort` the end may overtake bytes in flight, as a reset does."""
        if self.edge_open:
            self.edge_open = False
            if self._silent_out is not None:
                self._silent_out.append((self._end_at_client, ()))
                return
            self._last_out = self._arrival(self._last_out)
            when = self._last_out
            if abort and self.world.random.random() < 0.5:
                when = self.world.scheduler.now  # a reset overtakes bytes in flight
            self.world.scheduler.at(when, self._end_at_client)

    def cut(self) -> None:
        """Break the connection: both sides notice, each at its own moment."""
        now = self.world.scheduler.now
        self.world.scheduler.at(now + self.world.random.uniform(0.0, 0.3), self._end_at_client)
        self.world.scheduler.at(now + self.world.random.uniform(0.0, 0.3), self.edge.process.run, self._lost)

    # ---- inside

    def _arrival(self, last: float) -> float:
        """Return the moment at which something sent now arrives, not before `last`."""
        return max(last, self.world.scheduler.now + self.world.random.uniform(0.3, 1.7) * self.delay)

    def _send(self, data: bytes) -> None:
        self._towards_client(self._at_client, data)

    def _towards_client(self, action: Callable[..., None], *arguments: object) -> None:
        """Let an action happen at the client, after the connection's delay and after earlier ones. While the direction
        is silent, keep it."""
        if self._silent_out is not None:
            self._silent_out.append((action, arguments))
            return
        self._last_out = self._arrival(self._last_out)
        self.world.scheduler.at(self._last_out, action, *arguments)

    def _at_client(self, data: bytes) -> None:
        if self.client_open:
            self.client.connection_data(self, data)

    def _end_at_client(self) -> None:
        if self.client_open:
            self.client_open = False
            self.client.connection_closed(self)

    def _at_edge(self, data: bytes) -> None:
        if self.edge_open:
            self.edge.step(Received(self.number, data))

    def _pause(self) -> None:
        if self.edge_open and self._paused:
            self.world.coverage["paused"] += 1
            self.edge.step(Paused(self.number))

    def _lost(self) -> None:
        if self.edge_open:
            self.edge_open = False
            self.edge.connections.pop(self.number, None)
            self.edge.step(Lost(self.number))
