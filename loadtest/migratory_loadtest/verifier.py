"""Compares what was acknowledged with what every subscriber got. Pure, and exact: one delivery missed, doubled or
swapped is found and named by topic, position and subscriber.

lost        acknowledged, behind the subscription's start, never delivered to it (`gaps`: it was told so by a receipt)
duplicate   delivered again to the same subscriber
reordered   delivered behind a higher position, or acknowledged at positions that turn a publisher's order round
unexpected  was never published, was refused for good, or came from before the subscription
conflict    two contents at one position, or one content acknowledged at one position and delivered at another
unknown     published, never answered, delivered: allowed, and only counted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from migratory_protocol.positions import Position

from migratory_loadtest.account import Notice, SubscriberAccount, TopicAccount
from migratory_loadtest.result import Problem

NAMED = 20  # positions named per problem; counts are exact
NEVER = ("lost", "duplicates", "reordered", "unexpected", "conflicts")
Kind = str


@dataclass(slots=True)
class Verdict:
    """Sums over all topics. `lost = expected - delivered`."""

    acknowledged: int = 0
    unanswered: int = 0
    failed: int = 0
    expected: int = 0
    delivered: int = 0
    received: int = 0
    lost: int = 0
    gaps: int = 0
    duplicates: int = 0
    reordered: int = 0
    unexpected: int = 0
    unknown: int = 0
    conflicts: int = 0
    problems: list[Problem] = field(default_factory=list)
    lost_by_broker: Counter[str] = field(default_factory=Counter)  # the broker of the subscriber's last delivery

    @property
    def clean(self) -> bool:
        return not any(getattr(self, kind) for kind in NEVER)

    @property
    def wrong(self) -> list[str]:
        """What must not be, in words: nothing where it is clean and no publication was refused."""
        found = [f"{count} {kind}" for kind in NEVER if (count := getattr(self, kind))]
        if self.lost and self.gaps:
            found[0] += f", {self.gaps} told by receipts"
        if self.failed:
            found.append(f"{self.failed} publications were refused")
        return found


@dataclass(slots=True)
class _Findings:
    """Of one subscriber, or of several with the same history."""

    expected: int = 0
    delivered: int = 0
    received: int = 0
    unknown: int = 0
    gaps: int = 0
    lost: list[Position | None] = field(default_factory=list)  # None: acknowledged without a position
    duplicates: list[Position] = field(default_factory=list)
    reordered: list[Position] = field(default_factory=list)
    unexpected: list[Position] = field(default_factory=list)


def verify(topics: Iterable[TopicAccount], elsewhere: bool = False) -> Verdict:
    """Topics are taken one by one and can be read from a file as they are needed. `elsewhere`: another run published,
    so that every content may come; duplicates, order and conflicts are still checked."""
    verdict = Verdict()
    for topic in topics:
        _Topic(topic, verdict, elsewhere).check()
    return verdict


class _Topic:
    """One topic's check; adds to the verdict."""

    def __init__(self, account: TopicAccount, verdict: Verdict, elsewhere: bool) -> None:
        self.account = account
        self.verdict = verdict
        self.acknowledged = {sent.digest: sent.position for sent in account.acknowledged}
        self.allowed = {sent.digest for sent in account.unanswered}
        if elsewhere:
            self.allowed.update(entry.digest for transcript in account.transcripts for entry in transcript)

    def check(self) -> None:
        verdict, account = self.verdict, self.account
        verdict.acknowledged += len(account.acknowledged)
        verdict.unanswered += len(account.unanswered)
        verdict.failed += len(account.failed)
        self.check_positions()
        self.check_publishers()
        known: dict[tuple[object, ...], _Findings] = {}
        for subscriber in account.subscribers:
            # Those with the same history share one check; `runs` and `notices` are compared whole.
            key = (subscriber.transcript, subscriber.start, tuple(subscriber.runs), tuple(subscriber.notices))
            findings = known.get(key)
            if findings is None:
                findings = known[key] = self.check_subscriber(subscriber)
            self.count(subscriber, findings)

    def problem(
        self, kind: Kind, positions: Sequence[Position | None], subscriber: int | None = None, text: str = ""
    ) -> None:
        self.verdict.problems.append(
            Problem(
                kind=kind,  # type: ignore[arg-type]
                topic=self.account.topic,
                subscriber=subscriber,
                count=len(positions),
                positions=[str(position) if position else "unknown" for position in positions[:NAMED]],
                text=text,
            )
        )

    def check_positions(self) -> None:
        """Everybody must see the same content at a position, and an acknowledged one where it was acknowledged."""
        at: dict[Position, set[str]] = {}
        for digest, position in self.acknowledged.items():
            if position is not None:
                at.setdefault(position, set()).add(digest)
        wrong: set[Position] = set()
        for transcript in self.account.transcripts:
            for entry in transcript:
                at.setdefault(entry.position, set()).add(entry.digest)
                if self.acknowledged.get(entry.digest) not in (None, entry.position):
                    wrong.add(entry.position)
        wrong.update(position for position, digests in at.items() if len(digests) > 1)
        if wrong:
            self.verdict.conflicts += len(wrong)
            self.problem("conflict", sorted(wrong), text="different contents at one position, or one content at two")

    def check_publishers(self) -> None:
        """A publisher's order within a topic is the order of positions."""
        order: dict[int, list[tuple[int, Position]]] = {}
        for sent in self.account.acknowledged:
            if sent.position is not None:
                order.setdefault(sent.publisher, []).append((sent.number, sent.position))
        for publisher, numbers in sorted(order.items()):
            numbers.sort()
            swapped: list[Position | None] = [
                late[1] for early, late in pairwise(numbers) if early[1] >= late[1] or early[0] == late[0]
            ]
            if swapped:
                self.verdict.reordered += len(swapped)
                self.problem("reordered", swapped, text=f"acknowledged out of publisher {publisher}'s order")

    def check_subscriber(self, subscriber: SubscriberAccount) -> _Findings:
        found = _Findings()
        start = subscriber.start
        owed: dict[str, Position | None] = {}
        if start is not None:
            owed = {
                digest: position
                for digest, position in self.acknowledged.items()
                if position is None or position > start
            }
        found.expected = len(owed)
        seen: set[str] = set()
        last = start or Position(0, 0)
        for entry in self.account.deliveries(subscriber):
            found.received += 1
            if entry.digest in seen:
                found.duplicates.append(entry.position)
                continue
            seen.add(entry.digest)
            if entry.digest not in owed:
                if entry.digest not in self.allowed:
                    found.unexpected.append(entry.position)
                    continue
                found.unknown += 1
            else:
                found.delivered += 1
            if entry.position <= last:
                found.reordered.append(entry.position)
            else:
                last = entry.position
        missing = [position for digest, position in owed.items() if digest not in seen]
        found.lost = sorted(missing, key=lambda position: position or Position(0, 0))
        found.gaps = sum(_told(position, subscriber.notices) for position in missing)
        return found

    def count(self, subscriber: SubscriberAccount, found: _Findings) -> None:
        verdict = self.verdict
        verdict.expected += found.expected
        verdict.delivered += found.delivered
        verdict.received += found.received
        verdict.unknown += found.unknown
        verdict.gaps += found.gaps
        verdict.lost += len(found.lost)
        verdict.duplicates += len(found.duplicates)
        verdict.reordered += len(found.reordered)
        verdict.unexpected += len(found.unexpected)
        number = subscriber.subscriber
        if found.lost:
            verdict.lost_by_broker[subscriber.brokers[-1] if subscriber.brokers else ""] += len(found.lost)
            told = f"{found.gaps} of them told by a receipt" if found.gaps else "no receipt told of it"
            self.problem("lost", found.lost, number, told)
        if found.duplicates:
            self.problem("duplicate", found.duplicates, number)
        if found.reordered:
            self.problem("reordered", found.reordered, number, "delivered behind a higher position")
        if found.unexpected:
            self.problem("unexpected", found.unexpected, number)


def _told(position: Position | None, notices: Iterable[Notice]) -> bool:
    if position is None:
        return False
    for notice in notices:
        if notice.receipt == "reset" and position <= notice.position:
            return True
        if notice.receipt == "truncated" and notice.first <= position.sequence <= notice.last:
            return True
    return False
