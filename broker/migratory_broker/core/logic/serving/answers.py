"""Publications that wait for an answer at their contact broker, for `publishing.py` and `commits.py`, and the answers
to send at the end of the turn.

CONTACT-ACKS-COMMITS: a publication is answered at its commit at this broker (with two copies, a listed broker commits
what it accepts), by the coordinator's reply (duplicates and refusals), or with `retry` when the link to the coordinator
broke, time is up or this broker fences itself. It is never answered because it was numbered. SAME-PAYLOAD: neither a
commit nor a reply answers a publication of another payload, whatever its id.
"""

from __future__ import annotations

from typing import NamedTuple

from migratory_protocol.messages import Ack, Nack
from migratory_protocol.peer import ForwardedPublication, ForwardReplies, ForwardReply, Publication, payload_digest

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import PublishAnswers
from migratory_broker.core.logic.serving.policy import ClientId

PublicationKey = tuple[str, str, int]  # topic, publisher, message id


PENDING_BYTES = 512
"""Bytes of memory of a publication that waits for its answer, besides its payload: the key with its names, and its
places in tables."""


class PendingAnswer(NamedTuple):
    """The clients that wait for an answer to a publication, the coordinator that gives it, and the time until which
    they wait. One object is shared by all publications of a request that take the same route."""

    coordinator: str  # the broker that the publication was forwarded to last, "" for this one
    deadline: float
    clients: tuple[ClientId, ...]  # more than one when several clients sent the same publication


