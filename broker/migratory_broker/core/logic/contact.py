"""The contact broker's duties towards publishers: forward, and answer when a publication is committed here.

CONTACT-ACKS-COMMITS: a publication is answered at its commit at this broker (with two copies and listed: at its own
accept), by the coordinator's answer (duplicates and refusals), or with `retry` when the link went or time is up. Never
because it was numbered. Nothing is held for later or sent again from here: marks must be the publisher's, and fresh.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from migratory_protocol.peer import Answer, Answers, Forward, Forwarded, Publication
from migratory_protocol.topics import topic_group

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import Fanout, PublishAnswer, PublishRequest
from migratory_broker.core.logic.gossip import Gossip
from migratory_broker.core.logic.makers import Makers

if TYPE_CHECKING:
    from migratory_broker.core.logic.authorizer import Authorizer
    from migratory_broker.core.logic.group import Group

Key = tuple[str, str, int]  # topic, publisher, id


@dataclass(slots=True)
class Pending:
    via: str  # the coordinator it was sent to, "" for this broker
    deadline: float
    references: list[tuple[int, int]]  # (edge, reference)


class Contact:
    def __init__(self, ctx: Context, gossip: Gossip, authorizer: Authorizer) -> None:
        self.ctx = ctx
        self.gossip = gossip
        self.authorizer = authorizer
        self.makers = Makers(ctx)
        self.groups: list[Group] = []
        self.pending: dict[Key, Pending] = {}  # all wait equally long: in the order of their deadlines
        self._forwards: dict[str, dict[int, list[Forwarded]]] = {}  # peer -> group -> publications of this turn
        self._answers: dict[str, list[Answer]] = {}  # peer -> answers of this turn

    # ---- from an edge ----------------------------------------------------------------------------------------

    def publish(self, event: PublishRequest) -> None:
        ctx = self.ctx
        if refusal := self.authorizer.publish(event):
            self._answer(event, "not_allowed", refusal)
            return
        if ctx.fenced:
            self._retry(event, "this broker is cut off from the others")
            return
        number = topic_group(event.topic, len(self.groups))
        forwarded = Forwarded(
            event.topic, event.payload, event.qos, event.publisher, event.id if event.qos else 0, event.mark, event.sent
        )
        owned = self.groups[number].reign
        reign = owned if owned is not None and owned.active else None
        via = "" if reign is not None else self.gossip.coordinator(number)
        if reign is None and via not in ctx.links:
            self._retry(event, f"topic group {number} has no coordinator now")
            return
        replica = self.groups[number].replica
        if replica.synced and event.topic not in replica.topics:  # every broker has every topic
            refusal = self.makers.admit(event.topic, (event.edge, event.reference))
            if refusal:
                self._answer(event, "too_many_topics", refusal)
                return
        if event.qos:
            key = (event.topic, event.publisher, event.id)
            pending = self.pending.get(key)
            if pending is None:
                if len(self.pending) >= ctx.config.max_pending:
                    self._retry(event, "too many publications wait for their copies")
                    return
                deadline = ctx.now + ctx.config.publish_wait
                self.pending[key] = Pending(via, deadline, [(event.edge, event.reference)])
            else:
                pending.via = via
                pending.references.append((event.edge, event.reference))
        if reign is not None:
            reign.sequencer.take(forwarded, None)
        else:
            self._forwards.setdefault(via, {}).setdefault(number, []).append(forwarded)

    def _retry(self, event: PublishRequest, text: str) -> None:
        self._answer(event, "retry", text, self.ctx.config.publish_retry_after)

    def _answer(self, event: PublishRequest, code: str, text: str, retry_after: float = 0.0) -> None:
        if event.qos:
            self.ctx.emit(
                PublishAnswer(
                    event.edge, event.reference, event.topic, event.publisher, event.id, code, None, text, retry_after
                )
            )

    # ---- commits and answers ---------------------------------------------------------------------------------

    def committed(self, topic: str, publications: list[Publication]) -> None:
        """Committed at this broker: to every edge, and acknowledged to the publishers that wait here."""
        self.ctx.emit(Fanout(topic, tuple(publications)))
        self.ctx.committed += len(publications)
        if self.pending:
            for entry in publications:
                if entry.id and (pending := self.pending.pop((topic, entry.publisher, entry.id), None)) is not None:
                    self._resolve(pending, Answer(topic, entry.publisher, entry.id, "", entry.position))

    def resolve(self, answer: Answer) -> None:
        pending = self.pending.pop((answer.topic, answer.publisher, answer.id), None)
        if pending is not None:
            self._resolve(pending, answer)

    def _resolve(self, pending: Pending, answer: Answer) -> None:
        if self.ctx.fenced and not answer.code:  # FENCED-SILENT: no acknowledgement from a broker that is cut off
            wait = self.ctx.config.publish_retry_after
            answer = Answer(answer.topic, answer.publisher, answer.id, "retry", None, "this broker is cut off", wait)
        for edge, reference in pending.references:
            self.ctx.emit(
                PublishAnswer(
                    edge,
                    reference,
                    answer.topic,
                    answer.publisher,
                    answer.id,
                    answer.code,
                    answer.position,
                    answer.text,
                    answer.retry_after,
                )
            )

    def answer_from(self, contact: str | None, answer: Answer) -> None:
        """The coordinator (this broker) answers to a contact: another, or this one."""
        if contact is None:
            self.resolve(answer)
        else:
            self._answers.setdefault(contact, []).append(answer)

    # ---- between brokers -------------------------------------------------------------------------------------

    def forwarded(self, peer: str, message: Forward) -> None:
        """Publications from their contact. Not the coordinator, or cut off: the publisher tries again."""
        if not 0 <= message.group < len(self.groups):
            return
        reign = self.groups[message.group].reign
        wait = self.ctx.config.publish_retry_after
        for publication in message.publications:
            if reign is not None and reign.active and not self.ctx.fenced:
                reign.sequencer.take(publication, peer)
            elif publication.qos:
                self.answer_from(
                    peer,
                    Answer(
                        publication.topic,
                        publication.publisher,
                        publication.id,
                        "retry",
                        text="the coordinator is changing",
                        retry_after=wait,
                    ),
                )

    def answers(self, message: Answers) -> None:
        for answer in message.answers:
            self.resolve(answer)

    def peer_down(self, peer: str) -> None:
        """What went to that coordinator may be lost: its publishers send it again, freshly marked."""
        self._forwards.pop(peer, None)
        self._answers.pop(peer, None)
        for topic, publisher, number in [key for key, pending in self.pending.items() if pending.via == peer]:
            self._give_back(topic, publisher, number, "the link to the coordinator broke")

    def give_back_all(self, text: str) -> None:
        for topic, publisher, number in list(self.pending):
            self._give_back(topic, publisher, number, text)

    def _give_back(self, topic: str, publisher: str, number: int, text: str) -> None:
        wait = self.ctx.config.publish_retry_after
        self.resolve(Answer(topic, publisher, number, "retry", None, text, wait))

    def tick(self) -> None:
        self.makers.tick(self._exists)
        late = []
        for key, pending in self.pending.items():
            if pending.deadline > self.ctx.now:
                break
            late.append(key)
        for key in late:
            self._give_back(*key, "no answer from the coordinator in time")

    def _exists(self, topic: str) -> bool:
        return topic in self.groups[topic_group(topic, len(self.groups))].replica.topics

    def flush(self) -> None:
        if not (self._forwards or self._answers):
            return
        forwards, self._forwards = self._forwards, {}
        for peer, groups in forwards.items():
            for group, publications in groups.items():
                self.ctx.send(peer, Forward(group, publications))
        answers, self._answers = self._answers, {}
        for peer, list_ in answers.items():
            self.ctx.send(peer, Answers(list_))
