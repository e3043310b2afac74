"""The other brokers as the owner of an epoch sees them: who holds what, who is synced, who is streamed to.

Every live broker with a link follows, listed or learner, by one path at takeover, re-listing, learning and link repair:
`Ask` -> `Standing` -> `Sync` (what is missing) -> `Synced`, and from the Sync on every entry in order over that link.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from migratory_protocol.peer import Accept, Ask, Broker, Digest, PeerMessage, Standing, Sync, TopicPart

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.records import GroupRecord
from migratory_broker.core.logic.replica import Replica
from migratory_broker.core.logic.snapshot import cut, for_member, whole


@dataclass(slots=True)
class Follower:
    """`streams`: a Sync went over this link, entries follow it. `snapshot`: last sequence numbers of that Sync."""

    broker: Broker
    streams: bool = False
    confirmed: bool = False
    refused: bool = False
    serial: int = 0
    snapshot: dict[str, int] = field(default_factory=dict)


class Followers:
    def __init__(self, ctx: Context, replica: Replica, record: GroupRecord) -> None:
        self.ctx = ctx
        self.replica = replica
        self.record = record
        self.adopted: dict[str, int] = {}  # last sequence numbers that the epoch began with
        self.active = False
        self.by_name: dict[str, Follower] = {}
        self._serial = 0

    def needs_marks(self, broker: Broker) -> bool:
        """MARK-DECIDES: with other than two copies, and always off the list, the coordinator's mark tells commits."""
        return self.record.copies != 2 or broker not in self.record.members

    def some_need_marks(self) -> bool:
        return any(follower.streams and self.needs_marks(follower.broker) for follower in self.by_name.values())

    def add(self, peer: str) -> None:
        """A link to `peer` stands (again): ask what it holds."""
        self.by_name[peer] = Follower((peer, self.ctx.links[peer]))
        self.ctx.send(peer, Ask(self.replica.group, self.record.history, self.record.epoch))

    def add_known(self, peer: str, holds: list[Digest], useful: bool) -> None:
        """As `add`, for one whose promise told already what it holds. `useful`: synced to the source epoch."""
        follower = self.by_name[peer] = Follower((peer, self.ctx.links[peer]))
        self._sync(follower, holds if useful else None, own=False)

    def add_streaming(self, peer: str) -> None:
        """As `add`, for one that got all of the epoch before over this same link: it keeps what it has."""
        follower = self.by_name[peer] = Follower((peer, self.ctx.links[peer]))
        self._send(follower, [[]], whole=False)

    def remove(self, peer: str) -> None:
        self.by_name.pop(peer, None)

    def standing(self, peer: str, message: Standing) -> None:
        follower = self.by_name.get(peer)
        if follower is None:
            return
        source = self.record.source
        own = message.history == self.record.history and message.synced == self.record.epoch
        useful = own or (
            source is not None and message.history == self.record.history and message.synced >= source.epoch
        )
        self._sync(follower, message.holds if useful else None, own)

    def _sync(self, follower: Follower, holds: Iterable[Digest] | None, own: bool) -> None:
        """Send what is missing: nothing counts of a log that is not synced to the source epoch (`holds` None); of one
        that is, as much as this epoch adopted; all of one that is of this epoch itself (`own`)."""
        topics = self.replica.topics
        if holds is None:
            parts = [whole(log) for log in topics.values()]
        else:
            parts = for_member(topics, holds, (lambda _: None) if own else (lambda topic: self.adopted.get(topic, 0)))
        self._send(follower, cut(parts, self.ctx.config.part_bytes), whole=holds is None)

    def _send(self, follower: Follower, lists: list[list[TopicPart]], whole: bool) -> None:
        replica, record = self.replica, self.record
        self._serial += 1
        follower.serial = self._serial
        follower.snapshot = replica.lasts()
        follower.streams, follower.confirmed, follower.refused = True, False, False
        total = sum(follower.snapshot.values())
        for index, parts in enumerate(lists):
            self.ctx.send(
                follower.broker[0],
                Sync(
                    replica.group,
                    record.history,
                    record.first,
                    record.epoch,
                    self._serial,
                    record.owner,
                    record.members,
                    record.copies,
                    self.active,
                    whole,
                    index == len(lists) - 1,
                    parts,
                    len(follower.snapshot),
                    total,
                ),
            )
        if self.active and self.needs_marks(follower.broker):
            marks = [(log.name, log.committed) for log in replica.topics.values()]
            self.ctx.send(follower.broker[0], Accept(replica.group, record.history, record.epoch, [], [], marks))

    def stream(self, message: PeerMessage) -> None:
        """To everyone behind a Sync; the same object each time, so that it need be encoded only once."""
        for peer, follower in self.by_name.items():
            if follower.streams:
                self.ctx.send(peer, message)

    def refuse(self, peer: str) -> None:
        """It promised a higher epoch: nothing of this one reaches it any more."""
        if follower := self.by_name.get(peer):
            follower.streams = follower.confirmed = False
            follower.refused = True

    def caught_up(self) -> list[Broker]:
        """Learners that hold everything and follow: to be listed."""
        return [
            follower.broker
            for follower in self.by_name.values()
            if follower.confirmed and follower.broker not in self.record.members
        ]
