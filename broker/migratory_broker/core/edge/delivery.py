"""Delivery: from a committed publication to bytes for every subscriber, and what waits for those that read slowly.

The fast path. `Fanout(topic, publications)` becomes one `Multicast` per wire format: encoded once, framed once, joined
into one write, to `Recipients` that are only made anew after a subscriber came, went, or changed between writable and
paused. Nothing is done or allocated per subscriber here.

With batching (batches.py) what is fanned out waits in its topic instead, and leaves as one `Multicast` for all that get
the same, or before whatever else is written to a connection.

The slow path. A connection whose transport is full is moved out of the audiences into each topic's `paused`, and gets
a queue of the same shared bytes. A queue over its limit, or the longest one when all together are over theirs, ends its
client (`overfull`); the others never notice.

Effects leave in the order in which they were put in: replies to one connection are collected and joined, and whatever
else is put in afterwards goes behind them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Final

from migratory_protocol.messages import BrokerMessage
from migratory_protocol.peer import Forwarded, Publication

from migratory_broker.core.edge.batches import Batches
from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Connection, Queue, Topic
from migratory_broker.core.edge.events import Close, Detach, Effect, Hold, Later, More, Multicast, Recipients, Send
from migratory_broker.core.edge.formats import Format
from migratory_broker.core.logic.events import Attach, Clients, NextPage, Note, Observe, PublishRequest

CLIENT_LIMIT: Final = "queue of this client"
TOTAL_LIMIT: Final = "queues of all clients"

MOMENT = 0.1
"""Seconds in which whoever is heard has been heard at the same time: a float of its own would take 32 bytes of each. A
tenth of the heartbeat's interval, where that is less."""


