"""The beginning of a subscriber's stream, for `Logic`: receipts, replay pages, and waiting until this broker knows the
position.

RESUME: only committed publications are replayed or named in a receipt. The answer to a subscription depends on its
position:

- A position older than the cache is answered with `truncated`.
- A position of another history, of an epoch that ZooKeeper does not know, or of an entry that was replaced is answered
  with `reset`.
- A position ahead of the committed mark waits until it is committed here.
- Any other one, and a subscription without a position, is answered with `complete`.

Until this broker's replica of the group is synced, every subscription waits, even one without a position. A
subscription without a position is then answered with `reset` after 2 s (`resume_wait`).

A wait for a position ends with `reset` when this broker has heard a coordinator's commits for 2 s, and at the latest
after 30 s (`resume_limit`). Time without such a coordinator does not count towards the 2 s: during a takeover, or among
too few brokers that are cut off and have not fenced themselves yet, nothing is known of the position, and nothing could
be delivered after it.

Clients may send any position, so a wait for one that never comes must be cheap. A tick tries only the subscriptions
whose time is up, and every tenth tick tries all of a group. For epochs that do not exist, at most one read of a group's
record in ZooKeeper is under way.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import Literal

from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_protocol.topics import topic_group

from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import Attach, Attached, NextPage, Page, Receipt, ZkReply
from migratory_broker.core.logic.membership.gossip import GossipMap
from migratory_broker.core.logic.membership.membership import Membership
from migratory_broker.core.logic.membership.records import GROUPS, BadRecord, decode_group
from migratory_broker.core.logic.membership.zookeeper import ZkRequests
from migratory_broker.core.logic.replication.group import GroupRegistry, TopicGroup
from migratory_broker.core.logic.replication.topic_log import TopicLog

PIECE = 32
"""The number of publications that a page reads from the log at first. Each further read is as large as the page so
far."""

MAX_PAGE = 2048
"""The largest number of publications in a page, however short they are: encoding them takes some milliseconds."""

RETRY_TICKS = 10
"""Ticks after which all waiting subscriptions of a group are tried again. A commit or an epoch's change leads to a try
sooner; this catches what neither reports."""

Verdict = Literal["replay", "reset", "wait"]


@dataclass(slots=True)
class WaitingSubscription:
    """A subscription that is not answered yet, because its position is ahead of this broker's committed mark or the
    group is not synced yet. `begun` is the time of its request. Times are of the logic's clock, in seconds."""

    event: Attach
    begun: float
    since: float  # a coordinator of its epoch or later has been heard since, apart from `Resume._unheard_at`


