"""Batching, for `EdgeDelivery`: a fan-out waits in its topic for a moment, and is written together with later ones.

A delivery costs one system call and little else. Several publications in one write cost hardly more than one, so a
client with many publications per second costs a fraction. Batching loses and reorders nothing: before any other write
to a connection, even of a close frame, the connection's batches are written. A batch is written when its time is up
(`EdgeConfig.batch_delay` after its first publication) or when it is large enough: `batch_bytes` in one topic, or in all
topics together the queue limit of one client.

A chunk is one fan-out in a batch. It is held once per topic, and not touched per subscriber until it is written. Chunks
are numbered across all topics. `ClientConnection.last_chunk` is the number up to which the connection has been sent
every chunk; its pending chunks are those with larger numbers, in the topics in which it receives fan-outs. So a
connection must be sent its pending chunks before it joins or leaves a topic (`Batcher.take`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.events import Recipients
from migratory_broker.core.edge.formats import Format
from migratory_broker.core.edge.state import Batch, Chunk, ClientConnection, EdgeTopic

EARLY_FRACTION = 0.1
"""Fraction of the batch delay. Batches that are due within it are written as well, so that one timer serves many."""


class Batcher:
    """The batches of all topics of an edge. `topics` are those with a batch: none while `delay`, in seconds, is 0."""

    def __init__(self, config: EdgeConfig) -> None:
        self.delay = config.batch_delay
        self._topic_limit = config.batch_bytes
        self._total_limit = config.queue_per_client
        self._last_number = 0  # of the latest chunk
        self._size = 0
        self._due: deque[tuple[float, int, EdgeTopic]] = deque()  # one delay for all: in the order of numbers
        self.topics: dict[EdgeTopic, None] = {}

    @property
    def next_due(self) -> float | None:
        """The time at which the next batch must be written, or None when no batch is pending. Entries of the schedule
        whose chunks were sent to all are removed."""
        while self._due:
            due, number, topic = self._due[0]
            if _is_pending(topic, number):
                return due
            self._due.popleft()
        return None

    def add(self, topic: EdgeTopic, data: dict[Format, bytes], publications: int, now: float) -> list[EdgeTopic]:
        """Add a fan-out, `data` in each format, to its topic's batch. Return the topics that the caller must flush at
        once because a size limit is reached, usually none.

        This is the whole cost of a publication until it is written.
        """
        self._last_number += 1
        chunk = Chunk(self._last_number, data, publications, max(map(len, data.values())))
        batch = topic.batch
        if batch is None:
            batch = topic.batch = Batch()
            self.topics[topic] = None
        batch.chunks.append(chunk)
        batch.size += chunk.size
        self._size += chunk.size
        self._due.append((now + self.delay, chunk.number, topic))
        if self._size > self._total_limit:
            return list(self.topics)
        return [topic] if batch.size >= self._topic_limit else []

    def pending(self, connection: ClientConnection) -> list[Chunk]:
        """Return the chunks that the connection still has to be sent, in order of their numbers. Nothing changes."""
        if connection.last_chunk == self._last_number:
            return []
        return self._pending(connection, self._batched_topics(connection))

    def _batched_topics(self, connection: ClientConnection) -> tuple[EdgeTopic, ...] | frozenset[EdgeTopic]:
        """Return those of the connection's topics that have a batch. For a connection with one subscription return that
        topic, with a batch or without."""
        topics = connection.topics
        return topics if isinstance(topics, tuple) else frozenset(topics.keys() & self.topics.keys())

    def _pending(self, connection: ClientConnection, topics: Iterable[EdgeTopic]) -> list[Chunk]:
        """Return the chunks in the batches of these topics that the connection still has to be sent, in order of their
        numbers. Topics in whose audience it is not have none for it."""
        last_chunk, format = connection.last_chunk, connection.format
        chunks: list[Chunk] = []
        for topic in topics:
            batch, audience = topic.batch, topic.audiences.get(format)
            if batch is not None and audience is not None and connection in audience.members:
                chunks += batch.chunks if batch.chunks[0].number > last_chunk else batch.since(last_chunk)
        chunks.sort()  # by number, which is unique
        return chunks

    def take(self, connection: ClientConnection) -> list[Chunk]:
        """Mark all chunks as not pending for the connection, by its `last_chunk`, and return those that were pending,
        in order. The caller writes or drops them; no delivery is counted here."""
        chunks = self.pending(connection)
        connection.last_chunk = self._last_number
        return chunks

    def due_chunks(self, now: float) -> Iterator[tuple[EdgeTopic, int]]:
        """Remove every chunk from the schedule that is due now or within `EARLY_FRACTION` of the delay. Yield topic and
        number, as arguments for `flush`, of each that its topic's batch still holds: others were sent to all
        subscribers."""
        until = now + self.delay * EARLY_FRACTION
        while self._due and self._due[0][0] <= until:
            _, number, topic = self._due.popleft()
            if _is_pending(topic, number):
                yield topic, number

    def flush(self, topic: EdgeTopic, number: int | None = None) -> list[tuple[bytes, Recipients, int]]:
        """Return the writes that send a topic's pending chunks, and mark these as not pending for their recipients, by
        `last_chunk`. The caller emits the writes and counts deliveries. The topic must have a batch.

        Only subscribers for which chunk `number` is pending are written to (None: the topic's latest chunk, so all that
        lack any). A write is its bytes, their recipients and the number of publications in them. It includes the
        recipients' pending chunks of other topics. Chunks of this topic that every subscriber now has are removed from
        its batch.
        """
        batch = topic.batch
        assert batch is not None
        if number is None:
            number = batch.chunks[-1].number
        writes: list[tuple[bytes, Recipients, int]] = []
        sent_to_all = self._last_number  # the chunks that all subscribers have
        for format, audience in topic.audiences.items():
            members = audience.members
            lowest = min(map(_last_chunk, members), default=sent_to_all)
            if lowest < number:  # else every member was flushed with another topic
                for chunks, numbers in self._group_members(members, number):
                    data = b"".join([chunk.data[format] for chunk in chunks])
                    everyone = len(numbers) == len(members)
                    recipients = audience.recipients if everyone else Recipients(tuple(numbers))
                    writes.append((data, recipients, sum([chunk.publications for chunk in chunks])))
                lowest = min(map(_last_chunk, members))
            sent_to_all = min(sent_to_all, lowest)
        self._drop_sent(topic, batch, sent_to_all)
        return writes

    def _group_members(
        self, members: Iterable[ClientConnection], number: int
    ) -> Iterable[tuple[list[Chunk], list[int]]]:
        """Group those members for which chunk `number` is pending, so that one write serves a group. Return for each
        group its pending chunks and its connections' numbers, and set `last_chunk` of each member in a group, so that
        the chunks are not pending any more."""
        groups: dict[object, tuple[list[Chunk], list[int]]] = {}
        for connection in members:
            last_chunk = connection.last_chunk
            if last_chunk < number:
                # members that have the same chunks, follow the same topics and are live in each of them
                topics = self._batched_topics(connection)
                key = connection if connection.replay_count else (last_chunk, topics)
                group = groups.get(key)
                if group is None:
                    group = groups[key] = (self._pending(connection, topics), [])
                group[1].append(connection.number)
                connection.last_chunk = self._last_number
        return groups.values()

    def _drop_sent(self, topic: EdgeTopic, batch: Batch, number: int) -> None:
        """Remove the topic's chunks up to `number`, which all its subscribers have been sent, and the topic's batch if
        none is left."""
        self._size -= batch.size
        batch.chunks = batch.since(number)
        batch.size = sum(chunk.size for chunk in batch.chunks)
        self._size += batch.size
        if not batch.chunks:
            topic.batch = None
            del self.topics[topic]


def _is_pending(topic: EdgeTopic, number: int) -> bool:
    """Return whether the topic's batch still holds the chunk, so that some subscriber may have to be sent it."""
    return topic.batch is not None and topic.batch.chunks[0].number <= number


_last_chunk = attrgetter("last_chunk")
