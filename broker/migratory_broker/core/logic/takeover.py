"""A candidate's first half: promises from the source list, and the log that they add up to.

TAKEOVER-SOURCE: only the source list is asked, never the list of a record that was not activated. TAKEOVER-QUORUM:
n - q + 1 answers of it, or its owner's own. TAKEOVER-MERGE: only answers with `synced` of at least the source epoch are
merged; an answer counts when its last part has come. BY-INCARNATION: a link's other end is one life of a broker.
"""

from __future__ import annotations

from migratory_protocol.peer import Broker, Digest, Prepare, Promise, TopicPart

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.records import GroupRecord, Source
from migratory_broker.core.logic.replica import Replica
from migratory_broker.core.logic.snapshot import join


class Preparation:
    def __init__(self, ctx: Context, replica: Replica, record: GroupRecord, source: Source) -> None:
        self.ctx = ctx
        self.replica = replica
        self.record = record
        self.source = source
        self.useful = replica.synced_in(record.history) >= source.epoch
        self._holds: list[Digest] = replica.digest() if self.useful else []
        self.answers: dict[Broker, Promise] = {}  # the last part of each
        self._parts: dict[str, list[TopicPart]] = {}  # peer -> parts so far
        self._topics: dict[Broker, list[TopicPart]] = {}

    def begin(self) -> None:
        me = self.ctx.me
        if me in self.source.members:
            record = self.record
            self.answers[me] = Promise(
                self.replica.group, record.history, record.epoch, self.replica.synced_in(record.history), True, [], []
            )
        for peer in list(self.ctx.links):
            self.ask(peer)

    def ask(self, peer: str) -> None:
        """Ask `peer` for its promise, if the incarnation that is linked is on the source list and has not answered."""
        broker = (peer, self.ctx.links[peer])
        self._parts.pop(peer, None)
        if broker in self.source.members and broker not in self.answers:
            record = self.record
            self.ctx.send(
                peer,
                Prepare(self.replica.group, record.history, record.epoch, self.source.epoch, self.useful, self._holds),
            )

    def forget(self, peer: str) -> None:
        """The link is gone: what had come of an unfinished answer is worth nothing. A finished one is a fact."""
        self._parts.pop(peer, None)

    def promise(self, peer: str, message: Promise) -> None:
        broker = (peer, self.ctx.links[peer])
        if broker not in self.source.members or broker in self.answers:
            return
        parts = self._parts.setdefault(peer, [])
        parts.extend(message.topics)
        if message.last:
            self.answers[broker] = message
            self._topics[broker] = join(self._parts.pop(peer))

    @property
    def enough(self) -> bool:
        return self.source.enough(self.answers)

    def is_useful(self, broker: Broker) -> bool:
        """Whether that answer was synced to the source epoch."""
        answer = self.answers.get(broker)
        return answer is not None and answer.synced >= self.source.epoch

    def adopt(self) -> int:
        """Merge into the replica's log. Returns the number of entries that this broker did not have."""
        replica = self.replica
        if replica.history != self.record.history:
            before = set(replica.topics)
            replica.begin_history(self.record.history, self.record.first)
            replica.tell_reset(before)
        topics: dict[str, list[TopicPart]] = {}
        for broker in sorted(self._topics):
            if self.is_useful(broker):
                for part in self._topics[broker]:
                    topics.setdefault(part.topic, []).append(part)
        had = sum(replica.lasts().values()) if self.useful else 0
        replica.adopt(topics, self.useful)
        return sum(replica.lasts().values()) - had
