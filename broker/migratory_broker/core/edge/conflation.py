"""Conflation, for the edge core: of a topic's QoS 0 publications only the latest of each interval is sent.

The first QoS 0 publication after a quiet interval is sent at once and begins an interval. During an interval the latest
QoS 0 publication replaces the one before; at the end it is sent and the next interval begins. All live subscribers of a
topic share the interval, so conflation costs nothing per subscriber. Nothing is left out silently: the message that is
sent names the first sequence number that it replaces.

A QoS 1 publication is never delayed or left out, because it was acknowledged. It replaces the QoS 0 publications that
were pending before it, and begins no interval. Replays are not conflated: they bring everything that is cached. The
pending publication is sent before another subscriber joins and before a gap is reported, so that every subscriber gets
messages in order.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator, Sequence

from migratory_protocol.peer import Publication
from migratory_protocol.topics import TopicPattern

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.delivery import EdgeDelivery
from migratory_broker.core.edge.formats import message_of
from migratory_broker.core.edge.state import ConflationState, EdgeTopic

SLACK = 0.005
"""Seconds. Intervals that end within this time from now are ended together, so that one timer serves many topics."""


class Conflator:
    """The conflated topics of an edge, with their intervals and pending publications.

    `_running` holds, for each length of interval in the rules, the topics with a running interval of that length, and
    when it ends. Intervals of one length end in the order in which they began.
    """

    def __init__(self, config: EdgeConfig, delivery: EdgeDelivery) -> None:
        self._delivery = delivery
        self._rules = [(TopicPattern(rule.topics), rule.interval) for rule in config.conflation]
        self._running: dict[float, OrderedDict[EdgeTopic, float]] = {
            rule.interval: OrderedDict() for rule in config.conflation
        }

    def add_topic(self, topic: EdgeTopic) -> None:
        """Set up conflation for a topic that gets its first subscriber, by the first rule that matches. If none does:
        nothing."""
        for pattern, interval in self._rules:
            if pattern.matches(topic.name):
                topic.conflation = ConflationState(interval)
                return

    def remove_topic(self, topic: EdgeTopic) -> None:
        """End the conflation of a topic without subscribers, and drop its pending publication.

        Both are dropped now, not at the end of the interval: otherwise clients that subscribe and leave would leave the
        state of many topics in memory.
        """
        if topic.conflation is not None:
            self._running[topic.conflation.interval].pop(topic, None)
            topic.conflation = None

    def fanout(self, topic: EdgeTopic, conflated: ConflationState, publications: Sequence[Publication]) -> None:
        """Accept new publications of a conflated topic. A QoS 1 publication is sent to the live subscribers at once, in
        place of the QoS 0 publications that were pending before it. The latest QoS 0 publication after it stays pending
        until the running interval ends; if none is running, it is sent at once and begins one."""
        for publication in publications:
            if not conflated.first:
                conflated.first = publication.sequence
            conflated.pending = publication
            if publication.id:
                self.flush(topic)
        if conflated.pending is not None and not conflated.running:
            self._send(topic, conflated)

    def flush(self, topic: EdgeTopic) -> None:
        """Send the topic's pending publication to its live subscribers now. A running interval goes on. Without a
        pending publication, or without conflation: nothing."""
        conflated = topic.conflation
        if conflated is not None and conflated.pending is not None:
            self._multicast(topic, conflated, conflated.pending)

    def handle_timer(self) -> None:
        """End the intervals that are due, or will be within `SLACK`, and set the timer for the next one. A topic with a
        pending publication sends it and begins another interval."""
        for topic, conflated in self._ended():
            conflated.running = False
            if conflated.pending is not None:
                self._send(topic, conflated)
        for running in self._running.values():
            if running:
                self._delivery.set_timer(next(iter(running.values())))

    def _ended(self) -> Iterator[tuple[EdgeTopic, ConflationState]]:
        """Remove the intervals that are due, or will be within `SLACK`, one after the other, and yield their topics
        with the state of their conflation."""
        until = self._delivery.now + SLACK
        for running in self._running.values():
            while running and next(iter(running.values())) <= until:
                topic, _ = running.popitem(last=False)
                assert topic.conflation is not None
                yield topic, topic.conflation

    def _send(self, topic: EdgeTopic, conflated: ConflationState) -> None:
        """Send the topic's pending publication, begin an interval and set the timer for its end."""
        self.flush(topic)
        conflated.running = True
        due = self._delivery.now + conflated.interval
        self._running[conflated.interval][topic] = due
        self._delivery.set_timer(due)

    def _multicast(self, topic: EdgeTopic, conflated: ConflationState, publication: Publication) -> None:
        """Send a pending publication to the topic's live subscribers, with the first sequence number that it stands for
        if it stands for earlier ones. Nothing is pending afterwards."""
        first = conflated.first if conflated.first < publication.sequence else 0
        conflated.pending, conflated.first = None, 0
        self._delivery.multicast(topic, [message_of(topic.name, publication, first=first)], 1)