class Resume:
    """The answers to subscriptions of this broker's clients, and the subscriptions that wait for an answer.

    It reads the topic groups, and changes only which subscribed topics without a log they remember (`Replica.follow`).
    `committed` and `synced` mark subscriptions that may be answered now; `release` tries them at the end of the step.
    """

    def __init__(
        self, ctx: Context, groups: GroupRegistry, zookeeper: ZkRequests, membership: Membership, gossip: GossipMap
    ) -> None:
        self.ctx = ctx
        self.groups = groups
        self.zookeeper = zookeeper
        self.membership = membership
        self.gossip = gossip
        self.waiting: dict[int, dict[str, list[WaitingSubscription]]] = {}  # group -> topic -> its subscriptions
        self.released: dict[tuple[int, str], None] = {}  # (group, topic) to try at the end of this step
        self._deadlines: dict[int, list[tuple[float, str]]] = {}  # group -> heap of (earliest deadline, topic)
        self._unheard_at: dict[int, float] = {}  # group -> when its coordinator was last found silent
        self._asking: set[int] = set()  # groups whose record is being read
        self._recorded: dict[int, tuple[int, float]] = {}  # group -> (highest epoch in ZooKeeper, when asked)
        self._ticks = 0

    # ---- attach ----------------------------------------------------------------------------------------------

    def attach(self, event: Attach) -> None:
        """Answer a subscription with `Attached`: a receipt with the first publications. If this broker cannot decide
        about the position yet, let the subscription wait. It then is answered at the latest after `resume_limit`."""
        number = topic_group(event.topic, len(self.groups))
        waiting = WaitingSubscription(event, self.ctx.now, self.ctx.now)
        if not self._try_to_answer(self.groups[number], waiting, expired=False):
            self.waiting.setdefault(number, {}).setdefault(event.topic, []).append(waiting)
            heappush(self._deadlines.setdefault(number, []), (self._deadline(number, waiting), event.topic))

    def _try_to_answer(self, group: TopicGroup, waiting: WaitingSubscription, expired: bool) -> bool:
        """Answer the subscription if this broker can decide the answer now, or with `reset` if it has waited long
        enough (`expired`). Return whether it was answered. A topic without a log is remembered by its group
        (`Replica.follow`)."""
        event, replica = waiting.event, group.replica
        if not (replica.synced and replica.first):
            if expired:
                self._attached(event, "reset", Position(0, 0), [])
            return expired
        log = replica.topics.get(event.topic)
        if log is None:
            replica.follow(event.topic)
            log = replica.vacant(event.topic)
        position = log.current(replica.first)
        after = event.after
        if after is None:
            last = log.entry(log.committed) if event.snapshot else None
            self._attached(event, "complete", position, [last] if last else [])
            return True
        verdict = self._verdict(group, log, after, waiting)
        if verdict == "wait" and not expired:
            return False
        if verdict in ("wait", "reset"):
            self._attached(event, "reset", position, [])
            return True
        self._replay(event, log, position, after)
        return True

    def _verdict(self, group: TopicGroup, log: TopicLog, after: Position, waiting: WaitingSubscription) -> Verdict:
        """Return how to answer a subscription with the position `after`: "replay" the publications after it, with a
        `truncated` receipt if some of them are evicted, "reset" the subscriber, or "wait" until this broker knows more.
        May begin a read of the group's record in ZooKeeper."""
        replica = group.replica
        if after.epoch < replica.first:
            return "reset"
        if after.sequence == 0:
            return "replay" if after.epoch == replica.first else self._unknown_epoch(group, after, waiting)
        if after.sequence <= log.committed:
            if after.sequence < log.base:
                return "replay" if after.epoch <= log.base_epoch else "reset"
            return "replay" if log.epoch_at(after.sequence) == after.epoch else "reset"
        known = max(replica.promised, self.gossip.epoch(group.number))
        if after.epoch > known:
            return self._unknown_epoch(group, after, waiting)
        if replica.synced > after.epoch and replica.view is not None and replica.view.activated:
            entry = log.entry(after.sequence)
            if entry is None or entry.epoch != after.epoch:
                return "reset"
        return "wait"

    def _unknown_epoch(self, group: TopicGroup, after: Position, waiting: WaitingSubscription) -> Verdict:
        """Return "reset" if the epoch of `after` is above the epoch of the group's record in ZooKeeper, else "wait". If
        the record was not read since the subscription began, begin to read it unless a read is under way, and return
        "wait". A read that fails is repeated by the tries of `tick`. A position with sequence number 0 of a known epoch
        that did not begin the history is "reset" at once."""
        if after.sequence == 0 and after.epoch <= max(group.replica.promised, group.replica.first):
            return "reset"  # only a history's first epoch has a position 0
        recorded, asked_at = self._recorded.get(group.number, (0, float("-inf")))
        if asked_at >= waiting.begun:
            return "reset" if after.epoch > recorded else "wait"
        if group.number not in self._asking:
            self._ask(group)
        return "wait"

    def _ask(self, group: TopicGroup) -> None:
        """Begin to read the group's record in ZooKeeper. Its epoch is then recorded, and all waiting subscriptions of
        the group are marked for another try; not if the read fails or the record is unreadable. Nothing without
        ZooKeeper."""
        if not self.zookeeper.connected:
            return
        sent = self.ctx.now
        self._asking.add(group.number)

        def receive(reply: ZkReply) -> None:
            self._asking.discard(group.number)
            if reply.outcome != "ok":
                return
            try:
                epoch = decode_group(reply.node.data).epoch if reply.node else 0
            except BadRecord:
                return
            self._recorded[group.number] = (epoch, sent)
            self._release_group(group.number)

        self.zookeeper.get(f"{GROUPS}/{group.number}", receive)

    # ---- waiting ---------------------------------------------------------------------------------------------

    def committed(self, number: int, log: TopicLog) -> None:
        """Mark the topic's waiting subscriptions for another try if the commit reached the position of one of them, or
        if one has no position. The group must have waiting subscriptions."""
        if waiting := self.waiting[number].get(log.name):
            committed = log.committed
            if any(
                (after := subscription.event.after) is None or after.sequence <= committed for subscription in waiting
            ):
                self.released[number, log.name] = None

    def synced(self, number: int) -> None:
        """Mark all waiting subscriptions of the group for another try. The time for which those with a position have
        heard a coordinator begins anew."""
        if number in self.waiting:
            self._unheard_at[number] = self.ctx.now
            self._release_group(number)

    def _release_group(self, number: int) -> None:
        """Mark all waiting subscriptions of the group for another try at the end of this step."""
        for topic in sorted(self.waiting.get(number, {})):
            self.released[number, topic] = None

    def release(self) -> None:
        """Try to answer the marked subscriptions, and unmark them. `Logic.step` calls it at the end of a step in which
        some were marked."""
        released, self.released = self.released, {}
        for number, topic in released:
            self._try_topic(self.groups[number], topic)

    def tick(self) -> None:
        """Try the waiting subscriptions whose time may be up, and answer those with `reset` for which it is. Every
        `RETRY_TICKS` ticks, try all of a group again. Note for each group whether its coordinator is heard now."""
        now = self.ctx.now
        self._ticks += 1
        for number in sorted(self.waiting):
            group, topics, deadlines = self.groups[number], self.waiting[number], self._deadlines[number]
            if not self._hears_coordinator(group):
                self._unheard_at[number] = now
            expired = set()
            while deadlines and deadlines[0][0] <= now:
                expired.add(heappop(deadlines)[1])
            every = self._ticks % RETRY_TICKS == number % RETRY_TICKS
            for topic in sorted(topics if every else expired & topics.keys()):
                self._try_topic(group, topic)
                if topic in expired and topic in topics:
                    heappush(deadlines, (min(self._deadline(number, waiting) for waiting in topics[topic]), topic))

    def _try_topic(self, group: TopicGroup, topic: str) -> None:
        """Try to answer each waiting subscription of a topic, and stop waiting for those that were answered. The topic
        must have waiting subscriptions."""
        number = group.number
        topics = self.waiting[number]
        still = [
            waiting
            for waiting in topics[topic]
            if not self._try_to_answer(group, waiting, self._expired(group, waiting))
        ]
        if still:
            topics[topic] = still
            return
        del topics[topic]
        self.released.pop((number, topic), None)
        if not topics:
            del self.waiting[number], self._deadlines[number]
            self._unheard_at.pop(number, None)

    def _expired(self, group: TopicGroup, waiting: WaitingSubscription) -> bool:
        """Return whether the subscription has waited long enough to be answered with `reset`: one with a position for
        `resume_wait` in which a coordinator of its epoch or a later one was heard, one without for `resume_wait`, and
        any for `resume_limit`. If that coordinator is not heard now, its time of being heard begins anew."""
        after = waiting.event.after
        if after is not None and (after.epoch > group.replica.synced or not self._hears_coordinator(group)):
            waiting.since = self.ctx.now
        return self._deadline(group.number, waiting) <= self.ctx.now

    def _deadline(self, number: int, waiting: WaitingSubscription) -> float:
        """Return the time at which the subscription is answered with `reset` if nothing changes until then. It is of
        the logic's clock."""
        config = self.ctx.config
        since = waiting.since
        if waiting.event.after is not None:
            since = max(since, self._unheard_at.get(number, since))
        return min(since + config.resume_wait, waiting.begun + config.resume_limit)

    def _hears_coordinator(self, group: TopicGroup) -> bool:
        """Return whether this broker learns of commits now: it coordinates the latest known epoch of the group, or is
        synced to that as a member and heard its coordinator within two heartbeats. It must also have heard `min_copies`
        - 1 other members within them: with fewer, that coordinator may be one that is cut off and commits nothing."""
        replica, gossip, number = group.replica, self.gossip, group.number
        config, recent = self.ctx.config, 2 * self.ctx.config.heartbeat
        if gossip.epoch(number) > replica.synced:
            return False
        if len(self.membership.members_heard_within(recent)) < config.min_copies - 1:
            return False
        if group.term is not None and group.term.active:
            return True
        return replica.settled and self.ctx.now - gossip.heard_at(number) <= recent

    # ---- replay ----------------------------------------------------------------------------------------------

    def _replay(self, event: Attach, log: TopicLog, position: Position, after: Position) -> None:
        """Answer a subscription with the first page of the publications after position `after`, which is not above the
        committed mark. The receipt is `truncated` if some of them are evicted, else `complete`."""
        begin = max(after.sequence, log.base)
        publications = self._page(log, begin, event.max_bytes)
        done = begin + len(publications) == log.committed
        if after.sequence < log.base:
            self._attached(event, "truncated", position, publications, done, after.sequence + 1, log.base)
        else:
            self._attached(event, "complete", position, publications, done)

    def _page(self, log: TopicLog, after: int, max_bytes: int) -> list[Publication]:
        """Return committed entries after sequence number `after`, which must not be before the log's beginning: about
        `max_bytes` of payload, at most `MAX_PAGE`, and at least one if there is one.

        Reads little more of the log than it returns, so that a page costs the same in a long log as in a short one.
        """
        page: list[Publication] = []
        size = 0
        committed = log.committed
        piece = PIECE
        while after < committed and len(page) < MAX_PAGE:
            until = min(after + piece, committed)
            for entry in log.between(after, until):
                size += len(entry.payload)
                if page and size > max_bytes:
                    return page
                page.append(entry)
            after = until
            piece = len(page)
        return page

    def _attached(
        self,
        event: Attach,
        receipt: Receipt,
        position: Position,
        publications: list[Publication],
        done: bool = True,
        first: int = 0,
        last: int = 0,
    ) -> None:
        """Emit the `Attached` that answers `event`, with these values in its fields."""
        self.ctx.emit(
            Attached(
                event.edge,
                event.reference,
                event.topic,
                receipt,
                position,
                tuple(publications),
                done,
                first,
                last,
            )
        )

    def next_page(self, event: NextPage) -> None:
        """Emit the next replay page as the answer to a `NextPage`. Its receipt is `truncated` if publications after the
        position were evicted meanwhile, and `reset`, without publications, if the position is of an earlier history or
        above the committed mark."""
        group = self.groups[topic_group(event.topic, len(self.groups))]
        replica = group.replica
        log = replica.topics.get(event.topic) or replica.vacant(event.topic)
        position = log.current(replica.first)
        after = event.after.sequence
        if event.after.epoch < replica.first or after > log.committed:
            self.ctx.emit(Page(event.edge, event.reference, event.topic, (), True, "reset", position))
            return
        begin = max(after, log.base)
        publications = tuple(self._page(log, begin, event.max_bytes))
        done = begin + len(publications) == log.committed
        if after < log.base:
            self.ctx.emit(
                Page(
                    event.edge,
                    event.reference,
                    event.topic,
                    publications,
                    done,
                    "truncated",
                    position,
                    after + 1,
                    log.base,
                )
            )
        else:
            self.ctx.emit(Page(event.edge, event.reference, event.topic, publications, done, "complete", position))
