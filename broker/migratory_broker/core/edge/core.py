"""The edge: what belongs to connections, as one function from events to effects.

`Edge(config, number).step(event, now) -> effects`. `now` is a monotonic clock that never goes back. Carry the effects
out in their order, before the next step. `Paused` may come late by some effects: the transport holds those. Nothing
that a client can send makes `step` raise.

Here to read on: connections.py (state machine), inbox.py (what clients send, in its order), subscriptions.py, splice.py
(replay into live), delivery.py (fan-out and queues), publishing.py, admission.py, moving.py (balance); what is held
per connection is in connection.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import Drain, Servers

from migratory_broker.core.edge.admission import AdmissionGate, AllowAllClients, ClientAuthorizer, Rebalancer
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Connection, State
from migratory_broker.core.edge.connections import Connections, describe
from migratory_broker.core.edge.delivery import CLIENT_LIMIT, Delivery, waiting_bytes
from migratory_broker.core.edge.events import Effect, Event, Later, Lost, More, Opened, Paused, Received, Resumed
from migratory_broker.core.edge.publishing import Publishing
from migratory_broker.core.edge.splice import Splice
from migratory_broker.core.edge.subscriptions import Subscriptions
from migratory_broker.core.logic.events import (
    Admission,
    Attached,
    DrainClients,
    Fanout,
    Gap,
    MoveClients,
    Note,
    Page,
    PublishAnswers,
    ServerList,
    Tick,
)

SLOWEST = 20  # slow clients that the status names


class Edge:
    """One edge of a broker. The properties are for /metrics; closed connections are observed as they happen, too."""

    def __init__(self, config: EdgeConfig, number: int = 0, authorizer: ClientAuthorizer | None = None) -> None:
        authorizer = authorizer if authorizer is not None else AllowAllClients()
        self.number = number
        self._config = config
        self._delivery = Delivery(config)
        self._splice = Splice(config, number, self._delivery)
        self._subscriptions = Subscriptions(config, self._delivery, self._splice, authorizer)
        self._publishing = Publishing(config, number, self._delivery, authorizer)
        self._gate = AdmissionGate(config)
        self._rebalancer = Rebalancer(number, self._delivery)
        self._connections = Connections(
            config, self._delivery, self._subscriptions, self._publishing, self._gate, self._rebalancer, authorizer
        )
        self._handlers: dict[type, Any] = {
            Opened: self._connections.opened,
            Received: self._connections.received,
            More: self._connections.more,
            Lost: self._connections.lost,
            Later: self._time_has_come,
            Paused: self._paused,
            Resumed: self._resumed,
            Tick: self._tick,
            Fanout: self._splice.fanout,
            Gap: self._splice.handle_gap,
            Attached: self._attached,
            Page: self._splice.handle_page,
            PublishAnswers: self._answer,
            Admission: self._admission,
            ServerList: self._server_list,
            DrainClients: self._drain,
            MoveClients: self._move,
        }

    def step(self, event: Event, now: float) -> list[Effect]:
        delivery = self._delivery
        delivery.now = now
        self._handlers[type(event)](event)
        if delivery.over:
            for connection, limit in delivery.overfull():
                self._slow(connection, limit)
        return delivery.take()

    # ---- flow ------------------------------------------------------------------------------------------------

    def _paused(self, event: Paused) -> None:
        connection = self._connections.table.get(event.connection)
        if connection is not None and connection.state <= State.OPEN and connection.queue is None:
            self._delivery.pause(connection)

    def _resumed(self, event: Resumed) -> None:
        connection = self._connections.table.get(event.connection)
        if connection is not None and connection.queue is not None:
            connection.heard = self._delivery.moment
            self._delivery.resume(connection)
            self._splice.request_page(connection)
            self._connections.inbox.resume(connection)

    def _slow(self, connection: Connection, limit: str) -> None:
        """A client that doesn't keep up ends before it costs the others anything; it can resume."""
        waiting = self._waiting(connection)
        reason = (
            f"over {self._config.queue_per_client} bytes, the limit of one client"
            if limit == CLIENT_LIMIT
            else f"the longest queue when all together were over {self._config.queue_total} bytes"
        )
        self._delivery.aside(Note("warning", "slow_consumer", {**waiting, "reason": reason}, connection.number))
        text = f"slow consumer: {waiting['queued_bytes']} bytes waited for {waiting['lag_seconds']} s; {reason}"
        self._connections.close(connection, CloseCode.SLOW_CONSUMER, "slow_consumer", text)

    def _waiting(self, connection: Connection) -> dict[str, object]:
        queue = connection.queue
        assert queue is not None
        return {
            **describe(connection),
            "queued_bytes": queue.size,
            "queued_publications": queue.publications,
            "lag_seconds": round(self._delivery.now - queue.since, 3),
            "subscriptions": len(connection.topics),
        }

    def _attached(self, event: Attached) -> None:
        connection = self._subscriptions.handle_attached(event)
        if connection is not None:
            self._connections.inbox.resume(connection)

    def _answer(self, event: PublishAnswers) -> None:
        connection = self._connections.table.get(event.reference)
        if connection is not None and connection.state is State.OPEN:
            self._publishing.answer(connection, event)

    def _time_has_come(self, event: Later) -> None:
        self._delivery.time_has_come(event)
        self._splice.conflation.handle_timer()

    # ---- the broker ------------------------------------------------------------------------------------------

    def _admission(self, event: Admission) -> None:
        self._gate.admission = event
        self._end()

    def _server_list(self, event: ServerList) -> None:
        self._gate.set_servers(event.servers)
        self._delivery.broadcast(self._connections.open(), Servers(list(event.servers)))

    def _drain(self, event: DrainClients) -> None:
        self._gate.drained_at = self._delivery.now + event.period
        self._delivery.broadcast(self._connections.open(), Drain(event.period, list(event.servers)))

    def _move(self, event: MoveClients) -> None:
        self._rebalancer.move(self._connections.table.values(), event)

    def _tick(self, event: Tick) -> None:
        self._connections.tick()
        self._rebalancer.report()
        self._end()

    def _end(self) -> None:
        """Of all clients, when they must go."""
        ending = self._gate.closing(self._delivery.now)
        if ending is None:
            return
        code, text, reason = ending
        closing = [connection for connection in self._connections.table.values() if connection.state <= State.OPEN]
        for connection in closing:
            self._connections.close(connection, code, reason, text)
        if closing:
            self._delivery.aside(Note("info", "clients_closed", {"reason": reason, "clients": len(closing)}))

    # ---- figures ---------------------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        return self._connections.clients

    @property
    def subscriptions(self) -> int:
        return self._subscriptions.count

    @property
    def topics(self) -> int:
        """Topics that somebody here is subscribed to."""
        return len(self._splice.topics)

    @property
    def queue_bytes(self) -> int:
        """What waits for paused connections; bytes that several wait for count for each."""
        return self._delivery.queue_bytes

    @property
    def published(self) -> int:
        """Publications that were taken from clients."""
        return self._publishing.published

    @property
    def delivered(self) -> int:
        """Publications, times the subscribers they were written to."""
        return self._delivery.delivered

    @property
    def sent_bytes(self) -> int:
        return self._delivery.sent_bytes

    @property
    def closed(self) -> Mapping[str, int]:
        """Connections that ended, by reason."""
        return self._connections.closed

    def status(self) -> dict[str, object]:
        """For /v1/status, as plain JSON values. `slow` are the clients that most waits for, longest queue first."""
        slowest = sorted(self._delivery.paused, key=waiting_bytes, reverse=True)[:SLOWEST]
        admission = self._gate.admission
        return {
            "edge": self.number,
            "admission": "open" if admission.open else admission.reason or "closed",
            "draining": self._gate.drained_at is not None,
            "connections": len(self._connections.table),
            "clients": self.clients,
            "subscriptions": self.subscriptions,
            "topics": self.topics,
            "replays": self._splice.pending_requests,
            "queue_bytes": self.queue_bytes,
            "published": self.published,
            "delivered": self.delivered,
            "sent_bytes": self.sent_bytes,
            "closed": dict(sorted(self.closed.items())),
            "paused": len(self._delivery.paused),
            "slow": [self._waiting(connection) for connection in slowest],
        }
