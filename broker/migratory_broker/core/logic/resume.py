"""Where a subscriber's stream begins: receipts, replay pages, and waiting for a broker that is behind.

RESUME: only committed entries are replayed or named. Behind the cache -> `truncated`; another history, an epoch that
ZooKeeper does not know, or an entry that was replaced -> `reset`; ahead of the committed mark -> wait: for 2 s in which
a coordinator says what is committed. Until one does (a takeover, a broker that is cut off and has not fenced yet)
nothing is known of the position, and there is nothing to deliver either: that is waited out, for 30 s at most.

Positions are what clients say. However many wait for one that never comes, or name an epoch that never was: a tick
looks at those whose time is up, and now and then at all of a group; ZooKeeper is asked about a group once at a time.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heappop, heappush
from typing import TYPE_CHECKING

from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_protocol.topics import topic_group

from migratory_broker.core.logic.cache import TopicLog
from migratory_broker.core.logic.context import Context
from migratory_broker.core.logic.events import Attach, Attached, NextPage, Page, Receipt, ZkReply
from migratory_broker.core.logic.records import GROUPS, BadRecord, decode_group
from migratory_broker.core.logic.zookeeper import ZooKeeper

if TYPE_CHECKING:
    from migratory_broker.core.logic.authorizer import Authorizer
    from migratory_broker.core.logic.group import Group


PIECE = 32  # publications that a page is begun with; then as many again as it has
MOST = 2048  # publications in a page, however short they are: some milliseconds to encode
RETRIES = 10  # ticks in which all that wait are tried once anyway: what they wait for tells of itself, mostly


@dataclass(slots=True)
class Waiting:
    event: Attach
    begun: float
    since: float  # a coordinator of its epoch or a later one has told what is committed, but for `_silent`
    asked: bool = False  # ZooKeeper was asked for the highest epoch


class Resume:
    def __init__(self, ctx: Context, zookeeper: ZooKeeper, authorizer: Authorizer) -> None:
        self.ctx = ctx
        self.zookeeper = zookeeper
        self.authorizer = authorizer
        self.groups: list[Group] = []
        self._waiting: dict[int, dict[str, list[Waiting]]] = {}  # group -> topic
        self._due: dict[int, list[tuple[float, str]]] = {}  # group -> heap of when whose time may be up
        self._silent: dict[int, float] = {}  # group -> when its coordinator was last found to say nothing
        self._asking: set[int] = set()  # groups that ZooKeeper was asked about and has not answered
        self._recorded: dict[int, tuple[int, float]] = {}  # group -> highest epoch in ZooKeeper, when asked
        self._ticks = 0

    # ---- attach ----------------------------------------------------------------------------------------------

    def attach(self, event: Attach) -> None:
        if refusal := self.authorizer.attach(event):
            position = Position(0, 0)
            self.ctx.emit(
                Attached(event.edge, event.reference, event.topic, "reset", position, code="not_allowed", text=refusal)
            )
            return
        number = topic_group(event.topic, len(self.groups))
        waiting = Waiting(event, self.ctx.now, self.ctx.now)
        if not self._try(self.groups[number], waiting, late=False):
            self._waiting.setdefault(number, {}).setdefault(event.topic, []).append(waiting)
            heappush(self._due.setdefault(number, []), (self._up(number, waiting), event.topic))

    def _try(self, group: Group, waiting: Waiting, late: bool) -> bool:
        """Answer if the answer is certain, or if the time is up (`late`)."""
        event, replica = waiting.event, group.replica
        if not (replica.synced and replica.first):
            if late:
                self._attached(event, "reset", Position(0, 0), [])
            return late
        position = replica.position(event.topic)
        log = replica.topics.get(event.topic)
        after = event.after
        if log is None:
            replica.follow(event.topic)
        if after is None:
            last = log.entry(log.committed) if log and event.snapshot else None
            self._attached(event, "complete", position, [last] if last else [])
            return True
        verdict = self._verdict(group, log, after, waiting)
        if verdict == "wait" and not late:
            return False
        if verdict in ("wait", "reset"):
            self._attached(event, "reset", position, [])
            return True
        self._replay(event, log, position, after)
        return True

    def _verdict(self, group: Group, log: TopicLog | None, after: Position, waiting: Waiting) -> str:
        replica = group.replica
        if after.epoch < replica.first:
            return "reset"
        if after.sequence == 0:
            return "here" if after.epoch == replica.first else self._foreign(group, after, waiting)
        committed = log.committed if log else 0
        if after.sequence <= committed and log is not None:
            if after.sequence < log.base:
                return "here" if after.epoch <= log.base_epoch else "reset"
            return "here" if log.epoch_at(after.sequence) == after.epoch else "reset"
        known = max(replica.promised, group.gossip.epoch(group.number))
        if after.epoch > known:
            return self._foreign(group, after, waiting)
        if replica.synced > after.epoch and replica.view is not None and replica.view.activated:
            entry = log.entry(after.sequence) if log else None
            if entry is None or entry.epoch != after.epoch:
                return "reset"
        return "wait"

    def _foreign(self, group: Group, after: Position, waiting: Waiting) -> str:
        """An epoch that this broker never heard of: ZooKeeper knows the highest."""
        if after.sequence == 0 and after.epoch <= max(group.replica.promised, group.replica.first):
            return "reset"  # only a history's first epoch has a position 0
        recorded, asked_at = self._recorded.get(group.number, (0, float("-inf")))
        if asked_at >= waiting.begun:
            return "reset" if after.epoch > recorded else "wait"
        if not waiting.asked and group.number not in self._asking:  # else with the answer
            waiting.asked = True
            self._ask(group)
        return "wait"

    def _ask(self, group: Group) -> None:
        if not self.zookeeper.connected:
            return
        sent = self.ctx.now
        self._asking.add(group.number)

        def then(reply: ZkReply) -> None:
            self._asking.discard(group.number)
            if reply.outcome != "ok":
                return
            try:
                epoch = decode_group(reply.node.data).epoch if reply.node else 0
            except BadRecord:
                return
            self._recorded[group.number] = (epoch, sent)
            self._try_all(group)

        self.zookeeper.get(f"{GROUPS}/{group.number}", then)

    # ---- waiting ---------------------------------------------------------------------------------------------

    def committed(self, group: Group, log: TopicLog) -> None:
        if (topics := self._waiting.get(group.number)) is not None and (waiting := topics.get(log.name)):
            committed = log.committed
            if any((after := one.event.after) is None or after.sequence <= committed for one in waiting):
                self._again(group, log.name)

    def moved(self, group: Group) -> None:
        """The group is synced to another epoch, whose coordinator is heard from now on."""
        if group.number in self._waiting:
            self._silent[group.number] = self.ctx.now
            self._try_all(group)

    def _try_all(self, group: Group) -> None:
        for topic in sorted(self._waiting.get(group.number, {})):
            self._again(group, topic)

    def tick(self) -> None:
        now = self.ctx.now
        self._ticks += 1
        for number in sorted(self._waiting):
            group, topics, due = self.groups[number], self._waiting[number], self._due[number]
            if not self._informed(group):
                self._silent[number] = now
            up = set()
            while due and due[0][0] <= now:
                up.add(heappop(due)[1])
            for topic in sorted(topics if self._ticks % RETRIES == number % RETRIES else up & topics.keys()):
                self._again(group, topic)
                if topic in up and topic in topics:
                    heappush(due, (min(self._up(number, waiting) for waiting in topics[topic]), topic))

    def _again(self, group: Group, topic: str) -> None:
        topics = self._waiting[group.number]
        still = [waiting for waiting in topics[topic] if not self._try(group, waiting, self._late(group, waiting))]
        if still:
            topics[topic] = still
            return
        del topics[topic]
        if not topics:
            number = group.number
            del self._waiting[number], self._due[number]
            self._silent.pop(number, None)

    def _late(self, group: Group, waiting: Waiting) -> bool:
        """Whether its time is up. It runs while a coordinator of its epoch, or a later one, says what is committed."""
        after = waiting.event.after
        if after is not None and (after.epoch > group.replica.synced or not self._informed(group)):
            waiting.since = self.ctx.now
        return self._up(group.number, waiting) <= self.ctx.now

    def _up(self, number: int, waiting: Waiting) -> float:
        """When it is, as things stand."""
        config = self.ctx.config
        since = waiting.since
        if waiting.event.after is not None:
            since = max(since, self._silent.get(number, since))
        return min(since + config.resume_wait, waiting.begun + config.resume_limit)

    def _informed(self, group: Group) -> bool:
        """Whether the coordinator of the latest epoch known says here what is committed."""
        replica, gossip, number = group.replica, group.gossip, group.number
        if gossip.epoch(number) > replica.synced:
            return False
        if group.reign is not None and group.reign.active:
            return True
        return replica.settled and self.ctx.now - gossip.told(number) <= 2 * self.ctx.config.heartbeat

    # ---- replay ----------------------------------------------------------------------------------------------

    def _replay(self, event: Attach, log: TopicLog | None, position: Position, after: Position) -> None:
        if log is None:
            self._attached(event, "complete", position, [])
            return
        begin = max(after.sequence, log.base)
        publications = self._page(log, begin, event.max_bytes)
        done = begin + len(publications) == log.committed
        if after.sequence < log.base:
            self._attached(event, "truncated", position, publications, done, after.sequence + 1, log.base)
        else:
            self._attached(event, "complete", position, publications, done)

    def _page(self, log: TopicLog, after: int, max_bytes: int) -> list[Publication]:
        """Committed entries behind `after`, at least one if there is one, about `max_bytes` of payload. Looks at no
        more of the log than it gives: a page of a long one costs what a page of a short one does."""
        page: list[Publication] = []
        size = 0
        committed = log.committed
        piece = PIECE
        while after < committed and len(page) < MOST:
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
        group = self.groups[topic_group(event.topic, len(self.groups))]
        replica = group.replica
        position = replica.position(event.topic)
        log = replica.topics.get(event.topic)
        after = event.after.sequence
        if event.after.epoch < replica.first or log is None or after > log.committed:
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
