"""Benchpub: a client that owns topics and publishes to each when it is due, whatever became of what was sent before."""

from __future__ import annotations

import random
import time
from collections.abc import Mapping

from migratory_client.core import events as ev
from migratory_protocol.topics import topic_group
from msgspec import Struct

from migratory_loadtest.account import Sent, TopicAccount
from migratory_loadtest.client import LoadClient, World
from migratory_loadtest.payload import Content, build, digest
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.schedule import Due, Schedule

AMBIGUOUS = frozenset({"timeout", "closed"})
"""Codes after which a publication may still appear."""


class Ticket(Struct):
    """One publication that is under way."""

    topic: int
    number: int
    digest: str
    sent_ns: int


class Publisher(LoadClient):
    """`topics` maps the numbers of its topics to their names, `subscribers` to how many expect each publication."""

    __slots__ = (
        "acknowledgements", "failed", "groups", "number", "outcome", "scenario", "schedule", "subscribers", "topics",
        "waiting",
    )  # fmt: skip

    def __init__(
        self,
        world: World,
        name: str,
        chance: random.Random,
        scenario: Scenario,
        number: int,
        topics: Mapping[int, str],
        subscribers: Mapping[int, int],
    ) -> None:
        super().__init__(world, name, chance, scenario.token)
        self.scenario = scenario
        self.number = number
        self.topics = dict(topics)
        self.subscribers = subscribers
        self.groups = {topic: topic_group(text, scenario.groups) for topic, text in topics.items()}
        offsets = scenario.offsets()
        self.schedule = Schedule({topic: offsets[topic] for topic in topics}, scenario.rate, scenario.sends_per_topic())
        self.waiting: dict[int, Ticket] = {}  # by identity: tickets are not hashable
        self.outcome = {topic: TopicAccount(text) for topic, text in topics.items()}
        self.acknowledgements: dict[int, list[int]] = {}  # group -> times
        self.failed = 0

    def send_due(self, start_ns: int) -> float | None:
        """Sends what is due by now; returns when the next one is, in seconds since the start; None behind the last."""
        while (due := self.schedule.pop((time.monotonic_ns() - start_ns) / 1e9)) is not None:
            self._send(due, start_ns)
        return self.schedule.peek()

    def _send(self, due: Due, start_ns: int) -> None:
        scenario = self.scenario
        content = Content(self.number, due.topic, due.number, start_ns + round(due.at * 1e9))
        payload = build(scenario.payload, scenario.seed, content)
        ticket = Ticket(due.topic, due.number, digest(payload), time.monotonic_ns())
        self.waiting[id(ticket)] = ticket
        self.step(ev.Submit(ticket, self.topics[due.topic], payload, scenario.qos, time.time()))

    def on_answer(self, effect: ev.Acknowledged | ev.PublishFailed) -> None:
        ticket = effect.ticket
        assert isinstance(ticket, Ticket)
        self.waiting.pop(id(ticket))
        outcome = self.outcome[ticket.topic]
        meter = self.world.meter
        if isinstance(effect, ev.PublishFailed):
            self.failed += 1
            meter.errors[(self.broker, effect.code)] += 1
            self._trouble(f"publication {ticket.number} of {outcome.topic}: {effect.code}: {effect.text}")
            where = outcome.unanswered if effect.code in AMBIGUOUS else outcome.failed
            where.append(Sent(ticket.digest, self.number, ticket.number))
            return
        sent = Sent(ticket.digest, self.number, ticket.number, effect.position)
        if self.scenario.qos == 0:
            outcome.unanswered.append(sent)  # at most once: nothing is owed
            return
        now = time.monotonic_ns()
        outcome.acknowledged.append(sent)
        self.acknowledgements.setdefault(self.groups[ticket.topic], []).append(now)
        meter.acknowledged(self.broker, (now - ticket.sent_ns) / 1e9, self.subscribers.get(ticket.topic, 0))

    def on_deliver(self, effect: ev.Deliver) -> None:
        raise AssertionError("a publisher does not subscribe")

    def on_receipt(self, effect: ev.Receipt) -> None:
        raise AssertionError("a publisher does not subscribe")

    def account(self) -> dict[int, TopicAccount]:
        """What became of everything that was sent; what still waits is unanswered."""
        for ticket in self.waiting.values():
            self.outcome[ticket.topic].unanswered.append(Sent(ticket.digest, self.number, ticket.number))
        self.waiting.clear()
        return self.outcome
