"""Publishing with QoS 1: what is waiting for its answer, and when it is sent again.

The publisher's side of docs/replication.md, "Normal case", 1 and 2:
- Ids rise by one per topic, from 1; an id is issued once and means one payload.
- Every sending carries the *mark*: the lowest issued id of the topic that is neither answered nor given up, taken at
  that very sending. It is the key of the first waiting entry, computed by `_publish` and stored nowhere.
- After `gap`, `retry`, silence, a new link, a give-up or a final refusal all waiting ids of the topic are sent again
  from the lowest: the coordinator takes an id only behind the one before, or as the mark. The first ones at once, each
  answer brings two more: thousands that are sent again at each `retry` keep a busy broker from ever answering.
- Giving up is final: the id leaves `waiting`, and answers to ids that do not wait are ignored.
- The last id of a topic is kept for ever: an id used twice would be answered as a repeat, and its payload lost.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import inf

from migratory_protocol import limits
from migratory_protocol.codec import JSON, Codec
from migratory_protocol.errors import GAP, RETRY, TOO_LARGE
from migratory_protocol.messages import LARGEST_INTEGER, Ack, ClientMessage, Nack, Publish
from migratory_protocol.topics import BadTopic, check_topic
from msgspec import Struct

from migratory_client.events import Answered, Effect, Failed, Send, Submit
from migratory_client.settings import Settings

_RETRY_WAIT = 0.1  # seconds, when a `retry` names none
_SHORTEST_WAIT = 0.01  # seconds, whatever a `retry` names
RESENT = 64  # ids that a resend sends at once
_GROWTH = 6  # times as long in JSON as it is, at most: a control character becomes an escape
_GAP_WAIT = 0.2  # seconds between two resends for `gap`: those that answer the sending before call for no other one


class Waiting(Struct):
    """A publication that was issued and has no answer."""

    ticket: object
    payload: bytes
    sent: float | None
    until: float  # then it is given up


class Queue:
    """The waiting publications of one topic, by id in rising order."""

    __slots__ = ("held", "later", "pause", "quiet_until", "resend_at", "topic", "urgent", "waiting")

    def __init__(self, topic: str, resend_at: float, pause: float) -> None:
        self.topic = topic
        self.waiting: dict[int, Waiting] = {}
        self.resend_at = resend_at
        self.pause = pause  # the present wait for an answer; doubles while there is none
        self.held = False  # the broker asked for patience: new ones wait for the resend, too
        self.urgent = False  # a resend is due that an answer must not put off
        self.later: deque[int] = deque()  # ids that the last resend left for its answers, rising; new ones go behind
        self.quiet_until = 0.0  # a gap was served by a resend just now


class Publisher:
    """All topics of one publisher. Its methods append effects; `deadline` is the earliest moment at which `tick` may
    have something to do. `codec`: the one that its messages leave in."""

    __slots__ = ("_codec", "_last", "_settings", "deadline", "name", "queues", "resends", "waiting")

    def __init__(self, name: str, settings: Settings, codec: Codec) -> None:
        self.name = name
        self._settings = settings
        self._codec = codec
        self._last: dict[str, int] = {}  # topic -> last issued id
        self.queues: dict[str, Queue] = {}  # topics with something waiting
        self.waiting = 0
        self.resends = 0
        self.deadline = inf

    def offer(self, event: Submit, link: int, limit: int, now: float, out: list[Effect]) -> None:
        """A publication of the application's: taken, or answered at once. The broker takes `limit` bytes of payload."""
        try:
            check_topic(event.topic)
        except BadTopic as error:
            out.append(Failed(event.ticket, error.code, str(error)))
            return
        if too_large := self._too_large(event.topic, event.payload, limit):
            out.append(Failed(event.ticket, TOO_LARGE, too_large))
        elif event.qos == 0 and link:
            out.append(Send(link, [Publish(event.topic, event.payload, sent=event.sent)]))
            out.append(Answered(event.ticket, None))
        elif event.qos == 0:
            out.append(Failed(event.ticket, "not_connected", "QoS 0 is not kept for later, and no broker is there"))
        elif self.waiting >= self._settings.max_waiting:
            text = f"{self.waiting} publications are waiting for their answers already"
            out.append(Failed(event.ticket, "too_many_waiting", text))
        else:
            self.submit(event, link, now, out)

    def submit(self, event: Submit, link: int, now: float, out: list[Effect]) -> None:
        """Issue an id and send it, when there is a link (`link` not 0) and nothing holds the topic."""
        topic = event.topic
        number = self._last[topic] = self._last.get(topic, 0) + 1
        queue = self.queues.get(topic)
        if queue is None:
            pause = self._settings.ack_timeout
            queue = self.queues[topic] = Queue(topic, now + pause, pause)
            self.deadline = min(self.deadline, queue.resend_at)
        until = now + self._settings.publish_timeout
        self.deadline = min(self.deadline, until)
        queue.waiting[number] = waiting = Waiting(event.ticket, event.payload, event.sent, until)
        self.waiting += 1
        if queue.later:
            queue.later.append(number)
        elif link and not queue.held:
            out.append(Send(link, [self._publish(queue, number, waiting)]))

    def answered(self, ack: Ack, link: int, now: float, out: list[Effect]) -> None:
        queue = self.queues.get(ack.topic)
        if queue is None or ack.publisher != self.name or ack.id not in queue.waiting:
            return  # given up, or a second answer to a second sending
        out.append(Answered(self._remove(queue, ack.id).ticket, ack.position))
        queue.pause = self._settings.ack_timeout
        if not queue.held and not queue.urgent:
            queue.resend_at = now + queue.pause
            if queue.later and link:
                self._go_on(queue, link, out)

    def refused(self, nack: Nack, link: int, now: float, out: list[Effect]) -> None:
        queue = self.queues.get(nack.topic)
        if queue is None or nack.publisher != self.name or nack.id not in queue.waiting:
            return
        if nack.code == GAP:
            # Everything that was sent after a missing id is answered `gap`: one resend serves them all.
            queue.urgent = True
            self._resend_at(queue, max(now, queue.quiet_until))
        elif nack.code == RETRY:
            queue.held = True
            wait = _RETRY_WAIT if nack.retry_after is None else nack.retry_after
            self._resend_at(queue, now + min(max(wait, _SHORTEST_WAIT), self._settings.resend_cap))
        else:
            out.append(Failed(self._remove(queue, nack.id).ticket, nack.code, nack.text))
            self._resend_at(queue, now)  # the later ones wait behind an id that will never come
        self.tick(link, now, out)

    def give_up(self, ticket: object, link: int, now: float, out: list[Effect]) -> None:
        """The application gave up. No effect when the ticket is not waiting."""
        for queue in self.queues.values():
            for number, waiting in queue.waiting.items():
                if waiting.ticket is ticket:
                    self._remove(queue, number)
                    self._resend_at(queue, now)
                    self.tick(link, now, out)
                    return

    def resend_all(self, link: int, limit: int, now: float, out: list[Effect]) -> None:
        """A new link stands; its broker takes payloads of at most `limit` bytes."""
        for queue in list(self.queues.values()):
            for number, waiting in list(queue.waiting.items()):
                if too_large := self._too_large(queue.topic, waiting.payload, limit):
                    self._remove(queue, number)
                    out.append(Failed(waiting.ticket, TOO_LARGE, too_large))
            queue.pause = self._settings.ack_timeout
            self._resend_at(queue, now)
        self.tick(link, now, out)

    def fail_all(self, code: str, text: str, out: list[Effect]) -> None:
        for queue in self.queues.values():
            out.extend(Failed(waiting.ticket, code, text) for waiting in queue.waiting.values())
        self.queues.clear()
        self.waiting = 0
        self.deadline = inf

    def tick(self, link: int, now: float, out: list[Effect]) -> None:
        """Give up what is too old, send again what is due. Without a link only the former."""
        if now < self.deadline:
            return
        self.deadline = inf
        for queue in list(self.queues.values()):
            self._expire(queue, now, out)
            if not queue.waiting:
                continue
            if link and queue.resend_at <= now:
                self._resend(queue, link, now, out)
            self.deadline = min(self.deadline, next(iter(queue.waiting.values())).until)
            if link:
                self.deadline = min(self.deadline, queue.resend_at)

    def _expire(self, queue: Queue, now: float, out: list[Effect]) -> None:
        expired = []
        for number, waiting in queue.waiting.items():
            if waiting.until > now:
                break
            expired.append(number)
        for number in expired:
            ticket = self._remove(queue, number).ticket
            seconds = self._settings.publish_timeout
            text = f"no answer within {seconds:g} s; the publication may still appear, never after a later one"
            out.append(Failed(ticket, "timeout", text))
        if expired:
            queue.resend_at = now

    def _resend(self, queue: Queue, link: int, now: float, out: list[Effect]) -> None:
        messages: list[ClientMessage] = [
            self._publish(queue, number, waiting) for number, waiting in queue.waiting.items()
        ]
        del messages[RESENT:]
        out.append(Send(link, messages))
        queue.later = deque(islice(queue.waiting, RESENT, None))
        self.resends += 1
        queue.held = queue.urgent = False
        queue.quiet_until = now + _GAP_WAIT
        queue.resend_at = now + queue.pause
        queue.pause = min(queue.pause * 2, self._settings.resend_cap)

    def _go_on(self, queue: Queue, link: int, out: list[Effect]) -> None:
        """An answer came: the next two of those that a resend left."""
        messages: list[ClientMessage] = []
        while queue.later and len(messages) < 2:
            number = queue.later.popleft()
            if (waiting := queue.waiting.get(number)) is not None:  # it may be answered, from an earlier sending
                messages.append(self._publish(queue, number, waiting))
        if messages:
            out.append(Send(link, messages))

    def _publish(self, queue: Queue, number: int, waiting: Waiting) -> Publish:
        mark = next(iter(queue.waiting))
        return Publish(queue.topic, waiting.payload, 1, self.name, number, mark, waiting.sent)

    def _remove(self, queue: Queue, number: int) -> Waiting:
        waiting = queue.waiting.pop(number)
        self.waiting -= 1
        if not queue.waiting:
            del self.queues[queue.topic]
        return waiting

    def _resend_at(self, queue: Queue, moment: float) -> None:
        queue.resend_at = moment
        self.deadline = min(self.deadline, moment)

    def _too_large(self, topic: str, payload: bytes, limit: int) -> str:
        """Why the broker does not take it, "" when it does. A message that is too long ends the link, whatever else
        waits on it, and would be sent again on the next."""
        if len(payload) > limit:
            return f"the payload has {len(payload)} bytes; this cluster takes at most {limit}"
        longest = limit + limits.ENVELOPE
        if self._codec is JSON and len(payload) * _GROWTH > limit:
            size = len(JSON.encode(Publish(topic, payload, 1, self.name, LARGEST_INTEGER, LARGEST_INTEGER, 1e12)))
            if size > longest:
                return (
                    f"the publication has {size} bytes in JSON, where payloads that are no plain text grow; this "
                    f"cluster takes at most {longest}"
                )
        return ""
