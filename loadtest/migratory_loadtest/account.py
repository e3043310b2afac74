"""The account of a run: what was published and what each subscriber got, complete and still small. It is what the
verifier reads; `migratory bench run --account FILE` keeps it, one JSON line a topic, so that anyone can count again.

All subscribers of a topic in one worker get nearly always the same, so a worker keeps one *transcript* a topic, the
distinct deliveries in the order in which they were first seen, and for each subscriber only *runs* into it. Nothing is
summed up or left out: a delivery that was missed, doubled or swapped begins a new run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from migratory_protocol.positions import Position
from msgspec import Struct, field


class Sent(Struct, array_like=True, frozen=True):
    """A publication. `position` of an acknowledged one may be None: a duplicate that is no longer cached."""

    digest: str
    publisher: int
    number: int
    position: Position | None = None


class Entry(Struct, array_like=True, frozen=True):
    """A delivery."""

    position: Position
    digest: str


class Notice(Struct, array_like=True, frozen=True):
    """A `truncated` (with the missing sequence numbers) or `reset` (with the new position) that a subscriber got."""

    receipt: str
    position: Position
    first: int = 0
    last: int = 0


class SubscriberAccount(Struct):
    """`start` is the position of the first receipt: what follows it is owed. `runs` are half-open ranges of the
    transcript, in the order of delivery. `brokers`: for each run the broker that delivered it."""

    subscriber: int
    start: Position | None
    transcript: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    notices: list[Notice] = field(default_factory=list)


class TopicAccount(Struct):
    """`failed` were refused for good: they must not be delivered, unless the answer was lost; `unanswered` may be."""

    topic: str
    acknowledged: list[Sent] = field(default_factory=list)
    unanswered: list[Sent] = field(default_factory=list)
    failed: list[Sent] = field(default_factory=list)
    transcripts: list[list[Entry]] = field(default_factory=list)
    subscribers: list[SubscriberAccount] = field(default_factory=list)

    def deliveries(self, subscriber: SubscriberAccount) -> Iterator[Entry]:
        """Everything that the subscriber got, in order."""
        if subscriber.runs:
            transcript = self.transcripts[subscriber.transcript]
            for first, end in subscriber.runs:
                yield from transcript[first:end]

    def add(self, other: TopicAccount) -> None:
        """Takes over what another worker knows of the same topic."""
        self.acknowledged += other.acknowledged
        self.unanswered += other.unanswered
        self.failed += other.failed
        for subscriber in other.subscribers:
            subscriber.transcript += len(self.transcripts)
        self.transcripts += other.transcripts
        self.subscribers += other.subscribers


def write(path: Path, topics: Iterable[TopicAccount]) -> None:
    with path.open("wb") as file:
        for topic in topics:
            file.write(msgspec.json.encode(topic) + b"\n")


def read(path: Path) -> Iterator[TopicAccount]:
    """Raises ValueError, naming the line, for a file that is no account."""
    decoder = msgspec.json.Decoder(TopicAccount)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
