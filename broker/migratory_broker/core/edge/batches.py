"""Batching: what is fanned out waits for a moment in its connection, and leaves with what else comes until then.

A delivery is one system call, and hardly anything else. Several publications in one write cost little more than one, so
a client that gets many a second costs a fraction. Nothing is lost or reordered by it: whatever else is written to the
connection takes what waits along, before itself; a close frame as well. A batch leaves when its time is up
(`EdgeConfig.batch_delay` after the first publication in it) or when it is large enough (`batch_bytes`).

Clients that follow the same topics have the same batch, mostly: it is put together once and is one `Multicast`.
"""

from __future__ import annotations

from collections.abc import Iterable

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Batch, Connection
from migratory_broker.core.edge.events import Multicast, Sink

EARLY = 0.1
"""Of the delay: batches whose time is up so soon leave along, so that a clock wakes nobody for each of them."""


class Batches:
    """Of all connections of an edge. `delay` 0: there are none."""

    def __init__(self, config: EdgeConfig) -> None:
        self.delay = config.batch_delay
        self._limit = config.batch_bytes
        self._waiting: dict[Connection, None] = {}  # all wait equally long: in the order in which they leave

    @property
    def due(self) -> float | None:
        """When the next one is to leave."""
        for connection in self._waiting:
            return connection.batch.due if connection.batch is not None else None
        return None

    def add(self, connections: Iterable[Connection], data: bytes, publications: int, now: float) -> list[Connection]:
        """To what waits for each of the connections: all that a delivery costs until its batch leaves. Answers with
        those for whom enough waits to leave now."""
        size, limit = len(data), self._limit
        full = []
        for connection in connections:
            batch = connection.batch
            if batch is None:
                batch = connection.batch = Batch(now + self.delay)
                self._waiting[connection] = None
            batch.chunks.append(data)
            batch.publications += publications
            batch.size = waiting = batch.size + size
            if waiting >= limit:
                full.append(connection)
        return full

    def take(self, connection: Connection) -> Batch | None:
        """What waits for the connection, which has nothing waiting then."""
        batch = connection.batch
        if batch is not None:
            connection.batch = None
            del self._waiting[connection]
        return batch

    def leaving(self, now: float) -> list[Connection]:
        """Those whose time is up."""
        until = now + self.delay * EARLY
        found = []
        for connection in self._waiting:
            if connection.batch is not None and connection.batch.due > until:
                break
            found.append(connection)
        return found


def together(batches: Iterable[tuple[Sink, Batch]]) -> list[Multicast]:
    """One effect for all that get the same bytes: of the very same publications, for they are encoded once."""
    alike: dict[tuple[int, ...], tuple[list[bytes], list[Sink]]] = {}
    for sink, batch in batches:
        key = tuple(map(id, batch.chunks))
        found = alike.get(key)
        if found is None:
            found = alike[key] = (batch.chunks, [])
        found[1].append(sink)
    return [Multicast(b"".join(chunks), tuple(sinks)) for chunks, sinks in alike.values()]
