"""The publishing client (Benchpub of the paper), which publishes to each of its topics when a publication is due, and
records whether it was acknowledged."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from migratory_client.core import events as ev
from migratory_protocol.topics import topic_group
from msgspec import Struct

from migratory_loadtest.client import LoadClient, WorkerContext
from migratory_loadtest.records import PublicationRecord, TopicRecord
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.workload import PayloadHeader, ScheduledSend, SendSchedule, build_payload, payload_digest


class SentPublication(Struct):
    """A publication that was sent and not answered yet. `topic` is the topic's number, and `sent_ns` is of the
    monotonic clock."""

    topic: int
    number: int
    digest: str
    sent_ns: int


class LoadPublisher(LoadClient):
    """A simulated client that publishes on schedule, and records the outcome of each publication. `pending` are the
    publications without an answer, and `failed` counts those that did not succeed.

    :param number: the number of the publisher in the run.
    :param topics: the names of its topics, by topic number.
    :param subscriber_counts: the number of subscribers of each topic in the whole run, by topic number.
    """

    __slots__ = (
        "acknowledgements", "failed", "groups", "number", "pending", "records", "scenario", "schedule",
        "subscriber_counts", "topics",
    )  # fmt: skip

    def __init__(
        self,
        context: WorkerContext,
        name: str,
        rng: random.Random,
        scenario: Scenario,
        number: int,
        topics: Mapping[int, str],
        subscriber_counts: Mapping[int, int],
    ) -> None:
        super().__init__(context, name, rng, scenario.token)
        self.scenario = scenario
        self.number = number
        self.topics = dict(topics)
        self.subscriber_counts = subscriber_counts
        self.groups = {topic: topic_group(text, scenario.groups) for topic, text in topics.items()}
        offsets = scenario.offsets()
        self.schedule = SendSchedule(
            {topic: offsets[topic] for topic in topics}, scenario.rate, scenario.sends_per_topic()
        )
        self.pending: dict[int, SentPublication] = {}  # by id(): the structs are mutable and not hashable
        self.records = {topic: TopicRecord(text) for topic, text in topics.items()}
        self.acknowledgements: dict[int, list[int]] = {}  # times in nanoseconds, by group
        self.failed = 0

    def send_due(self, start_ns: int) -> float | None:
        """Send every publication that is due now, without waiting for answers.

        Return the next due time in seconds since the start, None after the last. `start_ns` is the start of the run in
        nanoseconds of the monotonic clock.
        """
        while (due := self.schedule.pop_due((time.monotonic_ns() - start_ns) / 1e9)) is not None:
            self._send(due, start_ns)
        return self.schedule.next_due()

    def _send(self, due: ScheduledSend, start_ns: int) -> None:
        """Build a publication's payload, which contains its due time, and submit it. It is pending until its answer."""
        scenario = self.scenario
        header = PayloadHeader(self.number, due.topic, due.number, start_ns + round(due.at * 1e9))
        payload = build_payload(scenario.payload, scenario.seed, header)
        publication = SentPublication(due.topic, due.number, payload_digest(payload), time.monotonic_ns())
        self.pending[id(publication)] = publication
        self.step(ev.Submit(publication, self.topics[due.topic], payload, scenario.qos, time.time()))

    def on_answer(self, effect: ev.Acknowledged | ev.PublishFailed) -> None:
        """Record the outcome of a publication: acknowledged, refused (`failed`), or unanswered if it may be stored. QoS
        0 publications that were sent count as unanswered. An acknowledgement is also measured, and expects a delivery
        to each subscriber of the topic."""
        publication = effect.ticket
        assert isinstance(publication, SentPublication)
        self.pending.pop(id(publication))
        record = self.records[publication.topic]
        meter = self.context.meter
        if isinstance(effect, ev.PublishFailed):
            self.failed += 1
            meter.errors[(self.broker, effect.code)] += 1
            self._report_error(f"publication {publication.number} of {record.topic}: {effect.code}: {effect.text}")
            outcome = record.unanswered if effect.code in ev.UNKNOWN_OUTCOMES else record.failed
            outcome.append(PublicationRecord(publication.digest, self.number, publication.number))
            return
        sent = PublicationRecord(publication.digest, self.number, publication.number, effect.position)
        if self.scenario.qos == 0:
            record.unanswered.append(sent)  # QoS 0 is at most once: no delivery is guaranteed
            return
        now = time.monotonic_ns()
        record.acknowledged.append(sent)
        self.acknowledgements.setdefault(self.groups[publication.topic], []).append(now)
        meter.acknowledged(
            self.broker, (now - publication.sent_ns) / 1e9, self.subscriber_counts.get(publication.topic, 0)
        )

    def on_deliver(self, effect: ev.Deliver) -> None:
        raise AssertionError("a publisher does not subscribe")

    def on_receipt(self, effect: ev.Receipt) -> None:
        raise AssertionError("a publisher does not subscribe")

    def final_records(self) -> dict[int, TopicRecord]:
        """Count every pending publication as unanswered, and return the records of all topics by topic number. They
        have no deliveries. Call it once, at the end of the run."""
        for publication in self.pending.values():
            self.records[publication.topic].unanswered.append(
                PublicationRecord(publication.digest, self.number, publication.number)
            )
        self.pending.clear()
        return self.records
