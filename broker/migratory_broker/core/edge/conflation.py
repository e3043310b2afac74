"""Conflation: of a topic's QoS 0 publications only the latest of each interval is sent on, and says what it stands for.

The first publication after a quiet time leaves at once. From there on an interval runs in which QoS 0 publications
take each other's place; at its end the latest leaves, and the next interval begins. It is the same for all live
subscribers of the topic, so it costs nothing per subscriber. What it leaves out is never hidden: the message that comes
next names the first sequence number that it stands for.

A QoS 1 publication is never left out and never waits: it was acknowledged, and somebody counts on it. It stands for the
QoS 0 publications that waited before it. Replays bring all that is cached: what waits here leaves before another
subscriber joins, and before a gap is told, so that for nobody two things come in the wrong order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from migratory_protocol.peer import Publication
from migratory_protocol.topics import TopicPattern

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.connection import Conflated, Topic
from migratory_broker.core.edge.delivery import Delivery

TOGETHER = 0.005
"""Seconds: intervals that end so soon end along, so that a clock wakes nobody for each of them."""


class Conflation:
    """`_running`: the topics whose interval runs and when it ends, by its length: all of one length end in the order in
    which they began."""

    def __init__(self, config: EdgeConfig, delivery: Delivery) -> None:
        self._delivery = delivery
        self._rules = [(TopicPattern(rule.topics), rule.interval) for rule in config.conflation]
        self._running: dict[float, OrderedDict[Topic, float]] = {
            rule.interval: OrderedDict() for rule in config.conflation
        }

    def begin(self, topic: Topic) -> None:
        """Somebody subscribes to a topic that nobody was subscribed to."""
        for pattern, interval in self._rules:
            if pattern.matches(topic.name):
                topic.conflated = Conflated(interval)
                return

    def end(self, topic: Topic) -> None:
        """Nobody is subscribed any more: what waits goes now, and not when its interval ends. Who comes and goes often
        would leave that of many behind."""
        if topic.conflated is not None:
            self._running[topic.conflated.interval].pop(topic, None)
            topic.conflated = None

    def take(self, topic: Topic, conflated: Conflated, publications: Sequence[Publication]) -> None:
        """What was committed, for the live subscribers."""
        for publication in publications:
            if not conflated.first:
                conflated.first = publication.sequence
            conflated.held = publication
            if publication.id:
                self.release(topic)
        if conflated.held is not None and not conflated.running:
            self._send(topic, conflated)

    def release(self, topic: Topic) -> None:
        """What waits in the topic leaves now."""
        conflated = topic.conflated
        if conflated is not None and conflated.held is not None:
            self._out(topic, conflated, conflated.held)

    def time_has_come(self) -> None:
        """Intervals are over: the latest publication leaves, and where there was none the topic is quiet."""
        for topic, conflated in self._over():
            conflated.running = False
            if conflated.held is not None:
                self._send(topic, conflated)
        for running in self._running.values():
            if running:
                self._delivery.wake(next(iter(running.values())))

    def _over(self) -> Iterator[tuple[Topic, Conflated]]:
        until = self._delivery.now + TOGETHER
        for running in self._running.values():
            while running and next(iter(running.values())) <= until:
                topic, _ = running.popitem(last=False)
                assert topic.conflated is not None
                yield topic, topic.conflated

    def _send(self, topic: Topic, conflated: Conflated) -> None:
        """The latest leaves, and an interval begins."""
        self.release(topic)
        conflated.running = True
        due = self._delivery.now + conflated.interval
        self._running[conflated.interval][topic] = due
        self._delivery.wake(due)

    def _out(self, topic: Topic, conflated: Conflated, publication: Publication) -> None:
        first = conflated.first if conflated.first < publication.sequence else 0
        conflated.held, conflated.first = None, 0
        self._delivery.multicast(topic, lambda format: format.conflated(topic.name, publication, first), 1)
