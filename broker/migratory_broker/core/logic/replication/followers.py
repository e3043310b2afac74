"""The followers of an epoch, for its owner's `Term`: which brokers have its logs, and the entries that are sent to
them.

Every linked broker follows, listed or learner: `InventoryRequest` -> `Inventory` -> `Sync` (what is missing) ->
`Synced`, and from the Sync on every entry in order over that link. At a takeover the promises have brought the
inventories; at a re-listing a broker that streams already is sent an empty Sync.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from migratory_protocol.peer import (
    Accept,
    BrokerId,
    Inventory,
    InventoryRequest,
    LogDigest,
    PeerMessage,
    Sync,
    TopicPart,
)

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.membership.records import GroupRecord
from migratory_broker.core.logic.replication.replica import LASTS_MODULUS, Replica
from migratory_broker.core.logic.replication.snapshot import for_member, split, whole


@dataclass(slots=True)
class Follower:
    """A linked broker, as the owner of an epoch sees it.

    broker      the broker, by incarnation
    streams     a Sync was sent over this link, and every later entry is sent too; False again after a refusal
    confirmed   the broker has confirmed that Sync
    refused     the broker refused a message of this epoch since that Sync
    serial      the number of the last Sync
    snapshot    the last sequence number of each topic in that Sync, by name; {} once it is confirmed
    """

    broker: BrokerId
    streams: bool = False
    confirmed: bool = False
    refused: bool = False
    serial: int = 0
    snapshot: dict[str, int] = field(default_factory=dict)


class Followers:
    """The followers of one epoch by name, as its owner sees them, and the messages that bring them to its logs and keep
    them there. `active` is True once the epoch is activated."""

    def __init__(self, ctx: Context, replica: Replica, record: GroupRecord) -> None:
        self.ctx = ctx
        self.replica = replica
        self.record = record
        self.adopted: dict[str, int] = {}  # last sequence numbers with which the epoch began
        self.active = False
        self.by_name: dict[str, Follower] = {}
        self._serial = 0

    def needs_marks(self, broker: BrokerId) -> bool:
        """MARK-DECIDES: return whether a broker learns what is committed only from the coordinator's committed marks. A
        member of a list with two copies does not need them; every other broker does."""
        return self.record.copies != 2 or broker not in self.record.members

    def some_need_marks(self) -> bool:
        """Return whether any follower that gets every entry needs the coordinator's committed marks to learn what is
        committed."""
        return any(follower.streams and self.needs_marks(follower.broker) for follower in self.by_name.values())

    def add(self, peer: str) -> None:
        """Add the broker at the other end of an open link as a follower, in place of an earlier one of its name, and
        request its inventory. A Sync is sent when the inventory comes."""
        self.by_name[peer] = Follower((peer, self.ctx.links[peer]))
        self.ctx.send(peer, InventoryRequest(self.replica.group, self.record.history, self.record.epoch))

    def add_known(self, peer: str, digests: list[LogDigest], useful: bool) -> None:
        """Add a broker, which has promised, as a follower, and send it a Sync. `digests` is the inventory from its
        promise; `useful` says that its logs are synced to the source epoch or a later one, so that a Sync of what is
        missing is enough."""
        follower = self.by_name[peer] = Follower((peer, self.ctx.links[peer]))
        self._sync(follower, digests if useful else None, own=False)

    def add_streaming(self, peer: str) -> None:
        """Add a broker that received the whole previous epoch over this same link, and send it an empty Sync: it has
        the same logs already."""
        follower = self.by_name[peer] = Follower((peer, self.ctx.links[peer]))
        self._send(follower, [[]], whole=False)

    def remove(self, peer: str) -> None:
        self.by_name.pop(peer, None)

    def inventory(self, peer: str, message: Inventory) -> None:
        """Send `peer` a Sync with what is missing by its inventory, or with all logs if its own are of another history
        or not synced to the source epoch or a later one. Ignore a broker that is not a follower."""
        follower = self.by_name.get(peer)
        if follower is None:
            return
        source = self.record.source
        own = message.history == self.record.history and message.synced == self.record.epoch
        useful = own or (
            source is not None and message.history == self.record.history and message.synced >= source.epoch
        )
        self._sync(follower, message.digests if useful else None, own)

    def _sync(self, follower: Follower, digests: Iterable[LogDigest] | None, own: bool) -> None:
        """Send a follower a Sync with the entries that its logs lack, and with the right ones where its own are wrong.

        `digests` describes its logs, None if they must be replaced as a whole because they are not synced to the source
        epoch or a later one. Of logs that are synced to one of those, what this epoch adopted is kept. Logs synced to
        this very epoch (`own`) are kept as a whole.
        """
        topics = self.replica.topics
        if digests is None:
            parts = [whole(log) for log in topics.values()]
        else:
            parts = for_member(topics, digests, (lambda _: None) if own else (lambda topic: self.adopted.get(topic, 0)))
        self._send(follower, split(parts, self.ctx.config.part_bytes), whole=digests is None)

    def _send(self, follower: Follower, lists: list[list[TopicPart]], whole: bool) -> None:
        """Send a follower a Sync of which each list of `lists` is one message, and record that it gets every entry from
        now on. In an activated epoch send the committed marks of all topics as well, if it needs them. `whole`: it
        keeps no log of its own."""
        replica, record = self.replica, self.record
        self._serial += 1
        follower.serial = self._serial
        follower.snapshot = replica.lasts()
        follower.streams, follower.confirmed, follower.refused = True, False, False
        total = sum(follower.snapshot.values()) % LASTS_MODULUS
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
                    replica.floor,
                    replica.removed,
                ),
            )
        if self.active and self.needs_marks(follower.broker):
            marks = [(log.name, log.committed) for log in replica.topics.values()]
            self.ctx.send(follower.broker[0], Accept(replica.group, record.history, record.epoch, [], [], marks))

    def stream(self, message: PeerMessage) -> None:
        """Send a message to every follower that was sent its Sync and has not refused the epoch since. All get the same
        object, so that the runtime encodes it once."""
        for peer, follower in self.by_name.items():
            if follower.streams:
                self.ctx.send(peer, message)

    def refuse(self, peer: str) -> None:
        """Stop streaming to the follower `peer`, which refused a message of this epoch, as it promised a higher one or
        is of another history. Its next Sync begins the streaming again. Nothing if `peer` is not a follower."""
        if follower := self.by_name.get(peer):
            follower.streams = follower.confirmed = False
            follower.refused = True

    def caught_up(self) -> list[BrokerId]:
        """Return the learners (followers that are not listed) that have confirmed their last Sync. They are ready to be
        listed."""
        return [
            follower.broker
            for follower in self.by_name.values()
            if follower.confirmed and follower.broker not in self.record.members
        ]
