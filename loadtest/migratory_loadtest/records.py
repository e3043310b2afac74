"""The run record: every publication of a run, and every delivery to each subscriber. The verifier reads it.

`migratory bench run --account FILE` and `migratory bench sub --account FILE` write the record, one line of JSON per
topic, so that anyone can verify a run again.

The record is complete and still small. Nearly all subscribers of a topic receive the same deliveries. A worker keeps
one *transcript* per topic, the distinct deliveries in the order in which they were first seen, and for each subscriber
only *runs*, ranges of the transcript. Nothing is aggregated: a delivery that is missing, repeated or out of order
begins a new run.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import msgspec
from migratory_protocol.positions import Position
from msgspec import Struct, field


class PublicationRecord(Struct, array_like=True, frozen=True):
    """A publication, as its publisher recorded it: the digest of its payload, the number of its publisher in the run,
    and its own number in its topic, from 1.

    `position` is None unless the publication was acknowledged, and also for an acknowledged duplicate that is no longer
    cached.
    """

    digest: str
    publisher: int
    number: int
    position: Position | None = None


class DeliveryRecord(Struct, array_like=True, frozen=True):
    """A delivery of one publication to one subscriber: its position and the digest of its payload."""

    position: Position
    digest: str


class GapRecord(Struct, array_like=True, frozen=True):
    """A receipt that reported a gap to a subscriber.

    `receipt` is "truncated" (`first` to `last` are the missing sequence numbers, and `position` is the topic's newest
    one) or "reset" (`position` is where the new history starts for the subscriber).
    """

    receipt: str
    position: Position
    first: int = 0
    last: int = 0


class SubscriberRecord(Struct):
    """The deliveries to one subscriber.

    `start` is the position of its first receipt: every acknowledged publication with a later position must be
    delivered. It is None without a receipt: then none must. `transcript` is an index into the topic's transcripts.
    `runs` are half-open ranges of the transcript in the order of delivery, and `brokers` has the delivering broker for
    each run. `notices` are the receipts that reported a gap.
    """

    subscriber: int
    start: Position | None
    transcript: int = 0
    runs: list[tuple[int, int]] = field(default_factory=list)
    brokers: list[str] = field(default_factory=list)
    notices: list[GapRecord] = field(default_factory=list)


class TopicRecord(Struct):
    """All publications and deliveries of one topic.

    `failed` publications were refused: they must not be delivered. `unanswered` ones may or may not be delivered; all
    of QoS 0 are among them, and those whose answer was that the outcome is unknown.
    """

    topic: str
    acknowledged: list[PublicationRecord] = field(default_factory=list)
    unanswered: list[PublicationRecord] = field(default_factory=list)
    failed: list[PublicationRecord] = field(default_factory=list)
    transcripts: list[list[DeliveryRecord]] = field(default_factory=list)
    subscribers: list[SubscriberRecord] = field(default_factory=list)

    def deliveries(self, subscriber: SubscriberRecord) -> Iterator[DeliveryRecord]:
        """Yield all deliveries to the subscriber, in the order of delivery."""
        if subscriber.runs:
            transcript = self.transcripts[subscriber.transcript]
            for first, end in subscriber.runs:
                yield from transcript[first:end]

    def add(self, other: TopicRecord) -> None:
        """Add another worker's record of the same topic to this one. Change the transcript indexes in `other`, which
        must not be used after that."""
        self.acknowledged += other.acknowledged
        self.unanswered += other.unanswered
        self.failed += other.failed
        for subscriber in other.subscribers:
            subscriber.transcript += len(self.transcripts)
        self.transcripts += other.transcripts
        self.subscribers += other.subscribers


def write_records(path: Path, topics: Iterable[TopicRecord]) -> None:
    """Write topic records into a file, one line of JSON each, in place of its content. Raise OSError if it cannot be
    written."""
    with path.open("wb") as file:
        for topic in topics:
            file.write(msgspec.json.encode(topic) + b"\n")


def read_records(path: Path) -> Iterator[TopicRecord]:
    """Yield the topic records in a file that `write_records` wrote, one at a time.

    :raises OSError: the file cannot be read.
    :raises ValueError: a line is not a topic record; the message names the line.
    """
    decoder = msgspec.json.Decoder(TopicRecord)
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                yield decoder.decode(line)
            except msgspec.MsgspecError as error:
                raise ValueError(f"{path}, line {number}: {error}") from error
