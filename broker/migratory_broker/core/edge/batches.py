"""Batching: what is fanned out waits for a moment in its topic, and leaves with what else comes until then.

A delivery is one system call, and hardly anything else. Several publications in one write cost little more than one, so
a client that gets many a second costs a fraction. Nothing is lost or reordered by it: whatever else is written to the
connection takes what waits along, before itself; a close frame as well. A batch leaves when its time is up
(`EdgeConfig.batch_delay` after the first publication in it) or when it is large enough (`batch_bytes` of one topic, or
of all topics together what the queue of one client may hold).

What waits is held once per topic, and not touched per subscriber until it leaves. Chunks are numbered through all
topics, and a connection knows up to which of them all that concerned it was written (`Connection.taken`): what waits
for it are the later ones of the topics in which it is live. So whoever becomes live in a topic, or leaves one, must
have taken what waited until then (`take`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from operator import attrgetter

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Batch, Chunk, Connection, Topic
from migratory_broker.core.edge.events import Recipients
from migratory_broker.core.edge.formats import Format

EARLY = 0.1
"""Of the delay: batches whose time is up so soon leave along, so that a clock wakes nobody for each of them."""


class Batches:
    """Of all topics of an edge. `delay` 0: there are none. `topics` are those in which something waits."""

    def __init__(self, config: EdgeConfig) -> None:
        self.delay = config.batch_delay
        self._limit = config.batch_bytes
        self._most = config.queue_per_client
        self._number = 0  # of the latest chunk
        self._size = 0
        self._due: deque[tuple[float, int, Topic]] = deque()  # all wait equally long: in the order of numbers
        self.topics: dict[Topic, None] = {}

    @property
    def due(self) -> float | None:
        """When the next one is to leave."""
        while self._due:
            due, number, topic = self._due[0]
            if _holds(topic, number):
                return due
            self._due.popleft()
        return None

    def add(self, topic: Topic, data: dict[Format, bytes], publications: int, now: float) -> list[Topic]:
        """To what waits in a topic, the same in each format: all that a publication costs until it leaves. Answers with
        the topics in which so much waits that they are to leave now."""
        self._number += 1
        chunk = Chunk(self._number, data, publications, max(map(len, data.values())))
        batch = topic.batch
        if batch is None:
            batch = topic.batch = Batch()
            self.topics[topic] = None
        batch.chunks.append(chunk)
        batch.size += chunk.size
        self._size += chunk.size
        self._due.append((now + self.delay, chunk.number, topic))
        if self._size > self._most:
            return list(self.topics)
        return [topic] if batch.size >= self._limit else []

    def waiting(self, connection: Connection) -> list[Chunk]:
        """What waits for the connection, in order."""
        if connection.taken == self._number:
            return []
        return self._waiting(connection, self._busy(connection))

    def _busy(self, connection: Connection) -> tuple[Topic, ...] | frozenset[Topic]:
        """The connection's topics in which something waits, or its only one."""
        topics = connection.topics
        return topics if isinstance(topics, tuple) else frozenset(topics.keys() & self.topics.keys())

    def _waiting(self, connection: Connection, busy: Iterable[Topic]) -> list[Chunk]:
        taken, format = connection.taken, connection.format
        found: list[Chunk] = []
        for topic in busy:
            batch, audience = topic.batch, topic.audiences.get(format)
            if batch is not None and audience is not None and connection in audience.members:
                found += batch.chunks if batch.chunks[0].number > taken else batch.since(taken)
        found.sort()  # by number: there are no two of one
        return found

    def take(self, connection: Connection) -> list[Chunk]:
        """What waits for the connection, for which nothing waits then."""
        found = self.waiting(connection)
        connection.taken = self._number
        return found

    def leaving(self, now: float) -> Iterator[tuple[Topic, int]]:
        """Chunks whose time is up, for `leave`."""
        until = now + self.delay * EARLY
        while self._due and self._due[0][0] <= until:
            _, number, topic = self._due.popleft()
            if _holds(topic, number):
                yield topic, number

    def leave(self, topic: Topic, number: int | None = None) -> list[tuple[bytes, Recipients, int]]:
        """All that waits for those subscribers of a topic that wait for its chunk `number` (None: for any of it):
        bytes, all who get just these, and how many publications they are."""
        batch = topic.batch
        assert batch is not None
        if number is None:
            number = batch.chunks[-1].number
        leaving: list[tuple[bytes, Recipients, int]] = []
        had = self._number  # what all of them have
        for format, audience in topic.audiences.items():
            members = audience.members
            lowest = min(map(_taken, members), default=had)
            if lowest < number:  # else all of it left along with other topics
                for chunks, numbers in self._alike(members, number):
                    data = b"".join([chunk.data[format] for chunk in chunks])
                    everyone = len(numbers) == len(members)
                    recipients = audience.recipients if everyone else Recipients(tuple(numbers))
                    leaving.append((data, recipients, sum([chunk.publications for chunk in chunks])))
                lowest = min(map(_taken, members))
            had = min(had, lowest)
        self._drop(topic, batch, had)
        return leaving

    def _alike(self, members: Iterable[Connection], number: int) -> Iterable[tuple[list[Chunk], list[int]]]:
        """What waits for those that wait for chunk `number`, and for whom the same waits. They have it then."""
        alike: dict[object, tuple[list[Chunk], list[int]]] = {}
        for connection in members:
            taken = connection.taken
            if taken < number:
                # all that had the same and follow the same topics, live in each of them
                busy = self._busy(connection)
                key = connection if connection.replaying else (taken, busy)
                group = alike.get(key)
                if group is None:
                    group = alike[key] = (self._waiting(connection, busy), [])
                group[1].append(connection.number)
                connection.taken = self._number
        return alike.values()

    def _drop(self, topic: Topic, batch: Batch, number: int) -> None:
        """The chunks of a topic up to a number, that all its subscribers have."""
        self._size -= batch.size
        batch.chunks = batch.since(number)
        batch.size = sum(chunk.size for chunk in batch.chunks)
        self._size += batch.size
        if not batch.chunks:
            topic.batch = None
            del self.topics[topic]


def _holds(topic: Topic, number: int) -> bool:
    """Whether that chunk still waits for somebody."""
    return topic.batch is not None and topic.batch.chunks[0].number <= number


_taken = attrgetter("taken")