class Delivery:
    """The way out of an edge. The figures without an underscore are for /metrics and /v1/status."""

    def __init__(self, config: EdgeConfig) -> None:
        self._config = config
        self._effects: list[Effect] = []
        self._writing: Connection | None = None
        self._written: list[bytes] = []
        self._forwarding: PublishRequest | None = None
        self._overflowing: dict[Connection, str] = {}
        self._batches = Batches(config)
        self._alarm = float("inf")  # the earliest `Later` that is under way
        self.over = False  # something was put in over a limit: `overfull` says of whom
        self.paused: dict[Connection, None] = {}
        self.now = 0.0
        self._moment = 0.0
        self._together = min(MOMENT, config.heartbeat / 10)
        self.delivered = 0  # publications, times subscribers
        self.sent_bytes = 0
        self.queue_bytes = 0

    @property
    def moment(self) -> float:
        """`now`, or what it was less than `MOMENT` ago."""
        if not self._moment <= self.now < self._moment + self._together:
            self._moment = self.now
        return self._moment

    # ---- effects ---------------------------------------------------------------------------------------------

    def put(self, effect: Close) -> None:
        """Behind everything that was written before."""
        self._join()
        self._effects.append(effect)

    def aside(self, effect: Attach | NextPage | Detach | Clients | Hold | More | Later | Observe | Note) -> None:
        """Where it stands among the writes doesn't matter, so that it parts none of them."""
        self._forwarding = None  # who publishes behind a subscription gets his own
        self._effects.append(effect)

    def forward(self, edge: int, connection: Connection, publication: Forwarded) -> None:
        """On to the logic, with what the same client published just before."""
        request = self._forwarding
        if request is None or request.reference != connection.number:
            request = self._forwarding = PublishRequest(edge, connection.number, [])
            self._effects.append(request)
        request.publications.append(publication)

    def take(self) -> list[Effect]:
        """What this step has to say, in order."""
        if self._writing is not None:
            self._join()
        self._forwarding = None
        effects, self._effects = self._effects, []
        return effects

    def _join(self) -> None:
        if self._writing is not None:
            written = self._written
            self._effects.append(Send(self._writing.number, written[0] if len(written) == 1 else b"".join(written)))
            self._writing = None
            self._written = []

    # ---- to one connection -----------------------------------------------------------------------------------

    def reply(self, connection: Connection, message: BrokerMessage) -> None:
        self.write(connection, connection.format.frame(message))

    def reply_all(self, connection: Connection, messages: Sequence[BrokerMessage]) -> None:
        """In one frame, mostly."""
        if len(messages) == 1:
            self.reply(connection, messages[0])
        else:
            self.write(connection, connection.format.frame_all(messages))

    def write(self, connection: Connection, data: bytes, publications: int = 0) -> None:
        """Now, or behind what waits already. `publications` says how many `data` holds."""
        if connection.queue is not None:
            self._enqueue(connection, connection.queue, data, publications)
            return
        self.delivered += publications
        self.write_at_once(connection, data)

    def write_at_once(self, connection: Connection, data: bytes) -> None:
        """Past the queue: for a close frame, behind which nothing comes."""
        self.settle(connection)
        self._turn_to(connection)
        self._written.append(data)
        self.sent_bytes += len(data)

    def settle(self, connection: Connection) -> None:
        """What waits for the connection in batches leaves now."""
        if self._batches.topics and (chunks := self._batches.take(connection)):
            self._turn_to(connection)
            self._written += [chunk.data[connection.format] for chunk in chunks]
            for chunk in chunks:
                self.delivered += chunk.publications
                self.sent_bytes += len(chunk.data[connection.format])

    def _turn_to(self, connection: Connection) -> None:
        if self._writing is not connection:
            self._join()
            self._writing = connection

    # ---- to many ---------------------------------------------------------------------------------------------

    def fanout(self, topic: Topic, publications: Sequence[Publication], count: int) -> None:
        """`count` publications to the live subscribers of a topic."""
        name = topic.name
        self.multicast(topic, lambda format: format.live(name, publications), count)

    def multicast(self, topic: Topic, encode: Callable[[Format], bytes], publications: int = 0) -> None:
        """What `encode` makes, once in each format, to the live subscribers of a topic."""
        encoded: dict[Format, bytes] = {}
        if self._writing is not None:
            self._join()
        for format, audience in topic.audiences.items():
            if not audience.members:
                continue
            data = encoded[format] = encode(format)
            if self._batches.delay:
                continue
            self._effects.append(Multicast(data, audience.recipients))
            subscribers = len(audience.members)
            self.delivered += publications * subscribers
            self.sent_bytes += len(data) * subscribers
        if self._batches.delay and encoded:
            self._batch(topic, encoded, publications)
        for connection in topic.paused:
            waiting = encoded.get(connection.format)
            if waiting is None:
                waiting = encoded[connection.format] = encode(connection.format)
            self.write(connection, waiting, publications)

    def write_to_all(self, connections: Iterable[Connection], data: bytes) -> None:
        """The same bytes to each connection, to those for whom nothing waits past their transports."""
        numbers: list[int] = []
        for connection in connections:
            if connection.queue is None and not self._batches.waiting(connection):
                numbers.append(connection.number)
            else:
                self.write(connection, data)
        if numbers:
            self._join()
            self._effects.append(Multicast(data, Recipients(tuple(numbers))))
            self.sent_bytes += len(data) * len(numbers)

    def broadcast(self, connections: Iterable[Connection], message: BrokerMessage) -> None:
        """The same message to each connection."""
        encoded: dict[Format, bytes] = {}
        for connection in connections:
            data = encoded.get(connection.format)
            if data is None:
                data = encoded[connection.format] = connection.format.frame(message)
            self.write(connection, data)

    # ---- batches ---------------------------------------------------------------------------------------------

    def _batch(self, topic: Topic, data: dict[Format, bytes], publications: int) -> None:
        for full in self._batches.add(topic, data, publications, self.now):
            self._leave(full)
        due = self._batches.due
        if due is not None:
            self.wake(due)

    def wake(self, at: float) -> None:
        """`Later` is to come by then."""
        if at < self._alarm:
            self._alarm = at
            self.aside(Later(at))

    def time_has_come(self, event: Later) -> None:
        if event.at == self._alarm:  # else an earlier one was asked for since
            self._alarm = float("inf")
        for topic, number in self._batches.leaving(self.now):
            self._leave(topic, number)
        due = self._batches.due
        if due is not None:
            self.wake(due)

    def _leave(self, topic: Topic, number: int | None = None) -> None:
        """What waits in a topic leaves. Nothing is being written just now."""
        for data, recipients, publications in self._batches.leave(topic, number):
            self._effects.append(Multicast(data, recipients))
            self.delivered += publications * len(recipients.connections)
            self.sent_bytes += len(data) * len(recipients.connections)

    def join(self, topic: Topic, connection: Connection) -> None:
        """The connection gets what is fanned out from now on."""
        self.settle(connection)
        topic.add_live(connection)

    def part(self, topic: Topic, connection: Connection) -> None:
        """The connection gets nothing more of the topic, but what was fanned out until now."""
        self.settle(connection)
        topic.remove_live(connection)

    def forget(self, connection: Connection) -> None:
        """It is gone, and what waited for it."""
        self._batches.take(connection)

    # ---- queues ----------------------------------------------------------------------------------------------

    def pause(self, connection: Connection) -> None:
        """The transport holds more than its high-water mark."""
        waiting = self._batches.take(connection)
        for topic in connection.topics:
            if topic.remove_live(connection):
                topic.paused[connection] = None
        connection.queue = Queue(self.now)
        self.paused[connection] = None
        for chunk in waiting:
            self._enqueue(connection, connection.queue, chunk.data[connection.format], chunk.publications)

    def resume(self, connection: Connection) -> None:
        """The transport takes bytes again: what waited leaves first, in one write."""
        queue = self.drop_queue(connection)
        self._batches.take(connection)  # what waits in its topics is in its queue
        for topic in connection.topics:
            if topic.remove_live(connection):
                topic.add_live(connection)
        if queue.chunks:
            self.write(connection, b"".join(queue.chunks), queue.publications)

    def drop_queue(self, connection: Connection) -> Queue:
        """The queue of a paused connection, which is not paused any more."""
        queue = connection.queue
        assert queue is not None
        connection.queue = None
        del self.paused[connection]
        self._overflowing.pop(connection, None)
        self.queue_bytes -= queue.size
        return queue

    def _enqueue(self, connection: Connection, queue: Queue, data: bytes, publications: int) -> None:
        # What comes first always fits: a limit below one large publication must not make its topic unreadable.
        if queue.size and queue.size + len(data) > self._config.queue_per_client:
            self._overflowing[connection] = CLIENT_LIMIT
            self.over = True
            return
        queue.chunks.append(data)
        queue.size += len(data)
        queue.publications += publications
        self.queue_bytes += len(data)
        if self.queue_bytes > self._config.queue_total:
            self.over = True

    def overfull(self) -> list[tuple[Connection, str]]:
        """Who must be closed before the step ends, and over which limit. All queues together may be over theirs by
        what one step put in: those bytes are shared."""
        closing = list(self._overflowing.items())
        self._overflowing = {}
        self.over = False
        excess = self.queue_bytes - self._config.queue_total
        if excess > 0:
            excess -= sum(waiting_bytes(connection) for connection, _ in closing)
            known = {connection for connection, _ in closing}
            for connection in sorted(self.paused, key=waiting_bytes, reverse=True):
                if excess <= 0:
                    break
                if connection not in known:
                    closing.append((connection, TOTAL_LIMIT))
                    excess -= waiting_bytes(connection)
        return closing


def waiting_bytes(connection: Connection) -> int:
    return connection.queue.size if connection.queue is not None else 0
