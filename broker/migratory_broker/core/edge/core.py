"""The edge core's entry point: `Edge`, the client connections of a broker (or of one of its I/O processes) as one
function from events to effects.

`Edge(config, number).step(event, now) -> effects`. `now` is seconds of a monotonic clock. Apply the effects in their
order, before the next step. `Paused` may be stepped a few effects late: the transport buffers the bytes written until
then. `step` does not raise, whatever a client sends.

Read on in lifecycle.py (the state machine of a connection), inbox.py (input in order), subscriptions.py, splice.py
(from replay to live publications), delivery.py (fan-out and queues), publishing.py, identity.py, rates.py and
admission.py. state.py has the data of each connection and topic.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migratory_protocol.errors import CloseCode
from migratory_protocol.messages import Drain, Servers

from migratory_broker.core.edge import events
from migratory_broker.core.edge.admission import AdmissionGate, Rebalancer
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import CLIENT_LIMIT, EdgeDelivery, queued_bytes
from migratory_broker.core.edge.identity import IdentityChecks
from migratory_broker.core.edge.lifecycle import ConnectionLifecycle, log_fields
from migratory_broker.core.edge.publishing import PublishHandler
from migratory_broker.core.edge.rates import RateLimiter
from migratory_broker.core.edge.splice import Splice
from migratory_broker.core.edge.state import ClientConnection, State
from migratory_broker.core.edge.subscriptions import SubscriptionTable
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
from migratory_broker.core.security.authorizer import Authorizer

MAX_SLOW_IN_STATUS = 20
"""The largest number of slow clients that the status lists: those with the longest queues."""


class Edge:
    """One edge of a broker. `number` distinguishes it from the broker's other edges. The properties are for /metrics;
    each end of a connection is also reported as an `Observe` effect."""

    def __init__(self, config: EdgeConfig, number: int = 0, authorizer: Authorizer | None = None) -> None:
        """Create an edge, which accepts no clients before an `Admission` says so. Without an authorizer every client
        may do everything."""
        self.number = number
        self._config = config
        self._delivery = EdgeDelivery(config)
        self._splice = Splice(config, number, self._delivery)
        self._identities = IdentityChecks(config, self._delivery, authorizer)
        self._subscriptions = SubscriptionTable(config, self._delivery, self._splice, self._identities)
        self._publishing = PublishHandler(config, number, self._delivery, self._identities)
        self._gate = AdmissionGate(config)
        self._rebalancer = Rebalancer(number, self._delivery)
        self._rates = RateLimiter(config.rates, self._delivery)
        self._connections = ConnectionLifecycle(
            config,
            self._delivery,
            self._subscriptions,
            self._publishing,
            self._gate,
            self._rebalancer,
            self._identities,
            self._rates,
        )
        self._handlers: dict[type, Any] = {
            events.Opened: self._connections.opened,
            events.Received: self._connections.received,
            events.More: self._connections.more,
            events.Lost: self._connections.lost,
            events.Later: self._handle_timer,
            events.Paused: self._paused,
            events.Resumed: self._resumed,
            Tick: self._tick,
            events.Credentials: self._set_credentials,
            events.RateLimits: self._set_rates,
            Fanout: self._splice.fanout,
            Gap: self._splice.handle_gap,
            Attached: self._attached,
            Page: self._splice.handle_page,
            PublishAnswers: self._answer_publisher,
            Admission: self._set_admission,
            ServerList: self._set_servers,
            DrainClients: self._drain,
            MoveClients: self._move,
        }

    def step(self, event: events.Event, now: float) -> list[events.Effect]:
        """Handle an event at time `now`, and return the effects to apply in their order. Before returning, begin to
        close clients whose queue is over the limit of one client, those with the longest queues while all together are
        over their limit, and HTTP requests that have their answer."""
        delivery = self._delivery
        delivery.now = now
        self._handlers[type(event)](event)
        if delivery.has_overfull:
            for connection, limit in delivery.overfull_connections():
                self._close_slow(connection, limit)
        if delivery.finished:
            self._connections.end_finished()
        return delivery.take_effects()

    # ---- flow control ----------------------------------------------------------------------------------------

    def _paused(self, event: events.Paused) -> None:
        """Give a connection a queue, as its transport is full. Nothing if it is closing, unknown, or has a queue."""
        connection = self._connections.table.get(event.connection)
        if connection is not None and connection.state <= State.OPEN and connection.queue is None:
            self._delivery.pause(connection)

    def _resumed(self, event: events.Resumed) -> None:
        """Write a connection's queue, as its transport accepts bytes again. Then continue its replays and its backlog.
        It counts as heard. Nothing if it has no queue."""
        connection = self._connections.table.get(event.connection)
        if connection is not None and connection.queue is not None:
            connection.heard_at = self._delivery.coarse_now
            self._delivery.resume(connection)
            self._splice.request_page(connection)
            self._connections.inbox.resume(connection)

    def _close_slow(self, connection: ClientConnection, limit: str) -> None:
        """Log a slow consumer and begin its closing handshake, which drops its queue, so that its queue cannot cost
        other clients memory. `limit` is the limit that was exceeded, `CLIENT_LIMIT` or `TOTAL_LIMIT`. The client can
        connect again and resume."""
        status = self._queue_status(connection)
        reason = (
            f"over {self._config.queue_per_client} bytes, the limit of one client"
            if limit == CLIENT_LIMIT
            else f"the longest queue when all together were over {self._config.queue_total} bytes"
        )
        self._delivery.emit(Note("warning", "slow_consumer", {**status, "reason": reason}, connection.number))
        text = f"slow consumer: {status['queued_bytes']} bytes waited for {status['lag_seconds']} s; {reason}"
        self._connections.close(connection, CloseCode.SLOW_CONSUMER, "slow_consumer", text)

    def _queue_status(self, connection: ClientConnection) -> dict[str, object]:
        """Return the fields that describe a paused connection's queue, for a log line and the status page: bytes,
        publications, seconds since the pause, and the number of its subscriptions."""
        queue = connection.queue
        assert queue is not None
        return {
            **log_fields(connection),
            "queued_bytes": queue.size,
            "queued_publications": queue.publications,
            "lag_seconds": round(self._delivery.now - queue.since, 3),
            "subscriptions": len(connection.topics),
        }

    def _attached(self, event: Attached) -> None:
        """Handle the logic's answer to an `Attach`, which makes room for further topics of the connection's request,
        and continue the connection's backlog."""
        connection = self._subscriptions.handle_attached(event)
        if connection is not None:
            self._connections.inbox.resume(connection)

    def _answer_publisher(self, event: PublishAnswers) -> None:
        """Send the logic's answers to the client that published. They are dropped if it is not OPEN any more."""
        connection = self._connections.table.get(event.reference)
        if connection is not None and connection.state is State.OPEN:
            self._publishing.answer(connection, event)

    def _handle_timer(self, event: events.Later) -> None:
        """Write the batches, end the conflation intervals and give the turns at rates that are due."""
        self._delivery.handle_timer(event)
        self._splice.conflator.handle_timer()
        self._rates.handle_timer()

    # ---- the broker ------------------------------------------------------------------------------------------

    def _set_admission(self, event: Admission) -> None:
        self._gate.admission = event
        self._close_all_when_due()

    def _set_servers(self, event: ServerList) -> None:
        self._gate.set_servers(event.servers)
        self._delivery.broadcast(self._connections.open_connections(), Servers(list(event.servers)))

    def _drain(self, event: DrainClients) -> None:
        self._gate.drained_at = self._delivery.now + event.period
        self._delivery.broadcast(self._connections.open_connections(), Drain(event.period, list(event.servers)))

    def _move(self, event: MoveClients) -> None:
        self._rebalancer.move(self._connections.table.values(), event)

    def _set_credentials(self, event: events.Credentials) -> None:
        self._identities.update(event)
        self._connections.close_revoked()

    def _set_rates(self, event: events.RateLimits) -> None:
        open_or_opening = [each for each in self._connections.table.values() if each.state <= State.OPEN]
        self._rates.change(event, open_or_opening)

    def _tick(self, event: Tick) -> None:
        """Handle the passing of time: the timers of connections and the expiry of their tokens, shared buckets of rates
        that are full again, the report of clients to the logic, and the end of a drain. Take the wall clock from the
        event, if it has it."""
        if event.wall:
            self._identities.wall_offset = event.wall - self._delivery.now
        self._identities.tick()
        self._rates.tick()
        self._connections.tick()
        self._rebalancer.report()
        self._close_all_when_due()

    def _close_all_when_due(self) -> None:
        """Begin to close all connections if the broker is fenced or stops, or if its drain is over. Otherwise: nothing.
        Log their number if there are any."""
        closing = self._gate.closing(self._delivery.now)
        if closing is None:
            return
        code, text, reason = closing
        connections = [connection for connection in self._connections.table.values() if connection.state <= State.OPEN]
        for connection in connections:
            self._connections.close(connection, code, reason, text)
        if connections:
            self._delivery.emit(Note("info", "clients_closed", {"reason": reason, "clients": len(connections)}))

    # ---- metrics and status ----------------------------------------------------------------------------------

    @property
    def clients(self) -> int:
        """The number of connections whose `connect` was accepted and that are not closing."""
        return self._connections.clients

    @property
    def subscriptions(self) -> int:
        """The number of subscriptions of all clients, replaying ones included."""
        return self._subscriptions.budget.count

    @property
    def topics(self) -> int:
        """The number of topics with a subscriber on this edge, live or replaying."""
        return len(self._splice.topics)

    @property
    def subscription_bytes(self) -> int:
        """Bytes of memory that count for the subscriptions of all clients, their topics, and the permissions of their
        tokens, as estimated."""
        return self._subscriptions.budget.bytes

    @property
    def input_bytes(self) -> int:
        """Bytes of memory that count for what clients sent and the edge has not handled yet, as estimated."""
        return self._connections.inbox.unprocessed.total

    @property
    def queue_bytes(self) -> int:
        """The number of bytes queued for paused connections. Bytes that several queues share count once per queue."""
        return self._delivery.queue_bytes

    @property
    def published(self) -> int:
        """The number of publications accepted from clients and passed to the logic so far. Those that the edge refused
        do not count; the logic may have refused some."""
        return self._publishing.published

    @property
    def delivered(self) -> int:
        """The number of deliveries so far: each publication times the subscribers that it was written to. Those that
        wait in queues and batches do not count yet."""
        return self._delivery.delivered

    @property
    def sent_bytes(self) -> int:
        """The number of bytes written to the transports of all connections so far. Those that wait in queues and
        batches do not count yet."""
        return self._delivery.sent_bytes

    @property
    def closed(self) -> Mapping[str, int]:
        """The number of connections that ended or began to close so far, by reason (the label of
        `migratory_closed_total`)."""
        return self._connections.closed

    def status(self) -> dict[str, object]:
        """Return the edge's part of the status page as JSON values. `slow` describes the paused clients with the
        longest queues, at most `MAX_SLOW_IN_STATUS`."""
        slowest = sorted(self._delivery.paused, key=queued_bytes, reverse=True)[:MAX_SLOW_IN_STATUS]
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
            "input_bytes": self.input_bytes,
            "subscription_bytes": self.subscription_bytes,
            "queue_bytes": self.queue_bytes,
            "published": self.published,
            "delivered": self.delivered,
            "sent_bytes": self.sent_bytes,
            "closed": dict(sorted(self.closed.items())),
            "paused": len(self._delivery.paused),
            "slow": [self._queue_status(connection) for connection in slowest],
        }
