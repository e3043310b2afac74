"""Publishing with QoS 1, for `ClientCore`: publications that await their answers, and when they are sent again.

The publisher's side of docs/concepts/replication.md, "Normal case":

- Ids rise by one per topic, from 1. An id is issued once and stands for one payload.
- Every publication carries the *mark*: the lowest issued id of its topic that is neither answered nor given up, at the
  time of this sending. It is the first key of `TopicQueue.pending`. `_message` computes it, and nothing stores it.
- After `gap`, `retry`, a timeout, a new link, a give-up or a final refusal, all pending ids of the topic are sent again
  from the lowest, because the coordinator accepts an id only after the one before it, or as the mark. The first ones
  are sent at once, and each answer sends two more. To send thousands again at each `retry` would keep a busy broker
  from ever answering.
- After `rate_limited` nothing is sent until the broker reads on. It refuses nothing then, so nothing is sent again.
- On a new link, and with a new token, the broker may refuse what it accepted before. So a publication that was sent
  before and is refused then fails with `outcome_unknown`, except for the codes of the coordinator
  (`_COORDINATOR_CODES`).
- Giving up is final: the id leaves `pending`, and answers to ids that are not pending are ignored.
- The last id of a topic is remembered for ever: an id used twice would be answered as a repeat, and its payload lost.
"""

from __future__ import annotations

from collections import deque
from itertools import islice
from math import inf

from migratory_protocol import limits
from migratory_protocol.codec import JSON, Codec
from migratory_protocol.errors import GAP, ID_REUSED, ID_TOO_HIGH, OUTCOME_UNKNOWN, RETRY, TOO_LARGE
from migratory_protocol.messages import LARGEST_INTEGER, LARGEST_SECONDS, Ack, ClientMessage, Nack, Publish
from migratory_protocol.topics import BadTopic, check_topic

from migratory_client.core.events import Acknowledged, Effect, PublishFailed, Send, Submit
from migratory_client.core.settings import Settings

_DEFAULT_RETRY_AFTER = 0.1
"""Seconds until a resend after a `retry` that names no time."""

_MIN_RETRY_AFTER = 0.01
"""The shortest time in seconds until a resend, whatever a `retry` names."""

RESEND_WINDOW = 64
"""The number of ids that a resend sends at once. The others follow with the answers."""

_GAP_RESEND_INTERVAL = 0.2
"""Seconds between two resends for `gap`. Further `gap` answers within this time are about what was sent before the
resend."""

_COORDINATOR_CODES = frozenset({ID_REUSED, ID_TOO_HIGH, OUTCOME_UNKNOWN})
"""The codes with which the coordinator says what it knows about the message id. It checks the id for no other
refusal."""

_JSON_GROWTH = 6
"""The largest factor by which a payload grows in JSON: a control character becomes an escape of six characters."""


def _sendable(sent: float | None) -> float | None:
    """Return a wall clock time if the protocol allows it, else None: a clock that was never set may be before 1970."""
    return sent if sent is not None and 0 <= sent <= LARGEST_SECONDS else None


class UnansweredPublication:
    """A publication that has an id and no answer yet. After `expires_at`, in seconds of the core's clock, it is given
    up. `sent` is the publisher's wall clock, in seconds, for its subscribers; None without."""

    __slots__ = ("access", "expires_at", "payload", "sent", "ticket")

    def __init__(self, ticket: object, payload: bytes, sent: float | None, expires_at: float) -> None:
        self.ticket = ticket
        self.payload = payload
        self.sent = sent
        self.expires_at = expires_at
        self.access = 0  # `Publisher.access` when it was sent for the first time; 0: it was not sent yet


class TopicQueue:
    """The pending publications of one topic, by id in rising order, and when they are sent again: at `resend_at`, a
    time of the core's clock. `ack_timeout` is in seconds."""

    __slots__ = (
        "ack_timeout", "backing_off", "deferred", "gap_resend_after", "must_resend", "pending", "resend_at", "topic",
    )  # fmt: skip

    def __init__(self, topic: str, resend_at: float, ack_timeout: float) -> None:
        self.topic = topic
        self.pending: dict[int, UnansweredPublication] = {}
        self.resend_at = resend_at
        self.ack_timeout = ack_timeout  # the current wait for an answer; doubles while none arrives
        self.backing_off = False  # after `retry`: new publications wait for the resend, too
        self.must_resend = False  # after `gap`: an answer must not postpone the resend
        self.deferred: deque[int] = deque()  # ids that a resend left for its answers, or a pause; new ones follow
        self.gap_resend_after = 0.0  # no resend for `gap` before


