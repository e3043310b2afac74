"""Judges histories: what was acknowledged against what every subscriber got. Pure, and independent of the load
generator's verifier: nothing of the product is used, positions are pairs of numbers.

lost        acknowledged and owed, not delivered, not named by a receipt; or a hole in a subscriber's sequence numbers
duplicate   a content delivered again to a subscriber, or one content at two positions
reordered   delivered behind a higher position, or placed against a publisher's own order
unexpected  never submitted (or altered on its way), refused for good, or two contents at one position
unknown     submitted, never acknowledged, refused neither: delivered or not, both are right
told        missing, though owed or seen by others, but a receipt (`truncated`, `reset`) named it: no fault of order,
            and still counted
resets      receipts `reset`: where no history was lost, a broker was behind its subscriber
unread      topics from which nobody got anything: of what was lost there nothing can be known
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from itertools import pairwise

from migratory_chaos.history import REFUSED_LATER, Delivered, Gap, Place, Sent, Stream, TopicHistory

NAMED = 10
"""Findings named per kind and client of a topic; counts are exact."""


@dataclass(frozen=True, slots=True)
class Finding:
    """`place` as "epoch:sequence"; empty when an acknowledgement named none."""

    kind: str
    topic: str
    place: str
    client: str
    text: str


@dataclass(slots=True)
class Verdict:
    """Sums over all topics. `unknown` counts publications; those of them that were seen are `unknown_delivered`."""

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
    told: int = 0
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
        """Why a run with these histories does not pass; no promise was kept where nothing was promised."""
        found = []
        if not self.clean or self.told:
            found.append(
                f"{self.lost} lost, {self.duplicate} duplicate, {self.reordered} reordered, "
                f"{self.unexpected} unexpected, {self.told} missing and told"
            )
        if self.failed:
            found.append(f"{self.failed} publications were refused for good")
        if not self.acknowledged:
            found.append("nothing was acknowledged")
        if self.unread:
            found.append(f"of {self.unread} of {self.topics} topics nobody got anything")
        return found

    def as_data(self) -> dict[str, object]:
        return {**asdict(self), "clean": self.clean}


def check(
    topics: Iterable[TopicHistory], moments: Sequence[int] = (), *, from_start: bool = False
) -> tuple[Verdict, list[int]]:
    """The verdict, and for each of `moments` (milliseconds, rising) how many publications were under way then:
    submitted, and answered later or never. `from_start`: everybody subscribed before anything was published, so that
    everything is owed to everybody."""
    verdict = Verdict()
    under_way = [0] * len(moments)
    for topic in topics:
        _Topic(topic, verdict, from_start).check()
        for sent in (entry for entries in topic.publishers.values() for entry in entries):
            for number in range(bisect_right(moments, sent.sent_ms), len(moments)):
                if sent.answered_ms is not None and sent.answered_ms <= moments[number]:
                    break
                under_way[number] += 1
    return verdict, under_way


def text(place: Place | None) -> str:
    return "" if place is None else f"{place[0]}:{place[1]}"


class _Topic:
    """One topic's check; adds to the verdict."""

    def __init__(self, history: TopicHistory, verdict: Verdict, from_start: bool) -> None:
        self.topic = history.topic
        self.from_start = from_start
        self.history = history
        self.verdict = verdict
        self.sent: dict[str, Sent] = {}
        self.seen_unknown: set[str] = set()
        self.place_of: dict[str, Place] = {}

    def check(self) -> None:
        verdict = self.verdict
        verdict.topics += 1
        for client, entries in self.history.publishers.items():
            self.check_publisher(client, entries)
        self.check_places()
        for client, stream in self.history.subscribers.items():
            self.check_subscriber(client, stream)
        verdict.unknown_delivered += len(self.seen_unknown)
        received = (event for stream in self.history.subscribers.values() for event in stream.events)
        verdict.unread += bool(self.sent) and not any(isinstance(event, Delivered) for event in received)

    def found(self, kind: str, client: str, places: Sequence[Place | None], why: str) -> None:
        if places:
            setattr(self.verdict, kind, getattr(self.verdict, kind) + len(places))
            for place in places[:NAMED]:
                self.verdict.findings.append(Finding(kind, self.topic, text(place), client, why))

    def check_publisher(self, client: str, entries: list[Sent]) -> None:
        verdict = self.verdict
        doubled = []
        for entry in entries:
            if entry.digest in self.sent:
                doubled.append(entry.place)
            self.sent[entry.digest] = entry
            verdict.submitted += 1
            if entry.acknowledged:
                verdict.acknowledged += 1
                verdict.slowest_ms = max(verdict.slowest_ms, (entry.answered_ms or 0) - entry.sent_ms)
            elif entry.failed and entry.failed not in REFUSED_LATER:
                verdict.failed += 1
            else:
                verdict.unknown += 1
        self.found("unexpected", client, doubled, "two publications of this run have one content")

    def check_places(self) -> None:
        """Everybody sees one content at a position, and a content at the position where it was acknowledged."""
        content: dict[Place, str] = {}
        place_of = self.place_of
        conflicts: set[Place] = set()
        moved: set[Place] = set()

        def look(place: Place, digest: str) -> None:
            if content.setdefault(place, digest) != digest:
                conflicts.add(place)
            if place_of.setdefault(digest, place) != place:
                moved.add(place)

        for digest, entry in self.sent.items():
            if entry.place is not None:
                look(entry.place, digest)
        for stream in self.history.subscribers.values():
            for event in stream.events:
                if isinstance(event, Delivered):
                    look(event.place, event.digest)
        self.found("unexpected", "", sorted(conflicts), "two contents at this position")
        self.found("duplicate", "", sorted(moved), "a content that has another position already")
        for client, entries in self.history.publishers.items():
            placed = [(entry.number, place_of[entry.digest]) for entry in entries if entry.digest in place_of]
            placed.sort()
            late: list[Place | None] = [second[1] for first, second in pairwise(placed) if second[1] <= first[1]]
            self.found("reordered", client, late, "placed against the publisher's own order")

    def check_subscriber(self, client: str, stream: Stream) -> None:
        verdict, sent = self.verdict, self.sent
        start = stream.start
        if start is None:
            self.found("lost", client, [None], "never had a receipt: nothing was subscribed")
            return
        if self.from_start and start[1]:
            self.found("lost", client, [start], "it began here, though it subscribed before anything was published")
            start = (start[0], 0)
        seen: set[str] = set()
        again: list[Place | None] = []
        late: list[Place | None] = []
        foreign: list[Place | None] = []
        refused: list[Place | None] = []
        holes: list[tuple[int, int, Place]] = []
        last = start
        for event in stream.events:
            if isinstance(event, Gap):
                if event.kind == "reset":
                    verdict.resets += 1
                    last = event.behind
                elif event.kind == "truncated":
                    if event.first > last[1] + 1:
                        holes.append((last[1] + 1, event.first - 1, (last[0], event.first)))
                    last = (last[0], max(last[1], event.last))
                continue
            place, digest = event.place, event.digest
            verdict.delivered += 1
            if digest in seen:
                again.append(place)
                last = max(last, place)  # behind a `reset` to an earlier position the stream goes on from there
                continue
            seen.add(digest)
            entry = sent.get(digest)
            if entry is None:
                foreign.append(place)
            elif not entry.acknowledged:
                if entry.failed and entry.failed not in REFUSED_LATER:
                    refused.append(place)
                else:
                    self.seen_unknown.add(digest)
            if place <= last or place[1] <= last[1]:  # a later epoch numbers on, it does not begin anew
                late.append(place)
                continue
            # Sequence numbers go on through all epochs of a history; a new history is told by `reset`.
            if place[1] != last[1] + 1:
                holes.append((last[1] + 1, place[1] - 1, place))
            last = place
        self.found("duplicate", client, again, "delivered again")
        self.found("reordered", client, late, "delivered behind a higher position")
        self.found("unexpected", client, foreign, "nobody submitted this content")
        self.found("unexpected", client, refused, "was refused for good, and delivered")
        self.check_missing(client, stream, start, seen, holes)

    def check_missing(
        self, client: str, stream: Stream, start: Place, seen: set[str], holes: list[tuple[int, int, Place]]
    ) -> None:
        gaps = [event for event in stream.events if isinstance(event, Gap)]
        missing: list[Place | None] = []
        told = 0
        for digest, entry in self.sent.items():
            if not entry.acknowledged or (entry.place is not None and entry.place <= start):
                continue
            self.verdict.owed += 1
            if digest in seen:
                continue
            if entry.place is not None and any(_names(gap, entry.place) for gap in gaps):
                told += 1
            else:
                missing.append(entry.place)
        for digest, place in self.place_of.items():  # nobody owes it, but others got it
            owed = digest in self.sent and self.sent[digest].acknowledged
            if not owed and digest not in seen and place > start:
                told += any(_names(gap, place) for gap in gaps)
        self.verdict.told += told
        missing.sort(key=lambda place: place or (0, 0))
        self.found("lost", client, missing, "acknowledged, not delivered, and no receipt tells of it")
        # What is missing was found above where it was acknowledged; a hole of the others is silent all the same.
        known = {place[1] for place in missing if place is not None}
        silent: list[Place | None] = [
            behind for first, end, behind in holes if not any(number in known for number in range(first, end + 1))
        ]
        self.found("lost", client, silent, "a hole in the sequence numbers before this position")


def _names(gap: Gap, place: Place) -> bool:
    """Whether the receipt says that the publication at this place is missing."""
    if gap.kind == "reset":
        return place <= gap.behind
    return gap.kind == "truncated" and gap.first <= place[1] <= gap.last
