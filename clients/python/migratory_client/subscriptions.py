"""Subscriptions: where each topic stands, what is delivered, and what is reported as missing.

The rules:
- The position moves before the application sees a publication, so that whatever its code does next (unsubscribe,
  subscribe again, raise, close) the position is never behind what it was given.
- Publications of a topic are taken from the one link whose receipt was last: while a client moves to another
  broker, the old link goes on delivering until the new one's receipt. What comes twice has a position that is not
  above the last, and is dropped.
- Between two publications no sequence number may be missing unless a receipt named it, or a message says that it
  stands for it (conflation); the client checks, and reports a `hole` when a broker breaks this.
"""

from __future__ import annotations

from migratory_protocol.messages import Message, TopicReceipt, TopicRequest
from migratory_protocol.positions import Position

from migratory_client.events import Deliver, Effect, Receipt


class Subscription:
    """One topic. `next` is the sequence number expected next, 0 while unknown; `floor` the last one that was
    reported missing: with it `position` may stay behind, because no epoch is known for what is gone."""

    __slots__ = ("floor", "link", "next", "position", "request", "snapshot", "topic")

    def __init__(self, topic: str, position: Position | None, snapshot: bool) -> None:
        self.topic = topic
        self.position = position
        self.next = 0 if position is None else position.sequence + 1
        self.floor = 0
        self.snapshot = snapshot  # the latest publication is still awaited
        self.link = 0  # where its publications come from
        self.request = 0  # the unanswered request, 0 when it has its receipt

    def take(self, link: int, message: Message, out: list[Effect]) -> bool:
        """A publication came on `link`. False when it was dropped: nothing that the application should see twice."""
        position = message.position
        last = self.position
        if link != self.link:
            return False
        if last is not None and position <= last:
            if not self.snapshot or position != last:
                return False
            self.snapshot = False
            out.append(Deliver(link, message))
            return True
        sequence = position.sequence
        first = message.first or sequence  # of a conflated topic: what it stands for is not missing
        if not first <= self.next <= sequence:
            if sequence <= self.floor:
                return False  # from before a gap that was reported: too late to undo
            if first > self.next > 0:
                out.append(Receipt(self.topic, "hole", position, last, self.next, first - 1, True))
            elif self.next:
                out.append(Receipt(self.topic, "reset", position, last, 0, 0, True, last))
        self.snapshot = False
        self.position = position
        self.next = sequence + 1
        out.append(Deliver(link, message))
        return True

    def receive(self, link: int, receipt: TopicReceipt, out: list[Effect]) -> None:
        """The broker of `link` says where the topic stands, and what it cannot give."""
        self.link = link
        resumed = self.position is not None
        kind = receipt.receipt
        position = receipt.position
        if kind == "reset":
            before = self.position
            self._stand(position)
            self.snapshot = False
            out.append(Receipt(self.topic, "reset", position, position, 0, 0, resumed, before))
            return
        if not resumed:
            self._stand(position)
            self.snapshot = self.snapshot and position is not None and position.sequence > 0
        if kind == "truncated" and receipt.last >= max(self.next, receipt.first):
            first = max(self.next, receipt.first)
            self.floor = receipt.last
            self.next = receipt.last + 1
            out.append(Receipt(self.topic, "truncated", position, self.position, first, receipt.last, resumed))
        else:  # or truncated below what the other link delivered, or was reported, meanwhile
            out.append(Receipt(self.topic, "complete", position, self.position, 0, 0, resumed))

    def _stand(self, position: Position | None) -> None:
        self.position = position
        self.next = 0 if position is None else position.sequence + 1
        self.floor = 0


class Subscriptions:
    """All topics of one client, and the positions of those that it left."""

    __slots__ = ("_left", "_remembered", "active", "dropped", "unanswered")

    def __init__(self, remembered: int) -> None:
        self.active: dict[str, Subscription] = {}
        self.unanswered = 0  # subscriptions whose receipt is awaited
        self.dropped = 0  # publications that came twice, or for a topic that was left
        self._left: dict[str, Subscription] = {}  # the most recently left last
        self._remembered = remembered

    def want(self, topic: str, after: Position | None, snapshot: bool, fresh: bool) -> Subscription:
        """Begin a subscription; the caller sees to the request."""
        left = self._left.pop(topic, None)
        if left is None or fresh or (after is not None and after != left.position):
            subscription = Subscription(topic, after, snapshot and after is None)
        else:
            subscription = left
        self.active[topic] = subscription
        return subscription

    def drop(self, topic: str, seen: Position | None) -> bool:
        """End a subscription and remember where it stood. False when there is none; `seen` is noted all the same."""
        subscription = self.active.pop(topic, None)
        if subscription is None:
            if seen is not None and topic in self._left and self._left[topic].position != seen:
                self._left[topic] = Subscription(topic, seen, False)
            return False
        self.asked(subscription, 0)
        subscription.link = 0
        if seen is not None and seen != subscription.position:
            subscription = Subscription(topic, seen, False)
        self._left.pop(topic, None)
        if subscription.position is not None and self._remembered:
            self._left[topic] = subscription
            if len(self._left) > self._remembered:
                del self._left[next(iter(self._left))]
        return True

    def refuse(self, topic: str) -> None:
        """The broker does not accept it: nothing to remember."""
        self.asked(self.active.pop(topic), 0)

    def asked(self, subscription: Subscription, request: int) -> None:
        """The request that answers for this subscription from now on; 0: answered."""
        self.unanswered += (request != 0) - (subscription.request != 0)
        subscription.request = request

    def request(self, subscription: Subscription) -> TopicRequest:
        return TopicRequest(subscription.topic, subscription.position, subscription.snapshot)
