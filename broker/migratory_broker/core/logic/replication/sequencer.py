"""The sequencer, a part of `Term`: in an activated epoch it assigns positions, counts copies and commits.

NUMBERING: a publication is numbered, stored here, and sent to every follower, in that order. COMMIT: an entry is
committed when `q` (the record's copies) listed incarnations have accepted it; this broker's own store is one of them. A
duplicate is acknowledged once its position is committed, never before.
"""

from __future__ import annotations

from itertools import islice

from migratory_protocol import limits
from migratory_protocol.peer import (
    Accept,
    BrokerId,
    ForwardedPublication,
    ForwardReply,
    Publication,
    TopicEntries,
    payload_digest,
)
from migratory_protocol.positions import Position

from migratory_broker.core.logic.context import Context, expect, must
from migratory_broker.core.logic.membership.records import GroupRecord
from migratory_broker.core.logic.replication.followers import Followers
from migratory_broker.core.logic.replication.replica import Replica, ReplicationListener
from migratory_broker.core.logic.replication.topic_log import TopicLog

FORGET_AT_ONCE = 2000
"""The largest number of publishers of one group that one call of `expire` forgets: some milliseconds of work, and a
message of 1 MB at most. They are removed in one pass over the dict, because each new iterator would go past all that
were removed before."""


