"""The verifier: compares what was acknowledged with what was delivered to every subscriber. Pure and exact.

A single delivery that is missing, repeated or out of order is found and named by topic, position and subscriber.

lost        acknowledged, after the subscription's start, and not delivered (`gaps` of these were reported by a receipt)
duplicate   delivered more than once to the same subscriber
reordered   delivered after a higher position, or acknowledged at positions that reverse a publisher's order
unexpected  delivered, but never published, or refused, or from before the subscription's start
conflict    two contents at one position, or a content acknowledged at one position and delivered at another
unknown     published, not answered or with an unknown outcome, and delivered: allowed, and only counted
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from migratory_protocol.positions import Position

from migratory_loadtest.records import GapRecord, SubscriberRecord, TopicRecord
from migratory_loadtest.result import DeliveryProblem

MAX_POSITIONS = 20
"""Positions that a problem names, so that it stays readable. Its count is exact."""
VIOLATIONS = ("lost", "duplicates", "reordered", "unexpected", "conflicts")
"""The counts of `Verification` that must be zero."""
Kind = str


@dataclass(slots=True)
class Verification:
    """The verifier's counts and problems over all topics. `lost = expected - delivered`."""

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
    problems: list[DeliveryProblem] = field(default_factory=list)
    lost_by_broker: Counter[str] = field(default_factory=Counter)  # by the broker of the subscriber's last delivery

    @property
    def clean(self) -> bool:
        """True if every delivery guarantee was kept. Refused and unanswered publications violate none."""
        return not any(getattr(self, kind) for kind in VIOLATIONS)

    @property
    def violations(self) -> list[str]:
        """The violated guarantees and the number of refused publications, in words. Empty if there are none."""
        texts = [f"{count} {kind}" for kind in VIOLATIONS if (count := getattr(self, kind))]
        if self.lost and self.gaps:
            texts[0] += f", {self.gaps} of them reported by receipts"
        if self.failed:
            texts.append(f"{self.failed} publications were refused")
        return texts


@dataclass(slots=True)
class _SubscriberFindings:
    """The verifier's findings for one subscriber, or for several with the same deliveries."""

    expected: int = 0
    delivered: int = 0
    received: int = 0
    unknown: int = 0
    gaps: int = 0
    lost: list[Position | None] = field(default_factory=list)  # None: acknowledged without a position
    duplicates: list[Position] = field(default_factory=list)
    reordered: list[Position] = field(default_factory=list)
    unexpected: list[Position] = field(default_factory=list)


def verify(topics: Iterable[TopicRecord], published_elsewhere: bool = False) -> Verification:
    """Verify the topics one by one, and return the findings. `topics` may be a generator that reads a file.

    :param published_elsewhere: True if another run published, so that every delivered content is allowed, and none is
        expected unless it is recorded as acknowledged. Duplicates, order and conflicts are still checked.
    """
    verification = Verification()
    for topic in topics:
        _TopicCheck(topic, verification, published_elsewhere).check()
    return verification


