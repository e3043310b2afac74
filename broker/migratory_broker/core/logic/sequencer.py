"""The coordinator of an activated epoch: gives positions, counts copies, commits.

NUMBERING: taken = numbered, stored here, sent to everyone who follows, in that order. COMMIT: the q-th largest of the
listed incarnations' accepts, the own store included because the coordinator is listed. A duplicate is acknowledged once
the table position it depends on is committed, never before.
"""

from __future__ import annotations

from itertools import islice
from typing import Protocol

from migratory_protocol.peer import Accept, Answer, Broker, Entries, Forwarded, Publication
from migratory_protocol.positions import Position

from migratory_broker.core.logic.cache import TopicLog
from migratory_broker.core.logic.context import Context, must
from migratory_broker.core.logic.followers import Followers
from migratory_broker.core.logic.records import GroupRecord
from migratory_broker.core.logic.replica import Replica

FORGET_AT_ONCE = 2000
"""Publishers of one group that leave its table in one tick: some milliseconds, and a message of 1 MB at most. A dict is
gone through from its front once: asking for its first entry again and again looks at all that left before."""


class Answering(Protocol):
    def __call__(self, contact: str | None, answer: Answer) -> None:
        """Answer to the contact broker `contact`, None for this one."""


class Sequencer:
    def __init__(
        self, ctx: Context, replica: Replica, record: GroupRecord, followers: Followers, answer: Answering
    ) -> None:
        self.ctx = ctx
        self.replica = replica
        self.record = record
        self.followers = followers
        # With one copy nobody's vote decides anything: the turn's end commits.
        voters = record.members if record.copies > 1 else []
        self.votes: dict[Broker, dict[str, int]] = {broker: {} for broker in voters if broker != record.owner}
        self.waiting_since: float | None = None  # entries wait for their commit, and none committed since
        self._answer = answer
        self._uncommitted: dict[str, TopicLog] = {}
        self._outbox: dict[str, list[Publication]] = {}
        self._forget: list[tuple[str, str]] = []
        self._marks: dict[str, TopicLog] = {}
        self._duplicates: dict[str, list[tuple[int, str | None, Answer]]] = {}
        self._recent: dict[tuple[str, str], float] = {}  # (topic, publisher) -> last publication, oldest first

    def begin(self) -> None:
        """The epoch is activated."""
        for log in self.replica.topics.values():
            for publisher in log.table.rows:
                self._recent[(log.name, publisher)] = self.ctx.now

    # ---- numbering -------------------------------------------------------------------------------------------

    def take(self, publications: list[Forwarded], contact: str | None) -> None:
        """Number them in their order, or answer why not. A new publication is answered by its commit at the contact."""
        replica, ctx = self.replica, self.ctx
        must(replica.promised == replica.synced == self.record.epoch, "NUMBER-PROMISED: promised is the own epoch")
        must(self.record.owner in self.record.members, "OWNER-LISTED: a coordinator is on its own list")
        wall = ctx.wall
        for publication in publications:
            log = self._log(publication, contact)
            if log is not None and self._fits(log, publication, contact, wall):
                entry = Publication(
                    self.record.epoch,
                    log.last + 1,
                    publication.payload,
                    publication.publisher,
                    publication.id,
                    wall,
                    publication.sent,
                )
                replica.append(log, entry)
                self._taken(log, entry)

    def _log(self, publication: Forwarded, contact: str | None) -> TopicLog | None:
        """Of the publication's topic, made if there is none and may be one more."""
        replica = self.replica
        log = replica.topics.get(publication.topic)
        if log is None:
            limit = self.ctx.config.max_topics
            if replica.bounds.topics >= limit:
                self._reject(publication, contact, "too_many_topics", f"the cluster holds {limit} topics, its limit")
                return None
            log = replica.log(publication.topic)
        return log

    def _fits(self, log: TopicLog, publication: Forwarded, contact: str | None, wall: float) -> bool:
        """Whether it is to be numbered; else it was answered, or will be."""
        bounds = self.replica.bounds
        if publication.id:
            verdict = log.table.judge(publication.publisher, publication.id, publication.mark)
            if verdict == "gap":
                self._reject(publication, contact, "gap", "an earlier message id of this publisher is missing")
                return False
            if verdict == "duplicate":
                self._duplicate(log, publication, contact)
                return False
            if publication.publisher not in log.table.rows and bounds.crowded(wall):
                limit = self.ctx.config.max_publishers
                text = f"the cluster remembers {limit} publishers, its limit; one that is silent for long is forgotten"
                self._reject(publication, contact, "retry", text)
                return False
        if bounds.full(log, wall):
            self._reject(publication, contact, "retry", "the cache is full of publications that wait for their copies")
            return False
        return True

    def _taken(self, log: TopicLog, entry: Publication) -> None:
        """It has its position, and leaves with the turn."""
        name, ctx = log.name, self.ctx
        ctx.dirty[self.replica.group] = None
        ctx.published += 1
        if entry.id:
            key = (name, entry.publisher)
            if self._recent.get(key) != ctx.now:  # of several at one moment the order says nothing
                self._recent.pop(key, None)
                self._recent[key] = ctx.now
        outgoing = self._outbox.get(name)
        if outgoing is None:
            self._outbox[name] = [entry]
            self._uncommitted[name] = log
        else:
            outgoing.append(entry)
        if self.waiting_since is None:
            self.waiting_since = ctx.now

    def _reject(self, publication: Forwarded, contact: str | None, code: str, text: str) -> None:
        if publication.qos:
            wait = self.ctx.config.publish_retry_after if code == "retry" else 0.0
            self._answer(
                contact,
                Answer(publication.topic, publication.publisher, publication.id, code, text=text, retry_after=wait),
            )

    def _duplicate(self, log: TopicLog, publication: Forwarded, contact: str | None) -> None:
        """DUPLICATE-WAITS: with its old position while that is cached; else it depends on its publisher's last one."""
        entry = log.find(publication.publisher, publication.id)
        if entry is not None and entry.payload != publication.payload:
            self._reject(
                publication,
                contact,
                "id_reused",
                f"message id {publication.id} of this publisher was used for another payload at {entry.position}",
            )
            return
        last, epoch, sequence = log.table.rows[publication.publisher]
        position = entry.position if entry else Position(epoch, sequence) if publication.id == last else None
        depends = position.sequence if position else sequence
        answer = Answer(log.name, publication.publisher, publication.id, position=position)
        if depends <= log.committed:
            self._answer(contact, answer)
        else:
            self._duplicates.setdefault(log.name, []).append((depends, contact, answer))

    # ---- copies and commits ----------------------------------------------------------------------------------

    def accepted(self, broker: Broker, lasts: list[tuple[str, int]]) -> None:
        votes = self.votes.get(broker)
        if votes is None:  # LISTED-VOTES: a learner's copy is none
            return
        for topic, last in lasts:
            if last > votes.get(topic, 0):
                votes[topic] = last
                if (log := self._uncommitted.get(topic)) is not None:
                    self.settle(log)

    def settle(self, log: TopicLog) -> None:
        """Commit what `copies` listed incarnations hold, the own store being one of them."""
        copies = self.record.copies
        if copies == 1:
            to = log.last
        else:
            votes = sorted((votes.get(log.name, 0) for votes in self.votes.values()), reverse=True)
            to = min(log.last, votes[copies - 2])
        if to <= log.committed:
            return
        self.replica.commit(log, to)
        self._marks[log.name] = log
        self.ctx.dirty[self.replica.group] = None
        if log.committed == log.last:
            self._uncommitted.pop(log.name, None)
        self.waiting_since = self.ctx.now if self._uncommitted else None
        if waiting := self._duplicates.get(log.name):
            later = []
            for depends, contact, answer in waiting:
                if depends <= log.committed:
                    self._answer(contact, answer)
                else:
                    later.append((depends, contact, answer))
            self._duplicates[log.name] = later
            if not later:
                del self._duplicates[log.name]

    # ---- batches ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """What was numbered, forgotten and committed in this turn leaves in one message."""
        if self.record.copies == 1 and self._uncommitted:
            dirty, group = self.ctx.dirty, self.replica.group
            known = group in dirty
            for log in list(self._uncommitted.values()):
                self.settle(log)
            if not known:
                del dirty[group]  # the marks leave below, not with another turn
        marks: list[tuple[str, int]] = []
        if self._marks:
            if self.followers.some_need_marks():
                marks = [(name, log.committed) for name, log in self._marks.items()]
            self._marks = {}
        if not (self._outbox or self._forget or marks):
            return
        outbox, self._outbox = self._outbox, {}
        forget, self._forget = self._forget, []
        if self.followers.by_name:
            entries = [Entries(topic, publications) for topic, publications in outbox.items()]
            self.followers.stream(
                Accept(self.replica.group, self.record.history, self.record.epoch, entries, forget, marks)
            )

    def expire(self) -> None:
        """FORGET-ALIKE: publishers silent for the duplicate window leave the table, in log order everywhere. A takeover
        makes all of them silent at the same moment: some leave now, the others with the next ticks."""
        limit = self.ctx.now - self.ctx.config.duplicate_window
        leaving: list[tuple[str, str]] = []
        for (topic, publisher), touched in islice(self._recent.items(), FORGET_AT_ONCE):
            log = self.replica.topics[topic]
            # one whose last position is not decided waits, and all younger ones with it
            if touched > limit or log.table.rows[publisher][2] > log.committed:
                break
            leaving.append((topic, publisher))
        for topic, publisher in leaving:
            if topic in self._outbox:
                self.flush()  # a removal stands before the entries of its message
            del self._recent[(topic, publisher)]
            self.replica.topics[topic].table.forget(publisher)
            self._forget.append((topic, publisher))
            self.ctx.dirty[self.replica.group] = None
