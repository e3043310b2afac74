"""The checker of histories: compares acknowledged publications with what every subscriber received.

Pure, and independent of the load generator's verifier: it uses nothing of the product, and positions are pairs of
numbers. A delivery is owed to a subscriber when the publication was acknowledged, at a position above the one at
which the subscription began or without one.

lost        acknowledged and owed, not delivered, not named by a receipt; or a hole in a subscriber's sequence numbers
duplicate   a content delivered again to a subscriber, or one content at two positions
reordered   delivered after a higher position, or positioned against a publisher's own order
unexpected  never submitted (or altered in transit), refused for good, or two contents at one position
unknown     submitted, neither acknowledged nor refused: it may be delivered or not
reported    owed or seen by others, missing, and named by a receipt (`truncated`, `reset`); `told` in results
resets      receipts `reset`: as no history is lost in a run, a broker was behind its subscriber
unread      topics of which no subscriber received anything, so that losses can't be seen
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from migratory_chaos.processes.history import UNKNOWN_OUTCOMES, Delivered, Gap, Position, Sent, Stream, TopicHistory

MAX_FINDINGS = 10
"""Findings that are listed at most for one kind, client and topic. Counts are exact."""


@dataclass(frozen=True, slots=True)
class Finding:
    """A violation. `position` is "epoch:sequence", or empty when the acknowledgement named none."""

    kind: str
    topic: str
    position: str
    client: str
    text: str


@dataclass(slots=True)
class Verdict:
    """The result of a check: sums over all topics, and the first findings. `unknown_delivered` counts the `unknown`
    publications that were delivered."""

    topics: int = 0
    submitted: int = 0
    acknowledged: int = 0
    failed: int = 0
    owed: int = 0
    delivered: int = 0
    lost: int = 0
    duplicate: int = 0
    reordered: int = 0
    unexpected: int = 0
    reported: int = 0
    unknown: int = 0
    unknown_delivered: int = 0
    resets: int = 0
    unread: int = 0
    slowest_ms: int = 0
    findings: list[Finding] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not (self.lost or self.duplicate or self.reordered or self.unexpected)

    def problems(self) -> list[str]:
        """Return the reasons for which a run with these histories fails; empty if there are none. A run in which
        nothing was acknowledged shows nothing, and fails."""
        found = []
        if not self.clean or self.reported:
            found.append(
                f"{self.lost} lost, {self.duplicate} duplicate, {self.reordered} reordered, "
                f"{self.unexpected} unexpected, {self.reported} missing and reported"
            )
        if self.failed:
            found.append(f"{self.failed} publications were refused for good")
        if not self.acknowledged:
            found.append("nothing was acknowledged")
        if self.unread:
            found.append(f"no subscriber received anything of {self.unread} of {self.topics} topics")
        return found

    def as_data(self) -> dict[str, object]:
        data = asdict(self)
        return {**data, "told": data.pop("reported"), "clean": self.clean}


def check(
    topics: Iterable[TopicHistory], moments: Sequence[int] = (), *, from_start: bool = False
) -> tuple[Verdict, list[int]]:
    """Return the verdict, and the number of publications in flight at each of `moments` (milliseconds, ascending).

    :param from_start: all subscriptions began before the first publication, so that everything is owed to everyone.
    """
    verdict = Verdict()
    in_flight = [0] * len(moments)
    for topic in topics:
        _Topic(topic, verdict, from_start).check()
        for sent in (entry for entries in topic.publishers.values() for entry in entries):
            for number in range(bisect_right(moments, sent.sent_ms), len(moments)):
                if sent.answered_ms is not None and sent.answered_ms <= moments[number]:
                    break
                in_flight[number] += 1
    return verdict, in_flight


def format_position(position: Position | None) -> str:
    return "" if position is None else f"{position[0]}:{position[1]}"


class _Topic:
    """The check of one topic, which adds to the verdict."""

    def __init__(self, history: TopicHistory, verdict: Verdict, from_start: bool) -> None:
        self.topic = history.topic
        self.from_start = from_start
        self.history = history
        self.verdict = verdict
        self.sent: dict[str, Sent] = {}
        self.seen_unknown: set[str] = set()
        self.position_of: dict[str, Position] = {}

    def check(self) -> None:
        verdict = self.verdict
        verdict.topics += 1
        for client, entries in self.history.publishers.items():
            self.check_publisher(client, entries)
        self.check_positions()
        for client, stream in self.history.subscribers.items():
            self.check_subscriber(client, stream)
        verdict.unknown_delivered += len(self.seen_unknown)
        received = (event for stream in self.history.subscribers.values() for event in stream.events)
        verdict.unread += bool(self.sent) and not any(isinstance(event, Delivered) for event in received)

    def report(self, kind: str, client: str, positions: Sequence[Position | None], why: str) -> None:
        if positions:
            setattr(self.verdict, kind, getattr(self.verdict, kind) + len(positions))
            for position in positions[:MAX_FINDINGS]:
                self.verdict.findings.append(Finding(kind, self.topic, format_position(position), client, why))

    def check_publisher(self, client: str, entries: list[Sent]) -> None:
        verdict = self.verdict
        doubled = []
        for entry in entries:
            if entry.digest in self.sent:
                doubled.append(entry.position)
            self.sent[entry.digest] = entry
            verdict.submitted += 1
            if entry.acknowledged:
                verdict.acknowledged += 1
                verdict.slowest_ms = max(verdict.slowest_ms, (entry.answered_ms or 0) - entry.sent_ms)
            elif entry.failed and entry.failed not in UNKNOWN_OUTCOMES:
                verdict.failed += 1
            else:
                verdict.unknown += 1
        self.report("unexpected", client, doubled, "two publications of this run have one content")

    def check_positions(self) -> None:
        """Check that a position has one content, a content one position, and each publisher's publications the order
        in which it submitted them, as all clients saw them."""
        content: dict[Position, str] = {}
        position_of = self.position_of
        conflicts: set[Position] = set()
        moved: set[Position] = set()

        def add(position: Position, digest: str) -> None:
            if content.setdefault(position, digest) != digest:
                conflicts.add(position)
            if position_of.setdefault(digest, position) != position:
                moved.add(position)

        for digest, entry in self.sent.items():
            if entry.position is not None:
                add(entry.position, digest)
        for stream in self.history.subscribers.values():
            for event in stream.events:
                if isinstance(event, Delivered):
                    add(event.position, event.digest)
        self.report("unexpected", "", sorted(conflicts), "two contents at this position")
        self.report("duplicate", "", sorted(moved), "this content already has another position")
        for client, entries in self.history.publishers.items():
            positioned = [(entry.number, position_of[entry.digest]) for entry in entries if entry.digest in position_of]
            positioned.sort()
            out_of_order: list[Position | None] = [
                second[1] for first, second in pairwise(positioned) if second[1] <= first[1]
            ]
            self.report("reordered", client, out_of_order, "positioned against the publisher's own order")

    def check_subscriber(self, client: str, stream: Stream) -> None:
        verdict, sent = self.verdict, self.sent
        start = stream.start
        if start is None:
            self.report("lost", client, [None], "there was no receipt: the subscription never began")
            return
        if self.from_start and start[1]:
            self.report(
                "lost", client, [start], "the subscription began here, though it was made before the first publication"
            )
            start = (start[0], 0)
        seen: set[str] = set()
        repeated: list[Position | None] = []
        out_of_order: list[Position | None] = []
        unknown_contents: list[Position | None] = []
        refused: list[Position | None] = []
        holes: list[tuple[int, int, Position]] = []
        last = start
        for event in stream.events:
            if isinstance(event, Gap):
                if event.kind == "reset":
                    verdict.resets += 1
                    last = event.after
                elif event.kind == "truncated":
                    if event.first > last[1] + 1:
                        holes.append((last[1] + 1, event.first - 1, (last[0], event.first)))
                    last = (last[0], max(last[1], event.last))
                continue
            position, digest = event.position, event.digest
            verdict.delivered += 1
            if digest in seen:
                repeated.append(position)
                last = max(last, position)  # after a `reset` to an earlier position the stream continues from there
                continue
            seen.add(digest)
            entry = sent.get(digest)
            if entry is None:
                unknown_contents.append(position)
            elif not entry.acknowledged:
                if entry.failed and entry.failed not in UNKNOWN_OUTCOMES:
                    refused.append(position)
                else:
                    self.seen_unknown.add(digest)
            if position <= last or position[1] <= last[1]:  # a later epoch continues the sequence
                out_of_order.append(position)
                continue
            # Sequence numbers continue through all epochs of a history; `reset` announces a new history.
            if position[1] != last[1] + 1:
                holes.append((last[1] + 1, position[1] - 1, position))
            last = position
        self.report("duplicate", client, repeated, "delivered again")
        self.report("reordered", client, out_of_order, "delivered after a higher position")
        self.report("unexpected", client, unknown_contents, "no publisher submitted this content")
        self.report("unexpected", client, refused, "refused for good, and delivered")
        self.check_missing(client, stream, start, seen, holes)

    def check_missing(
        self, client: str, stream: Stream, start: Position, seen: set[str], holes: list[tuple[int, int, Position]]
    ) -> None:
        gaps = [event for event in stream.events if isinstance(event, Gap)]
        missing: list[Position | None] = []
        reported = 0
        for digest, entry in self.sent.items():
            if not entry.acknowledged or (entry.position is not None and entry.position <= start):
                continue
            self.verdict.owed += 1
            if digest in seen:
                continue
            if entry.position is not None and any(_names(gap, entry.position) for gap in gaps):
                reported += 1
            else:
                missing.append(entry.position)
        for digest, position in self.position_of.items():  # not owed, but others received it
            owed = digest in self.sent and self.sent[digest].acknowledged
            if not owed and digest not in seen and position > start:
                reported += any(_names(gap, position) for gap in gaps)
        self.verdict.reported += reported
        missing.sort(key=lambda position: position or (0, 0))
        self.report("lost", client, missing, "acknowledged, not delivered, and no receipt reports it")
        # Missing acknowledged publications are reported above. A hole without one of them is a loss, too.
        known = {position[1] for position in missing if position is not None}
        silent: list[Position | None] = [
            before for first, end, before in holes if not any(number in known for number in range(first, end + 1))
        ]
        self.report("lost", client, silent, "a hole in the sequence numbers before this position")


def _names(gap: Gap, position: Position) -> bool:
    """Return whether the receipt reports the publication at this position as missing."""
    if gap.kind == "reset":
        return position <= gap.after
    return gap.kind == "truncated" and gap.first <= position[1] <= gap.last
