"""Delivery, the output of the edge core: writes publications to subscribers, and queues bytes for slow clients.

The fast path. `Fanout(topic, publications)` becomes one `Multicast` per wire format: encoded once, framed once, joined
into one write, to `Recipients` that only change when a subscriber joins, leaves, or changes between writable and
paused. Nothing is done or allocated per subscriber here, except for long polls.

With batching (batches.py) fan-outs wait in their topic instead. They are written as one `Multicast` for all subscribers
with the same pending chunks, or before anything else that is written to a connection.

The slow path. A connection with a full transport moves from the audiences to each topic's `individual`, and gets a
queue of the same shared bytes. A client whose queue is over its limit is closed. When all queues together are over
their limit, the clients with the longest queues are closed (`overfull_connections`). Other clients are not affected.

An HTTP stream whose event ids name several topics is always in `individual`, and never batched: an id of its own is
written before each event, and it shares the event's other bytes.

Writes, multicasts and `Close` are returned in the order in which they were emitted. Successive writes to one connection
are joined into one `Send`, except long ones, which are not copied; writes to another connection and multicasts come
after it. Other effects (`emit`) have no place among the writes: they may come before earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

from migratory_protocol.messages import BrokerMessage
from migratory_protocol.peer import ForwardedPublication, Publication

from migratory_broker.core.edge import events
from migratory_broker.core.edge.batches import Batcher
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.formats import Format, message_of
from migratory_broker.core.edge.state import ClientConnection, EdgeTopic, SendQueue
from migratory_broker.core.logic.events import Attach, ClientCounts, NextPage, Note, Observe, PublishRequest

CLIENT_LIMIT: Final = "queue of this client"
TOTAL_LIMIT: Final = "queues of all clients"

COARSE_SECONDS = 0.1
"""Seconds for which connections share one timestamp of the last time they were heard: a float of its own would cost
each 32 bytes. A tenth of the heartbeat interval, where that is less."""

LONG_WRITE = 4096
"""Bytes of the shortest write that becomes a `Send` of its own: other connections may be written the same object, and a
copy for each would take memory that no limit counts. A copy of a shorter one costs less than another effect."""


class EdgeDelivery:
    """The output of an edge: the effects that the step has emitted so far, the queues and the batches. Attributes
    without an underscore are for the other modules of the edge, /metrics and /v1/status."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._effects: list[events.Effect] = []
        self._writing: ClientConnection | None = None  # the connection that `_written` goes to
        self._written: list[bytes] = []
        self._forwarding: PublishRequest | None = None
        self._overflowing: dict[ClientConnection, str] = {}
        self._batcher = Batcher(config)
        self._timer = float("inf")  # the earliest pending `Later`
        self.finished: list[ClientConnection] = []  # those to end after this step: they have what they waited for
        self.has_overfull = False  # a limit was exceeded: call `overfull_connections`
        self.paused: dict[ClientConnection, None] = {}
        self.now = 0.0
        self._coarse_now = 0.0
        self._coarse_seconds = min(COARSE_SECONDS, config.heartbeat / 10)
        self.delivered = 0  # publications times subscribers
        self.sent_bytes = 0
        self.queue_bytes = 0

    @property
    def coarse_now(self) -> float:
        """`now`, or an earlier value of it that is less than `COARSE_SECONDS` old (a tenth of the heartbeat interval,
        where that is less). Connections share this object as the time when they were heard."""
        if not self._coarse_now <= self.now < self._coarse_now + self._coarse_seconds:
            self._coarse_now = self.now
        return self._coarse_now

    # ---- effects ---------------------------------------------------------------------------------------------

    def emit_ordered(self, effect: events.Close) -> None:
        """Emit a `Close`, after everything that was written before it."""
        self._join_writes()
        self._effects.append(effect)

    def emit(
        self,
        effect: Attach
        | NextPage
        | events.Detach
        | ClientCounts
        | events.Hold
        | events.KeysNeeded
        | events.More
        | events.Later
        | Observe
        | Note,
    ) -> None:
        """Emit an effect whose place among the writes does not matter: it may come before writes that were made
        earlier. Writes to a connection before and after it are still joined into one `Send`. A publication after it
        begins a new `PublishRequest`."""
        self._forwarding = None  # a publication after a subscription must not join the request before that
        self._effects.append(effect)

    def forward(self, edge: int, connection: ClientConnection, publication: ForwardedPublication) -> None:
        """Send a publication to the logic, with the connection's number as reference. It joins the `PublishRequest` of
        the publications that the same connection sent just before, if `emit` was not called in between."""
        request = self._forwarding
        if request is None or request.reference != connection.number:
            request = self._forwarding = PublishRequest(edge, connection.number, [])
            self._effects.append(request)
        request.publications.append(publication)

    def take_effects(self) -> list[events.Effect]:
        """Remove and return the effects that were emitted in this step, in order. The writes that are still collected
        come last."""
        if self._writing is not None:
            self._join_writes()
        self._forwarding = None
        effects, self._effects = self._effects, []
        return effects

    def _join_writes(self) -> None:
        """Emit the writes that are collected for one connection: one `Send` of successive short ones, and one of each
        long one. Collect for none from now on."""
        if self._writing is None:
            return
        number, short = self._writing.number, []
        for data in self._written:
            if len(data) < LONG_WRITE:
                short.append(data)
                continue
            if short:
                self._effects.append(events.Send(number, b"".join(short)))
                short = []
            self._effects.append(events.Send(number, data))
        if short:
            self._effects.append(events.Send(number, b"".join(short)))
        self._writing = None
        self._written = []

    # ---- to one connection -----------------------------------------------------------------------------------

    def reply(self, connection: ClientConnection, message: BrokerMessage) -> None:
        """Send a message to one connection, or queue it while the connection is paused."""
        self.write(connection, connection.format.frame(message))

    def reply_all(self, connection: ClientConnection, messages: Sequence[BrokerMessage]) -> None:
        """Send messages to one connection in as few frames as possible, or queue them while it is paused."""
        if len(messages) == 1:
            self.reply(connection, messages[0])
        else:
            self.write(connection, connection.format.frame_all(messages))

    def write(self, connection: ClientConnection, data: bytes, publications: int = 0) -> None:
        """Write bytes to a connection, after its pending batches, or queue them while it is paused. `publications` is
        the number of publications in `data`, for the count of deliveries. Bytes that would exceed the limit of a queue
        that is not empty are dropped, and the connection is marked, to be closed at the end of the step."""
        self.write_parts(connection, (data,), publications)

    def write_parts(self, connection: ClientConnection, parts: Sequence[bytes], publications: int) -> None:
        """Do the same as `write` for bytes in several parts. Long parts are not copied. Mark the connection of an HTTP
        poll or publication, to be closed at the end of the step, once it has been sent what it waited for."""
        if connection.queue is not None:
            self._enqueue(connection, connection.queue, parts, publications)
            return
        self.delivered += publications
        self._write_now(connection, parts)
        if connection.format.once and (publications or connection.format.answered):
            self.finished.append(connection)

    def write_past_queue(self, connection: ClientConnection, data: bytes) -> None:
        """Write the connection's pending batches and then `data`, past its queue if it is paused. Used for a close
        frame, after which nothing is sent."""
        self._write_now(connection, (data,))

    def _write_now(self, connection: ClientConnection, parts: Sequence[bytes]) -> None:
        """Write the connection's pending batches and then these parts, past its queue, if it has one."""
        self.flush_batches(connection)
        self._select(connection)
        self._written += parts
        self.sent_bytes += sum(map(len, parts))

    def flush_batches(self, connection: ClientConnection) -> None:
        """Write the connection's pending batches now. Without one: nothing."""
        if self._batcher.topics and (chunks := self._batcher.take(connection)):
            self._select(connection)
            self._written += [chunk.data[connection.format] for chunk in chunks]
            for chunk in chunks:
                self.delivered += chunk.publications
                self.sent_bytes += len(chunk.data[connection.format])

    def _select(self, connection: ClientConnection) -> None:
        """Make `connection` the one whose writes are collected. Emit the writes collected for another connection
        first."""
        if self._writing is not connection:
            self._join_writes()
            self._writing = connection

    # ---- to many ---------------------------------------------------------------------------------------------

    def fanout(self, topic: EdgeTopic, publications: Sequence[Publication], count: int) -> None:
        """Send publications to all subscribers of a topic that are not replaying: at once, or with batching later.
        Queue them for the paused ones. `count` is the number of publications."""
        name = topic.name
        self.multicast(topic, [message_of(name, publication) for publication in publications], count)

    def multicast(self, topic: EdgeTopic, messages: Sequence[BrokerMessage], publications: int = 0) -> None:
        """Send messages, encoded once per format, to a topic's live subscribers: at once, or with batching later. Queue
        them for the paused ones. `publications` is the number of publications among them. Mark the connections of long
        polls that get publications, to be closed at the end of the step."""
        encoded: dict[Format, bytes] = {}
        if self._writing is not None:
            self._join_writes()
        for format, audience in topic.audiences.items():
            if not audience.members:
                continue
            data = encoded[format] = format.frames(messages)
            if format.once and publications:
                self.finished += audience.members
            if self._batcher.delay:
                continue
            self._effects.append(events.Multicast(data, audience.recipients))
            subscribers = len(audience.members)
            self.delivered += publications * subscribers
            self.sent_bytes += len(data) * subscribers
        if self._batcher.delay and encoded:
            self._add_to_batch(topic, encoded, publications)
        bodies: list[bytes] = []
        for connection in topic.individual:
            format = connection.format
            if format.shared:
                queued = encoded.get(format)
                if queued is None:
                    queued = encoded[format] = format.frames(messages)
                self.write(connection, queued, publications)
                continue
            parts: list[bytes] = []
            bodies = bodies or [format.body(message) for message in messages]
            for message, body in zip(messages, bodies, strict=True):
                parts += (format.head(message), body)
            self.write_parts(connection, parts, publications)

    def write_to_all(self, connections: Iterable[ClientConnection], data: bytes) -> None:
        """Write the same bytes to each connection: with one `Multicast` to all that have neither a queue nor a pending
        batch, else one by one, as `write` does."""
        numbers: list[int] = []
        for connection in connections:
            if connection.queue is None and not self._batcher.pending(connection):
                numbers.append(connection.number)
            else:
                self.write(connection, data)
        if numbers:
            self._join_writes()
            self._effects.append(events.Multicast(data, events.Recipients(tuple(numbers))))
            self.sent_bytes += len(data) * len(numbers)

    def broadcast(self, connections: Iterable[ClientConnection], message: BrokerMessage) -> None:
        """Send the same message to each connection, encoded once per format; queue it for the paused ones."""
        encoded: dict[Format, bytes] = {}
        for connection in connections:
            data = encoded.get(connection.format)
            if data is None:
                data = encoded[connection.format] = connection.format.frame(message)
            self.write(connection, data)

    # ---- batches and timers ----------------------------------------------------------------------------------

    def _add_to_batch(self, topic: EdgeTopic, data: dict[Format, bytes], publications: int) -> None:
        """Add a fan-out, encoded in each format, to its topic's batch. Write the batches that are large enough by now,
        and set the timer for the next one."""
        for full in self._batcher.add(topic, data, publications, self.now):
            self._flush_topic(full)
        due = self._batcher.next_due
        if due is not None:
            self.set_timer(due)

    def set_timer(self, at: float) -> None:
        """Emit a `Later` for the time `at`, unless one for that time or an earlier one is pending."""
        if at < self._timer:
            self._timer = at
            self.emit(events.Later(at))

    def handle_timer(self, event: events.Later) -> None:
        """Write the batches that are due, and set the timer for the next batch, if there is one. The caller sets it for
        conflation and rates."""
        if event.at == self._timer:  # else an earlier one is pending
            self._timer = float("inf")
        for topic, number in self._batcher.due_chunks(self.now):
            self._flush_topic(topic, number)
        due = self._batcher.next_due
        if due is not None:
            self.set_timer(due)

    def _flush_topic(self, topic: EdgeTopic, number: int | None = None) -> None:
        """Write the topic's pending batch to the subscribers that lack chunk `number` (None: its latest chunk),
        together with what these subscribers have pending in other topics, and count the deliveries. No writes to a
        single connection may be collected at this moment."""
        for data, recipients, publications in self._batcher.flush(topic, number):
            self._effects.append(events.Multicast(data, recipients))
            self.delivered += publications * len(recipients.connections)
            self.sent_bytes += len(data) * len(recipients.connections)

    def join(self, topic: EdgeTopic, connection: ClientConnection) -> None:
        """Add the connection to the topic's fan-outs from now on. Its pending batches are written first."""
        self.flush_batches(connection)
        topic.add_live(connection)

    def part(self, topic: EdgeTopic, connection: ClientConnection) -> None:
        """Remove the connection from the topic's fan-outs, if it is among them. Its pending batches are written first,
        so that it has every earlier fan-out."""
        self.flush_batches(connection)
        topic.remove_live(connection)

    def drop_batches(self, connection: ClientConnection) -> None:
        """Discard what is pending in batches for a connection whose socket is gone: it is neither written nor counted
        in `delivered` and `sent_bytes`. The batches stay for other subscribers."""
        self._batcher.take(connection)

    # ---- queues ----------------------------------------------------------------------------------------------

    def pause(self, connection: ClientConnection) -> None:
        """Give the connection a queue, which begins with its pending batches, and queue what is written to it from now
        on: its transport is above its high-water mark."""
        pending = self._batcher.take(connection)
        for topic in connection.topics:
            if topic.remove_live(connection):
                topic.individual[connection] = None
        connection.queue = SendQueue(self.now)
        self.paused[connection] = None
        for chunk in pending:
            self._enqueue(connection, connection.queue, (chunk.data[connection.format],), chunk.publications)

    def resume(self, connection: ClientConnection) -> None:
        """Remove the connection's queue and write the queued bytes at once: its transport accepts bytes again. What is
        sent to it is written again from now on."""
        queue = self.drop_queue(connection)
        self._batcher.take(connection)  # its queue has the batches of its topics
        for topic in connection.topics:
            if topic.remove_live(connection):
                topic.add_live(connection)
        if queue.chunks:
            self.write_parts(connection, queue.chunks, queue.publications)

    def drop_queue(self, connection: ClientConnection) -> SendQueue:
        """Remove and return the queue of a paused connection. The connection is not paused any more, and nothing is
        written. Its topics still treat it as one that is written to one by one."""
        queue = connection.queue
        assert queue is not None
        connection.queue = None
        del self.paused[connection]
        self._overflowing.pop(connection, None)
        self.queue_bytes -= queue.size
        return queue

    def _enqueue(
        self, connection: ClientConnection, queue: SendQueue, parts: Sequence[bytes], publications: int
    ) -> None:
        """Add parts of one write to a connection's queue, or drop them and mark the connection if that would exceed its
        limit. The first write always fits. Note whether all queues together exceed their limit."""
        # The first write always fits: a limit below one large publication must not make its topic unreadable.
        size = sum(map(len, parts))
        if queue.size and queue.size + size > self._config.queue_per_client:
            self._overflowing[connection] = CLIENT_LIMIT
            self.has_overfull = True
            return
        queue.chunks += parts
        queue.size += size
        queue.publications += publications
        self.queue_bytes += size
        if self.queue_bytes > self._config.queue_total:
            self.has_overfull = True

    def overfull_connections(self) -> list[tuple[ClientConnection, str]]:
        """Return the connections to close before the step ends, each with the limit that was exceeded (`CLIENT_LIMIT`
        or `TOTAL_LIMIT`), and forget which were marked. Nothing is closed or dropped here.

        A connection over its own limit is always returned. If all queues together are over their limit, the connections
        with the longest queues are returned as well, until the others are within it. All queues together may exceed
        their limit by the bytes of one step.
        """
        closing = list(self._overflowing.items())
        self._overflowing = {}
        self.has_overfull = False
        excess = self.queue_bytes - self._config.queue_total
        if excess > 0:
            excess -= sum(queued_bytes(connection) for connection, _ in closing)
            known = {connection for connection, _ in closing}
            for connection in sorted(self.paused, key=queued_bytes, reverse=True):
                if excess <= 0:
                    break
                if connection not in known:
                    closing.append((connection, TOTAL_LIMIT))
                    excess -= queued_bytes(connection)
        return closing


def queued_bytes(connection: ClientConnection) -> int:
    """Return the number of bytes queued for a connection, 0 if it is not paused."""
    return connection.queue.size if connection.queue is not None else 0