class PendingAnswers:
    """The unanswered publications of this broker's clients, and the answers that this turn has collected for clients
    and for other contact brokers."""

    def __init__(self, ctx: Context) -> None:
        self.ctx = ctx
        # with their payloads, in the order of their deadlines: all wait for the same time
        self.pending: dict[PublicationKey, tuple[PendingAnswer, bytes]] = {}
        self.held = 0  # bytes of memory of `pending`, as they are counted
        self._for_clients: dict[ClientId, list[Ack | Nack]] = {}
        self._for_peers: dict[str, list[ForwardReply]] = {}

    @property
    def has_output(self) -> bool:
        """True if `flush` would send anything."""
        return bool(self._for_clients or self._for_peers)

    def add(self, key: PublicationKey, waiting: PendingAnswer, payload: bytes) -> None:
        """Register a publication that waits for its answer. If one with this key is registered already, `waiting`
        replaces its clients, coordinator and deadline; the caller makes sure that the payload is the same."""
        if key not in self.pending:
            self.held += PENDING_BYTES + len(payload)
        self.pending[key] = waiting, payload

    def _remove(self, key: PublicationKey) -> None:
        """Remove a publication that waits, and subtract its bytes. It must be registered."""
        _, payload = self.pending.pop(key)
        self.held -= PENDING_BYTES + len(payload)

    def acknowledge(self, topic: str, publications: list[Publication]) -> None:
        """Queue an acknowledgement of each of the committed `publications` for which a client of this broker waits with
        the same payload, or a `retry` while this broker is fenced. These wait no more; the others are ignored."""
        pending = self.pending
        for entry in publications:
            number = entry.id
            if number and (found := pending.get((topic, entry.publisher, number))) is not None:
                waiting, payload = found
                if payload == entry.payload:  # else the coordinator refuses it
                    self._remove((topic, entry.publisher, number))
                    self._acknowledge(waiting, Ack(topic, entry.publisher, number, entry.position))

    def replied(self, peer: str, reply: ForwardReply) -> None:
        """Answer the publication that `peer` has replied to, if that is the broker to which it was forwarded last.
        Otherwise ignore the reply."""
        found = self.pending.get((reply.topic, reply.publisher, reply.id))
        if found is not None and found[0].coordinator == peer:
            self.resolve(reply)

    def resolve(self, reply: ForwardReply) -> None:
        """Queue the answer of a coordinator's reply for each client that waits for the publication, which then waits no
        more. Ignore the reply if no client waits, or if it is about another payload under the same id. While this
        broker is fenced, an acknowledgement becomes a `retry`."""
        topic, publisher, number = reply.topic, reply.publisher, reply.id
        found = self.pending.get((topic, publisher, number))
        if found is None:
            return
        waiting, payload = found
        if reply.digest and reply.digest != payload_digest(payload):
            return  # a late reply to an earlier use of the id
        self._remove((topic, publisher, number))
        if not reply.code:
            self._acknowledge(waiting, Ack(topic, publisher, number, reply.position))
            return
        retry_after = reply.retry_after if reply.code == "retry" else None
        for client in waiting.clients:
            self._add(client, Nack(topic, publisher, number, reply.code, reply.text, retry_after))

    def _acknowledge(self, waiting: PendingAnswer, ack: Ack) -> None:
        """Queue an acknowledgement for all clients that wait for a publication. FENCED-SILENT: while this broker is
        fenced, queue a `retry` instead."""
        answer: Ack | Nack = ack
        if self.ctx.fenced:  # FENCED-SILENT: no acknowledgement from a broker that is cut off
            retry_after = self.ctx.config.publish_retry_after
            answer = Nack(ack.topic, ack.publisher, ack.id, "retry", "this broker is cut off", retry_after)
        for client in waiting.clients:
            self._add(client, answer)

    def reject(self, client: ClientId, publication: ForwardedPublication, code: str, text: str) -> None:
        """Queue a refusal of a publication of `client`, which was sent to no coordinator, with this error code and
        reason. A QoS 0 publication gets no answer."""
        if publication.id:
            retry_after = self.ctx.config.publish_retry_after if code == "retry" else None
            self._add(client, Nack(publication.topic, publication.publisher, publication.id, code, text, retry_after))

    def _add(self, client: ClientId, answer: Ack | Nack) -> None:
        answers = self._for_clients.get(client)
        if answers is None:
            self._for_clients[client] = [answer]
        else:
            answers.append(answer)

    def reply(self, contact: str | None, reply: ForwardReply) -> None:
        """Queue this coordinator's reply about a publication for its contact broker. If `contact` is None, this broker
        is the contact: resolve the publication of its own clients."""
        if contact is None:
            self.resolve(reply)
        else:
            self._for_peers.setdefault(contact, []).append(reply)

    # ---- giving up -------------------------------------------------------------------------------------------

    def retry_all(self, text: str) -> None:
        """Queue a `retry`, with the reason `text`, for every publication that waits. None waits afterwards."""
        self._retry(list(self.pending), text)

    def peer_down(self, peer: str) -> None:
        """Queue a `retry` for all publications that were forwarded to `peer`: they may be lost, and their publishers
        send them again with a fresh mark. Drop the replies that were to be sent to `peer`."""
        self._for_peers.pop(peer, None)
        unanswered = [key for key, (waiting, _) in self.pending.items() if waiting.coordinator == peer]
        self._retry(unanswered, "the link to the coordinator broke")

    def tick(self) -> None:
        """Queue a `retry` for all publications that have waited for `publish_wait`."""
        expired = []
        for key, (waiting, _) in self.pending.items():
            if waiting.deadline > self.ctx.now:
                break
            expired.append(key)
        self._retry(expired, "no answer from the coordinator in time")

    def _retry(self, keys: list[PublicationKey], text: str) -> None:
        """Queue a `retry`, with the reason `text`, for the clients that wait for these publications, which then wait no
        more."""
        retry_after = self.ctx.config.publish_retry_after
        for topic, publisher, number in keys:
            self.resolve(ForwardReply(topic, publisher, number, "retry", None, text, retry_after))

    def flush(self) -> None:
        """Send the answers that were queued in this turn: one effect for each client, one message for each other
        contact broker."""
        if self._for_clients:
            for_clients, self._for_clients = self._for_clients, {}
            for (edge, reference), answers in for_clients.items():
                self.ctx.emit(PublishAnswers(edge, reference, answers))
        if self._for_peers:
            for_peers, self._for_peers = self._for_peers, {}
            for peer, replies in for_peers.items():
                self.ctx.send(peer, ForwardReplies(replies))
