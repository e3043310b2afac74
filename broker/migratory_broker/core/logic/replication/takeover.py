"""The first half of a takeover, for `Term`: promises from the source list, and the logs that are merged from them.

TAKEOVER-SOURCE: only the source list is asked, never the list of a record that was not activated. TAKEOVER-QUORUM: n -
q + 1 of its members must answer, or its owner (n: members of the source list, q: its copies). RESTORE-SOURCE: one of
the answers is synced to the source epoch, which may not be activated if ZooKeeper has lost its records. TAKEOVER-MERGE:
only answers with `synced` of at least the source epoch are merged; an answer counts when its last part has come.
BY-INCARNATION: the other end of a link is one incarnation of a broker.
"""

from __future__ import annotations

from migratory_protocol.peer import BrokerId, LogDigest, Prepare, Promise, TopicPart

from migratory_broker.core.logic.context import Context, expect
from migratory_broker.core.logic.membership.records import GroupRecord, SourceEpoch
from migratory_broker.core.logic.replication.replica import Replica
from migratory_broker.core.logic.replication.snapshot import check_floor, check_parts, join, same_entry


class PromiseRound:
    """A candidate's collection of promises for the epoch of `record`, from the brokers on the source list. `useful` is
    True if the candidate's own logs are synced to the source epoch or a later one."""

    def __init__(self, ctx: Context, replica: Replica, record: GroupRecord, source: SourceEpoch) -> None:
        self.ctx = ctx
        self.replica = replica
        self.record = record
        self.source = source
        self.useful = replica.synced_in(record.history) >= source.epoch
        self._digests: list[LogDigest] = replica.digests() if self.useful else []
        self.answers: dict[BrokerId, Promise] = {}  # the last part of each
        self._parts: dict[str, list[TopicPart]] = {}  # peer -> parts so far
        self._topics: dict[BrokerId, list[TopicPart]] = {}

    def begin(self) -> None:
        """Count this broker's own promise if it is on the source list, and ask every linked broker that is on the
        list."""
        me = self.ctx.me
        if me in self.source.members:
            record = self.record
            self.answers[me] = Promise(
                self.replica.group, record.history, record.epoch, self.replica.synced_in(record.history), True, [], []
            )
        for peer in list(self.ctx.links):
            self.request(peer)

    def request(self, peer: str) -> None:
        """Ask `peer` for its promise if its linked incarnation is on the source list and has not answered. In any case
        discard the parts of an unfinished answer."""
        broker = (peer, self.ctx.links[peer])
        self._parts.pop(peer, None)
        if broker in self.source.members and broker not in self.answers:
            record = self.record
            self.ctx.send(
                peer,
                Prepare(
                    self.replica.group, record.history, record.epoch, self.source.epoch, self.useful, self._digests
                ),
            )

    def peer_down(self, peer: str) -> None:
        """Discard the parts of an unfinished answer of `peer`. A finished answer stays valid."""
        self._parts.pop(peer, None)

    def promise(self, peer: str, message: Promise) -> None:
        """Collect a part of a peer's promise. With the last part, check the answer and count it. Ignore a broker that
        is not on the source list or has answered. Raise PeerError if the answer cannot be merged; it then does not
        count, and its parts are dropped."""
        broker = (peer, self.ctx.links[peer])
        if broker not in self.source.members or broker in self.answers:
            return
        parts = self._parts.setdefault(peer, [])
        parts.extend(message.topics)
        if message.last:
            topics = join(self._parts.pop(peer))
            self._check(message, topics)
            self.answers[broker] = message
            self._topics[broker] = topics

    def _check(self, message: Promise, topics: list[TopicPart]) -> None:
        """Raise PeerError if the joined answer `topics` is malformed. If it is synced to the source epoch or later,
        raise PeerError as well unless it agrees with this broker's own logs, if these are synced to that too, and with
        the answers before it, and lacks nothing that is committed here."""
        replica, record = self.replica, self.record
        check_parts(topics, replica.group, self.ctx.config.groups, record.epoch)
        expect(message.synced < record.epoch, "epoch", "nothing is synced to an epoch before its coordinator")
        expect(not any(part.deleted for part in topics), "snapshot", "an answer deletes no topic")
        check_floor(message.floor, record.epoch)
        if message.synced < self.source.epoch:
            return  # not merged
        for part in topics:
            log = replica.topics.get(part.topic) if self.useful else None
            if not part.whole:
                joined = log is not None and part.keep <= log.last and (not part.entries or log.base <= part.keep)
                expect(joined, "snapshot", "JOINED: an answer continues the log that the candidate has described")
            entries = {entry.sequence: entry for entry in log.entries} if log is not None else {}
            for broker, earlier in self._topics.items():
                if self.is_useful(broker):
                    for other in (other for other in earlier if other.topic == part.topic):
                        entries.update((entry.sequence, entry) for entry in (*other.older, *other.entries))
            agrees = all(
                same_entry(entries.get(entry.sequence, entry), entry) for entry in (*part.older, *part.entries)
            )
            expect(agrees, "committed", "ONE-LOG: answers that are synced to the source agree at every sequence number")
        if not self.useful and replica.history == record.history:
            lasts = {part.topic: part.last for part in topics}
            gone = message.floor.sequence  # of topics that were removed
            complete = all(lasts.get(name, gone) >= log.committed for name, log in replica.topics.items())
            expect(complete, "committed", "COMMITTED-STAYS: a log that is synced to the source has all of them")

    @property
    def enough(self) -> bool:
        """TAKEOVER-QUORUM, RESTORE-SOURCE: True if enough of the source list have answered, or its owner has, and one
        of the answers is synced to the source epoch or a later one."""
        return self.source.enough(self.answers) and any(map(self.is_useful, self.answers))

    @property
    def refuted(self) -> bool:
        """RESTORE-AGAIN: True if enough of the source list have answered, or its owner has, and none of them is synced
        to the source epoch or a later one. Then the source epoch never was activated."""
        return self.source.enough(self.answers) and not any(map(self.is_useful, self.answers))

    def is_useful(self, broker: BrokerId) -> bool:
        """Return whether that broker has answered, with logs synced to the source epoch or a later one."""
        answer = self.answers.get(broker)
        return answer is not None and answer.synced >= self.source.epoch

    def adopt(self) -> int:
        """Merge the answers that are synced to the source epoch or later into the replica's logs, and raise its floor
        to the highest of theirs. Return by how much the last sequence numbers of all topics rose together, counted from
        0 if this broker's own logs were not synced to that epoch.

        If the record is of another history than the replica, begin that history first and notify the subscribers of the
        old one.
        """
        replica = self.replica
        if replica.history != self.record.history:
            before = set(replica.topics)
            replica.begin_history(self.record.history, self.record.first)
            replica.announce_reset(before)
        floors = [answer.floor for broker, answer in self.answers.items() if self.is_useful(broker)]
        replica.floor = max([replica.floor, *floors])
        topics: dict[str, list[TopicPart]] = {}
        for broker in sorted(self._topics):
            if self.is_useful(broker):
                for part in self._topics[broker]:
                    topics.setdefault(part.topic, []).append(part)
        had = sum(replica.lasts().values()) if self.useful else 0
        replica.adopt(topics, self.useful)
        return sum(replica.lasts().values()) - had