class _TopicCheck:
    """The check of one topic. It adds its findings to the verification."""

    def __init__(self, record: TopicRecord, verification: Verification, published_elsewhere: bool) -> None:
        self.record = record
        self.verification = verification
        self.acknowledged = {sent.digest: sent.position for sent in record.acknowledged}
        self.allowed = {sent.digest for sent in record.unanswered}
        if published_elsewhere:
            self.allowed.update(entry.digest for transcript in record.transcripts for entry in transcript)

    def check(self) -> None:
        """Check positions, publishers and each subscriber of the topic, and add the findings to the verification."""
        verification, record = self.verification, self.record
        verification.acknowledged += len(record.acknowledged)
        verification.unanswered += len(record.unanswered)
        verification.failed += len(record.failed)
        self.check_positions()
        self.check_publishers()
        checked: dict[tuple[object, ...], _SubscriberFindings] = {}
        for subscriber in record.subscribers:
            # Subscribers with the same deliveries share one check; `runs` and `notices` are compared completely.
            key = (subscriber.transcript, subscriber.start, tuple(subscriber.runs), tuple(subscriber.notices))
            findings = checked.get(key)
            if findings is None:
                findings = checked[key] = self.check_subscriber(subscriber)
            self.add_findings(subscriber, findings)

    def add_problem(
        self, kind: Kind, positions: Sequence[Position | None], subscriber: int | None = None, text: str = ""
    ) -> None:
        """Add a problem of the topic at these positions to the verification. None stands for an unknown position.
        `subscriber` is None for a problem of the whole topic."""
        self.verification.problems.append(
            DeliveryProblem(
                kind=kind,  # type: ignore[arg-type]
                topic=self.record.topic,
                subscriber=subscriber,
                count=len(positions),
                positions=[str(position) if position else "unknown" for position in positions[:MAX_POSITIONS]],
                text=text,
            )
        )

    def check_positions(self) -> None:
        """Check that all subscribers got the same content at a position, and each content at the position at which it
        was acknowledged. Add a problem otherwise."""
        digests_at: dict[Position, set[str]] = {}
        for digest, position in self.acknowledged.items():
            if position is not None:
                digests_at.setdefault(position, set()).add(digest)
        conflicts: set[Position] = set()
        for transcript in self.record.transcripts:
            for entry in transcript:
                digests_at.setdefault(entry.position, set()).add(entry.digest)
                if self.acknowledged.get(entry.digest) not in (None, entry.position):
                    conflicts.add(entry.position)
        conflicts.update(position for position, digests in digests_at.items() if len(digests) > 1)
        if conflicts:
            self.verification.conflicts += len(conflicts)
            self.add_problem(
                "conflict", sorted(conflicts), text="different contents at one position, or one content at two"
            )

    def check_publishers(self) -> None:
        """Check that each publisher's acknowledged publications in the topic have rising positions in the order of
        sending, and that none of its numbers occurs twice. Add a problem otherwise."""
        by_publisher: dict[int, list[tuple[int, Position]]] = {}
        for sent in self.record.acknowledged:
            if sent.position is not None:
                by_publisher.setdefault(sent.publisher, []).append((sent.number, sent.position))
        for publisher, numbers in sorted(by_publisher.items()):
            numbers.sort()
            reordered: list[Position | None] = [
                later[1] for earlier, later in pairwise(numbers) if earlier[1] >= later[1] or earlier[0] == later[0]
            ]
            if reordered:
                self.verification.reordered += len(reordered)
                self.add_problem("reordered", reordered, text=f"acknowledged out of publisher {publisher}'s order")

    def check_subscriber(self, subscriber: SubscriberRecord) -> _SubscriberFindings:
        """Compare the deliveries to a subscriber with the publications that it must receive, and return the findings.
        Change nothing."""
        findings = _SubscriberFindings()
        start = subscriber.start
        expected: dict[str, Position | None] = {}
        if start is not None:
            expected = {
                digest: position
                for digest, position in self.acknowledged.items()
                if position is None or position > start
            }
        findings.expected = len(expected)
        seen: set[str] = set()
        last = start or Position(0, 0)
        for entry in self.record.deliveries(subscriber):
            findings.received += 1
            if entry.digest in seen:
                findings.duplicates.append(entry.position)
                continue
            seen.add(entry.digest)
            if entry.digest not in expected:
                if entry.digest not in self.allowed:
                    findings.unexpected.append(entry.position)
                    continue
                findings.unknown += 1
            else:
                findings.delivered += 1
            if entry.position <= last:
                findings.reordered.append(entry.position)
            else:
                last = entry.position
        missing = [position for digest, position in expected.items() if digest not in seen]
        findings.lost = sorted(missing, key=lambda position: position or Position(0, 0))
        findings.gaps = sum(_is_reported(position, subscriber.notices) for position in missing)
        return findings

    def add_findings(self, subscriber: SubscriberRecord, findings: _SubscriberFindings) -> None:
        """Add the findings for one subscriber to the verification's counts, and a problem for each kind of violation.
        Lost deliveries count for the broker of the subscriber's last delivery."""
        verification = self.verification
        verification.expected += findings.expected
        verification.delivered += findings.delivered
        verification.received += findings.received
        verification.unknown += findings.unknown
        verification.gaps += findings.gaps
        verification.lost += len(findings.lost)
        verification.duplicates += len(findings.duplicates)
        verification.reordered += len(findings.reordered)
        verification.unexpected += len(findings.unexpected)
        number = subscriber.subscriber
        if findings.lost:
            broker = subscriber.brokers[-1] if subscriber.brokers else ""
            verification.lost_by_broker[broker] += len(findings.lost)
            reported = f"{findings.gaps} of them reported by receipts" if findings.gaps else "not reported by a receipt"
            self.add_problem("lost", findings.lost, number, reported)
        if findings.duplicates:
            self.add_problem("duplicate", findings.duplicates, number)
        if findings.reordered:
            self.add_problem("reordered", findings.reordered, number, "delivered after a higher position")
        if findings.unexpected:
            self.add_problem("unexpected", findings.unexpected, number)


def _is_reported(position: Position | None, notices: Iterable[GapRecord]) -> bool:
    """Return whether a receipt reported the loss of this position to the subscriber. An unknown position (None) counts
    as not reported."""
    if position is None:
        return False
    for notice in notices:
        if notice.receipt == "reset" and position <= notice.position:
            return True
        if notice.receipt == "truncated" and notice.first <= position.sequence <= notice.last:
            return True
    return False