class Sequencer:
    """The numbering of one group in one epoch, at the epoch's owner, and the members' votes that decide its commits.
    `votes`: member -> topic -> the last sequence number that it holds."""

    def __init__(
        self,
        ctx: Context,
        replica: Replica,
        record: GroupRecord,
        followers: Followers,
        listener: ReplicationListener,
    ) -> None:
        self.ctx = ctx
        self.replica = replica
        self.record = record
        self.followers = followers
        # With one copy no vote decides anything: the end of the turn commits.
        voters = record.members if record.copies > 1 else []
        self.votes: dict[BrokerId, dict[str, int]] = {broker: {} for broker in voters if broker != record.owner}
        self.waiting_since: float | None = None  # since then entries wait, and none was committed
        self._reply = listener.reply
        self._uncommitted: dict[str, TopicLog] = {}
        self._outbox: dict[str, list[Publication]] = {}
        self._forget: list[tuple[str, str]] = []
        self._marks: dict[str, TopicLog] = {}
        self._duplicates: dict[
            str, list[tuple[int, str | None, ForwardReply]]
        ] = {}  # topic -> (sequence number to be committed, contact, reply)
        self._recent: dict[tuple[str, str], float] = {}  # (topic, publisher) -> last publication or repeat, in order

    def begin(self) -> None:
        """At the activation of the epoch, begin the duplicate window, now, of every publisher of the tables that has
        none. After a takeover no publisher has one. After a re-listing by the owner the windows go on
        (`continue_from`)."""
        for log in self.replica.topics.values():
            for publisher in log.table.rows:
                self._recent.setdefault((log.name, publisher), self.ctx.now)

    def continue_from(self, before: Sequencer) -> None:
        """Take over the duplicate windows of this owner's term before, in which it saw all repeats. Both sequencers
        then share them."""
        self._recent = before._recent

    # ---- numbering -------------------------------------------------------------------------------------------

    def number(self, publications: list[ForwardedPublication], contact: str | None) -> None:
        """Assign the next positions to new publications, in this order, store them and queue them for the followers.
        Duplicates and refused publications get a reply instead, of QoS 0 nothing. Raise InvariantError unless this
        epoch is both the promised and the synced one and the owner is listed.

        `contact` is the broker that forwarded the publications, None for this one. Every broker answers a new
        publication of its own clients at its commit there.
        """
        replica, ctx = self.replica, self.ctx
        must(replica.promised == replica.synced == self.record.epoch, "NUMBER-PROMISED: promised is the own epoch")
        must(self.record.owner in self.record.members, "OWNER-LISTED: a coordinator is on its own list")
        wall = ctx.wall
        topics = replica.topics
        for publication in publications:
            log = topics.get(publication.topic)
            if log is None:
                if not self._may_create(publication, contact):
                    continue
                if not self._admit(replica.vacant(publication.topic), publication, contact, wall):
                    continue  # a refused publication creates no topic
                log = replica.open(publication.topic)
            elif not self._admit(log, publication, contact, wall):
                continue
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
            self._numbered(log, entry)

    def _may_create(self, publication: ForwardedPublication, contact: str | None) -> bool:
        """Return whether the publication may create its topic: this broker holds fewer than `max_topics` topics. If
        not, reply with a refusal."""
        limit, timeout = self.ctx.config.max_topics, self.ctx.config.topic_idle_timeout
        if self.replica.cache.topics < limit:
            return True
        text = f"the cluster holds {limit} topics, its limit (maxTopics)"
        idle = f"; topics are removed {timeout:g} s after their last publication" if timeout else ""
        self._reject(publication, contact, "too_many_topics", text + idle)
        return False

    def _admit(self, log: TopicLog, publication: ForwardedPublication, contact: str | None, wall: float) -> bool:
        """Return whether the publication is to be numbered next in `log`: it is new, and within the limits of
        publishers and of the cache. Otherwise reply with a refusal, or for a duplicate with its position, now or at its
        commit. `wall` is the wall clock in seconds."""
        cache = self.replica.cache
        if publication.id:
            verdict = log.table.judge(publication.publisher, publication.id, publication.mark)
            if verdict == "gap":
                self._reject(publication, contact, "gap", "an earlier message id of this publisher is missing")
                return False
            if verdict == "too high":
                last = log.table.rows[publication.publisher][0]
                text = f"message id {publication.id} is more than {limits.ID_JUMP} above the last one, {last}"
                self._reject(publication, contact, "id_too_high", f"{text}; number on from there")
                return False
            if verdict == "duplicate":
                self._duplicate(log, publication, contact)
                return False
            if publication.publisher not in log.table.rows and cache.publishers_full(wall):
                limit = self.ctx.config.max_publishers
                window = self.ctx.config.duplicate_window
                text = (
                    f"the cluster remembers {limit} publishers, its limit; silent ones are forgotten after {window:g} s"
                )
                self._reject(publication, contact, "retry", text)
                return False
        if cache.full(log, wall):
            self._reject(publication, contact, "retry", "the cache is full of publications that wait for their copies")
            return False
        return True

    def _numbered(self, log: TopicLog, entry: Publication) -> None:
        """Queue the numbered entry for the followers, count it as waiting for its commit, and begin its publisher's
        duplicate window anew. It is sent at the next `flush`."""
        name, ctx = log.name, self.ctx
        ctx.dirty[self.replica.group] = None
        ctx.published += 1
        if entry.id:
            self._touch(name, entry.publisher)
        outgoing = self._outbox.get(name)
        if outgoing is None:
            self._outbox[name] = [entry]
            self._uncommitted[name] = log
        else:
            outgoing.append(entry)
        if self.waiting_since is None:
            self.waiting_since = ctx.now

    def _touch(self, topic: str, publisher: str) -> None:
        """Begin the duplicate window of a publisher in a topic anew, now."""
        key, now = (topic, publisher), self.ctx.now
        if self._recent.get(key) != now:  # the order among those of one moment does not matter
            self._recent.pop(key, None)
            self._recent[key] = now

    def _reject(
        self, publication: ForwardedPublication, contact: str | None, code: str, text: str, digest: bytes = b""
    ) -> None:
        """Reply to the contact broker (None: this one) that the publication is refused, with this error code and
        reason. A QoS 0 publication gets no reply. `digest` is that of its payload, b"" if the reply need not name
        it."""
        if publication.qos:
            retry_after = self.ctx.config.publish_retry_after if code == "retry" else 0.0
            self._reply(
                contact,
                ForwardReply(
                    publication.topic,
                    publication.publisher,
                    publication.id,
                    code,
                    text=text,
                    retry_after=retry_after,
                    digest=digest,
                ),
            )

    def _duplicate(self, log: TopicLog, publication: ForwardedPublication, contact: str | None) -> None:
        """DUPLICATE-WAITS: acknowledge a duplicate with its position, once that is committed, and begin its publisher's
        duplicate window anew. SAME-PAYLOAD: refuse it if another payload is stored under its id (`id_reused`) or if the
        stored payload is not known any more (`outcome_unknown`)."""
        publisher, number = publication.publisher, publication.id
        last, epoch, sequence, stored = log.table.rows[publisher]
        digest = payload_digest(publication.payload)
        entry = log.find(publisher, number)
        if entry is not None:
            position, same = entry.position, entry.payload == publication.payload
        elif number == last and stored:
            position, same = Position(epoch, sequence), stored == digest
        else:
            text = f"message id {number} is not above this publisher's last one, {last}, and is no longer cached"
            self._reject(publication, contact, "outcome_unknown", f"{text}: unknown whether it was stored", digest)
            return
        if not same:
            text = f"message id {number} of this publisher was used for another payload at {position}"
            self._reject(publication, contact, "id_reused", text, digest)
            return
        self._touch(log.name, publisher)
        reply = ForwardReply(log.name, publisher, number, position=position, digest=digest)
        if position.sequence <= log.committed:
            self._reply(contact, reply)
        else:
            self._duplicates.setdefault(log.name, []).append((position.sequence, contact, reply))

    # ---- copies and commits ----------------------------------------------------------------------------------

    def accepted(self, broker: BrokerId, lasts: list[tuple[str, int]]) -> None:
        """Record that `broker` holds each topic up to a sequence number, (topic, number) in `lasts`, and commit what
        that decides. Nothing for a broker that is not listed, for the owner, and if one copy is enough. Raise
        PeerError, before anything is recorded, if a listed broker names a topic or an entry that does not exist."""
        votes = self.votes.get(broker)
        if votes is None:  # LISTED-VOTES: a learner's copy does not count
            return
        topics = self.replica.topics
        for topic, last in lasts:
            log = topics.get(topic)
            expect(log is not None and last <= log.last, "votes", "LISTED-VOTES: a member holds what was numbered")
        for topic, last in lasts:
            if last > votes.get(topic, 0):
                votes[topic] = last
                if (log := self._uncommitted.get(topic)) is not None:
                    self.settle(log)

    def settle(self, log: TopicLog) -> None:
        """Commit the entries of this log that `copies` listed incarnations hold, this broker's own store being one of
        them, and acknowledge the duplicates that waited for them. Queue the new committed mark for the followers."""
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
            for depends, contact, reply in waiting:
                if depends <= log.committed:
                    self._reply(contact, reply)
                else:
                    later.append((depends, contact, reply))
            self._duplicates[log.name] = later
            if not later:
                del self._duplicates[log.name]

    # ---- batches ---------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Send followers what was numbered, forgotten and committed since the last call, in one message; nothing if
        there is nothing. With one copy, first commit what was numbered."""
        if self.record.copies == 1 and self._uncommitted:
            dirty, group = self.ctx.dirty, self.replica.group
            was_dirty = group in dirty
            for log in list(self._uncommitted.values()):
                self.settle(log)
            if not was_dirty:
                del dirty[group]  # the marks are sent below, not with another turn
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
            entries = [TopicEntries(topic, publications) for topic, publications in outbox.items()]
            self.followers.stream(
                Accept(self.replica.group, self.record.history, self.record.epoch, entries, forget, marks)
            )

    def expire(self) -> None:
        """FORGET-ALIKE: remove publishers from the tables that were silent for the duplicate window, and queue the
        removals for the followers, so that all tables change at the same place in the log. A publisher whose last
        position is not committed stays, and so do all that were silent for less long. At most `FORGET_AT_ONCE` are
        removed per call."""
        limit = self.ctx.now - self.ctx.config.duplicate_window
        leaving: list[tuple[str, str]] = []
        for (topic, publisher), touched in islice(self._recent.items(), FORGET_AT_ONCE):
            log = self.replica.topics[topic]
            # a publisher whose last position is not committed waits, and all younger ones with it
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
