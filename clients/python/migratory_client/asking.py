"""Asking a broker for topics: the subscribe requests that are under way, and the time limit for their receipts."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

from migratory_protocol import messages as wire
from migratory_protocol.topics import BadTopic, check_topic

from migratory_client import events as ev
from migratory_client.events import Effect
from migratory_client.settings import Settings
from migratory_client.subscriptions import Subscription, Subscriptions


class Asking:
    """`due` is when an answer must have come: asking the same broker again might be answered without a replay."""

    __slots__ = ("_requests", "_settings", "due", "subscriptions")

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._requests = 0
        self.subscriptions = Subscriptions(settings.remembered)
        self.due = inf

    def want(self, event: ev.WantTopic, link: int, now: float, out: list[Effect]) -> None:
        """`link` 0: there is none now; the next one is asked for everything that is wanted."""
        if event.topic in self.subscriptions.active:
            return
        try:
            check_topic(event.topic)
        except BadTopic as error:
            out.append(ev.Refused(event.topic, error.code, str(error)))
            return
        subscription = self.subscriptions.want(event.topic, event.after, event.snapshot, event.fresh)
        if link:
            self.ask(link, [subscription], now, out)

    def drop(self, event: ev.DropTopic, link: int, out: list[Effect]) -> None:
        if self.subscriptions.drop(event.topic, event.seen) and link:
            self._requests += 1
            out.append(ev.Send(link, [wire.Unsubscribe(self._requests, [event.topic])]))

    def ask(self, link: int, wanted: Sequence[Subscription], now: float, out: list[Effect]) -> None:
        """For these topics, each from behind its position."""
        size = self._settings.subscribe_batch
        for start in range(0, len(wanted), size):
            batch = wanted[start : start + size]
            self._requests += 1
            for subscription in batch:
                self.subscriptions.asked(subscription, self._requests)
            topics = [self.subscriptions.request(subscription) for subscription in batch]
            out.append(ev.Send(link, [wire.Subscribe(self._requests, topics)]))
        if wanted and self.due == inf:
            self.due = now + self._settings.receipt_timeout

    def answered(self, link: int, message: wire.Subscribed, now: float, out: list[Effect]) -> None:
        """Receipts came on `link`: for topics that were asked for there, or are served from there."""
        subscriptions = self.subscriptions
        for receipt in message.topics:
            subscription = subscriptions.active.get(receipt.topic)
            if subscription is None:
                continue
            if message.request:
                current = subscription.request == message.request
            else:
                current = subscription.link == link
            if not current:
                continue  # the answer to an earlier request, or news of a link that does not serve this topic
            if receipt.receipt is None:
                subscriptions.refuse(receipt.topic)
                out.append(ev.Refused(receipt.topic, receipt.code, receipt.text))
                continue
            if message.request:
                subscriptions.asked(subscription, 0)
            subscription.receive(link, receipt, out)
        if subscriptions.unanswered:  # the time limit is for progress
            self.due = now + self._settings.receipt_timeout

    def refused(self, message: wire.Error, out: list[Effect]) -> bool:
        """Whether the error refuses a whole request: all of its topics or none."""
        topics = [
            topic
            for topic, subscription in self.subscriptions.active.items()
            if message.request and subscription.request == message.request
        ]
        for topic in topics:
            self.subscriptions.refuse(topic)
            out.append(ev.Refused(topic, message.code, message.text))
        return bool(topics)