class Publisher:
    """The QoS 1 publications of one publisher in all topics. Methods append effects to `out`. Their `link` is the
    number of the current link, 0 without one. `deadline` is the earliest time at which `tick` may have something to do.
    `codec` is that of the driver: the size of a message depends on it."""

    __slots__ = (
        "_codec", "_last", "_settings", "access", "deadline", "duplicate_window", "name", "paused_until", "queues",
        "resends", "waiting",
    )  # fmt: skip

    def __init__(self, name: str, settings: Settings, codec: Codec) -> None:
        self.name = name
        self._settings = settings
        self._codec = codec
        self._last: dict[str, int] = {}  # topic -> last issued id
        self.queues: dict[str, TopicQueue] = {}  # topics with a pending publication
        self.waiting = 0  # pending publications of all topics
        self.resends = 0  # resends of a topic so far, each of up to `RESEND_WINDOW` publications
        self.access = 0  # the links and new tokens so far; each may change what the broker refuses
        self.deadline = inf
        self.paused_until = 0.0  # the broker reads nothing before: a rate is reached
        self.duplicate_window = inf  # seconds for which the cluster recognises a repeat, by its `welcome`

    def submit(self, event: Submit, link: int, max_payload: int, now: float, out: list[Effect]) -> None:
        """Publish for the application. QoS 0 is sent and completed at once, QoS 1 becomes pending. `max_payload` is the
        broker's limit in bytes.

        End the publication with `PublishFailed` at once when its topic is malformed, when it is too large, for QoS 0
        without a connection, and for QoS 1 when `Settings.max_waiting` publications are pending.
        """
        try:
            check_topic(event.topic)
        except BadTopic as error:
            out.append(PublishFailed(event.ticket, error.code, str(error)))
            return
        if too_large := self._too_large(event.topic, event.payload, max_payload):
            out.append(PublishFailed(event.ticket, TOO_LARGE, too_large))
        elif event.qos == 0 and link:
            out.append(Send(link, [Publish(event.topic, event.payload, sent=_sendable(event.sent))]))
            out.append(Acknowledged(event.ticket, None))
        elif event.qos == 0:
            text = "not connected to a broker, and QoS 0 publications are not stored; retry, or publish with QoS 1"
            out.append(PublishFailed(event.ticket, "not_connected", text))
        elif self.waiting >= self._settings.max_waiting:
            text = f"{self.waiting} publications await their answers, which is the limit; await some of them first"
            out.append(PublishFailed(event.ticket, "too_many_waiting", text))
        else:
            self._enqueue(event, link, now, out)

    def _enqueue(self, event: Submit, link: int, now: float, out: list[Effect]) -> None:
        """Issue an id and make the publication pending. Send it, unless there is no link, the broker's pause lasts, the
        topic waits after a `retry`, or earlier publications of the topic are still to be sent again."""
        topic = event.topic
        number = self._last[topic] = self._last.get(topic, 0) + 1
        queue = self.queues.get(topic)
        if queue is None:
            ack_timeout = self._settings.ack_timeout
            queue = self.queues[topic] = TopicQueue(topic, max(now, self.paused_until) + ack_timeout, ack_timeout)
            self.deadline = min(self.deadline, queue.resend_at)
        expires_at = now + self._settings.publish_timeout
        self.deadline = min(self.deadline, expires_at)
        queue.pending[number] = publication = UnansweredPublication(
            event.ticket, event.payload, _sendable(event.sent), expires_at
        )
        self.waiting += 1
        if queue.deferred or (link and now < self.paused_until and not queue.backing_off):
            queue.deferred.append(number)
        elif link and not queue.backing_off:
            out.append(Send(link, [self._message(queue, number, publication, now)]))

    def accept_ack(self, ack: Ack, link: int, now: float, out: list[Effect]) -> None:
        """Complete a publication that the broker stored, and send the next two of its topic that a resend or a pause
        has left out. Send none of them during a pause, or while the topic waits for another resend. Ignore an id that
        is not pending, or of another publisher."""
        queue = self.queues.get(ack.topic)
        if queue is None or ack.publisher != self.name or ack.id not in queue.pending:
            return  # given up, or a second answer to a second sending
        out.append(Acknowledged(self._remove(queue, ack.id).ticket, ack.position))
        queue.ack_timeout = self._settings.ack_timeout
        if not queue.backing_off and not queue.must_resend:
            queue.resend_at = max(now, self.paused_until) + queue.ack_timeout
            if queue.deferred and link and now >= self.paused_until:
                self._send_deferred(queue, link, now, out, 2)

    def accept_nack(self, nack: Nack, link: int, now: float, out: list[Effect]) -> None:
        """Handle a refusal. After `gap`, send the topic's pending publications again at once, but not within
        `_GAP_RESEND_INTERVAL` of the topic's last resend. After `retry`, do so after the seconds that it names, at most
        `Settings.resend_cap`, and send nothing of the topic before. After any other code, end the publication with
        `PublishFailed` and send the others of its topic again. Ignore an id that is not pending, or of another
        publisher."""
        queue = self.queues.get(nack.topic)
        if queue is None or nack.publisher != self.name or nack.id not in queue.pending:
            return
        if nack.code == GAP:
            # Everything that was sent after a missing id is answered with `gap`: one resend serves them all.
            queue.must_resend = True
            self._schedule_resend(queue, max(now, queue.gap_resend_after))
        elif nack.code == RETRY:
            queue.backing_off = True
            retry_after = _DEFAULT_RETRY_AFTER if nack.retry_after is None else nack.retry_after
            self._schedule_resend(queue, now + min(max(retry_after, _MIN_RETRY_AFTER), self._settings.resend_cap))
        else:
            out.append(self._refused(self._remove(queue, nack.id), nack.code, nack.text))
            self._schedule_resend(queue, now)  # the later ids wait behind one that will never be published
        self.tick(link, now, out)

    def pause(self, seconds: float, now: float) -> None:
        """Send no QoS 1 publication for `seconds`, at most `Settings.backoff_cap`, because the broker reads nothing
        before. The broker answers later what it has received already, so the wait for those answers begins anew when
        the pause ends."""
        self.paused_until = now + min(seconds, self._settings.backoff_cap)
        for queue in self.queues.values():
            queue.resend_at = max(queue.resend_at, self.paused_until + queue.ack_timeout)
        self.deadline = min(self.deadline, self.paused_until)

    def give_up(self, ticket: object, link: int, now: float, out: list[Effect]) -> None:
        """Drop the publication with this ticket without an effect for it, and send the others of its topic again.
        Nothing happens if it is not pending."""
        for queue in self.queues.values():
            for number, publication in queue.pending.items():
                if publication.ticket is ticket:
                    self._remove(queue, number)
                    self._schedule_resend(queue, now)
                    self.tick(link, now, out)
                    return

    def resend_all(self, link: int, max_payload: int, now: float, out: list[Effect]) -> None:
        """Send all pending publications on a new link, the first `RESEND_WINDOW` of each topic at once and the others
        with the answers. End those above the broker's limit, `max_payload` in bytes, with `PublishFailed`. Forget a
        pause and the backoff of earlier resends."""
        self.access += 1
        self.paused_until = 0.0
        for queue in list(self.queues.values()):
            for number, publication in list(queue.pending.items()):
                if too_large := self._too_large(queue.topic, publication.payload, max_payload):
                    out.append(self._refused(self._remove(queue, number), TOO_LARGE, too_large))
            queue.ack_timeout = self._settings.ack_timeout
            self._schedule_resend(queue, now)
        self.tick(link, now, out)

    def fail_all(self, code: str, text: str, out: list[Effect]) -> None:
        """End all pending publications with `PublishFailed` of this code and text."""
        for queue in self.queues.values():
            out.extend(PublishFailed(publication.ticket, code, text) for publication in queue.pending.values())
        self.queues.clear()
        self.waiting = 0
        self.deadline = inf

    def tick(self, link: int, now: float, out: list[Effect]) -> None:
        """End expired publications with `PublishFailed`. When there is a link and no pause, send again what is due,
        and, after a pause, what it held back. Update `deadline`. Before `deadline` nothing happens."""
        if now < self.deadline:
            return
        self.deadline = self.paused_until if now < self.paused_until else inf
        resumes = 0.0 < self.paused_until <= now
        if resumes:
            self.paused_until = 0.0
        for queue in list(self.queues.values()):
            self._expire(queue, now, out)
            if not queue.pending:
                continue
            if link and queue.resend_at <= now and not self.paused_until:
                self._resend(queue, link, now, out)
            elif link and resumes and queue.deferred and not queue.backing_off:
                self._send_deferred(queue, link, now, out, RESEND_WINDOW)
            self.deadline = min(self.deadline, next(iter(queue.pending.values())).expires_at)
            if link:
                self.deadline = min(self.deadline, max(queue.resend_at, self.paused_until))

    def _expire(self, queue: TopicQueue, now: float, out: list[Effect]) -> None:
        """End the topic's publications whose time is over with `PublishFailed` and the code `timeout`. If there were
        any, a resend of the others is due now."""
        expired = []
        for number, publication in queue.pending.items():
            if publication.expires_at > now:
                break
            expired.append(number)
        for number in expired:
            ticket = self._remove(queue, number).ticket
            seconds = min(self._settings.publish_timeout, self.duplicate_window)
            text = f"no answer within {seconds:g} s; the publication may still appear, never after a later one"
            out.append(PublishFailed(ticket, "timeout", text))
        if expired:
            queue.resend_at = now

    def _resend(self, queue: TopicQueue, link: int, now: float, out: list[Effect]) -> None:
        """Send the topic's first `RESEND_WINDOW` pending publications again, and defer the others until answers arrive.
        The next resend is due after `ack_timeout`, which is doubled afterwards, up to `Settings.resend_cap`."""
        messages: list[ClientMessage] = [
            self._message(queue, number, publication, now)
            for number, publication in islice(queue.pending.items(), RESEND_WINDOW)
        ]
        out.append(Send(link, messages))
        queue.deferred = deque(islice(queue.pending, RESEND_WINDOW, None))
        self.resends += 1
        queue.backing_off = queue.must_resend = False
        queue.gap_resend_after = now + _GAP_RESEND_INTERVAL
        queue.resend_at = now + queue.ack_timeout
        queue.ack_timeout = min(queue.ack_timeout * 2, self._settings.resend_cap)

    def _send_deferred(self, queue: TopicQueue, link: int, now: float, out: list[Effect], count: int) -> None:
        """Send the next `count` publications of the topic that a resend or a pause left out. Answered and expired ones
        are skipped and not counted."""
        messages: list[ClientMessage] = []
        while queue.deferred and len(messages) < count:
            number = queue.deferred.popleft()
            publication = queue.pending.get(number)  # None: answered, from an earlier sending
            if publication is not None and publication.expires_at > now:
                messages.append(self._message(queue, number, publication, now))
        if messages:
            out.append(Send(link, messages))

    def _message(self, queue: TopicQueue, number: int, publication: UnansweredPublication, now: float) -> Publish:
        """Return the message for a pending publication, with the topic's current mark. The first time, record the
        current `access`, and let the publication expire with the cluster's duplicate window at the latest."""
        if not publication.access:
            # Sent again after the duplicate window, it could be stored a second time.
            publication.access = self.access
            publication.expires_at = min(publication.expires_at, now + self.duplicate_window)
            self.deadline = min(self.deadline, publication.expires_at)
        mark = next(iter(queue.pending))
        return Publish(queue.topic, publication.payload, 1, self.name, number, mark, publication.sent)

    def _refused(self, publication: UnansweredPublication, code: str, text: str) -> PublishFailed:
        """Return the effect for a refusal: `outcome_unknown` if the publication was first sent under an earlier
        `access`, because it may be stored then. A code of the coordinator (`_COORDINATOR_CODES`) is passed on in any
        case."""
        if publication.access in (0, self.access) or code in _COORDINATOR_CODES:
            return PublishFailed(publication.ticket, code, text)
        unknown = f"sent again and refused ({code}: {text}); it may have been stored before"
        return PublishFailed(publication.ticket, OUTCOME_UNKNOWN, unknown)

    def _remove(self, queue: TopicQueue, number: int) -> UnansweredPublication:
        """Remove and return a pending publication, and remove its topic's queue with the last one."""
        publication = queue.pending.pop(number)
        self.waiting -= 1
        if not queue.pending:
            del self.queues[queue.topic]
        return publication

    def _schedule_resend(self, queue: TopicQueue, time: float) -> None:
        queue.resend_at = time
        self.deadline = min(self.deadline, time)

    def _too_large(self, topic: str, payload: bytes, max_payload: int) -> str:
        """Return the text of an error if the broker would refuse the message as too long, else "".

        The size is checked here because the broker would close the link, and the message would be sent again on the
        next one.
        """
        if len(payload) > max_payload:
            return f"the payload has {len(payload)} bytes; this cluster takes at most {max_payload}"
        max_message = max_payload + limits.ENVELOPE
        if self._codec is JSON and len(payload) * _JSON_GROWTH > max_payload:
            size = len(JSON.encode(Publish(topic, payload, 1, self.name, LARGEST_INTEGER, LARGEST_INTEGER, 1e12)))
            if size > max_message:
                return (
                    f"the publication has {size} bytes in JSON, where payloads that are no plain text grow; this "
                    f"cluster takes at most {max_message}"
                )
        return ""
