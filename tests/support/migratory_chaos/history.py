"""What the clients of a run saw, written down as it happened: a folder per topic, in it a text file per client, a line
per event, fields between spaces. Nothing is summed up here: `checker.py` judges.

A publisher's file (its name begins with `p-`):
    s NUMBER DIGEST MS           submitted; NUMBER counts from 1 per publisher and topic
    a NUMBER EPOCH SEQUENCE MS   acknowledged at that position; `a NUMBER ? ? MS`: without one
    f NUMBER CODE MS             refused, or not answered (timeout, closed)
A subscriber's file (`s-`), in the order in which the application got it:
    b EPOCH SEQUENCE             the first receipt: what follows this position is owed
    d EPOCH SEQUENCE DIGEST      delivered
    g KIND EPOCH SEQUENCE FIRST LAST   a receipt that tells of a gap: EPOCH SEQUENCE is where the stream goes on
                                 (`reset`), or where it stood before (`truncated`)
Both end with
    e LINES                      closed, behind so many lines: a file that was cut off, or lacks a line, is none
MS are milliseconds of the machine's monotonic clock, which all its processes share. In one file they never fall.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

Place = tuple[int, int]
"""A position: (epoch, sequence number)."""

UNKNOWN = "?"
REFUSED_LATER = ("timeout", "closed")
"""Failures after which the publication may still appear; after all others it must not."""


class BadHistory(ValueError):
    """A file that is no history; the text names file and line."""


@dataclass(slots=True)
class Sent:
    """One publication. `place` is None without an acknowledgement, and for one that named no position."""

    number: int
    digest: str
    sent_ms: int
    acknowledged: bool = False
    place: Place | None = None
    failed: str = ""
    answered_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    place: Place
    digest: str


@dataclass(frozen=True, slots=True)
class Gap:
    """`first`..`last` are missing for good (`truncated`; `behind` is where the stream stood), or all before `behind` is
    another history, and the stream goes on there (`reset`)."""

    kind: str
    behind: Place
    first: int
    last: int


@dataclass(slots=True)
class Stream:
    """What one subscriber got of the topic. `start` is None when no receipt ever came."""

    start: Place | None = None
    events: list[Delivered | Gap] = field(default_factory=list)


@dataclass(slots=True)
class TopicHistory:
    topic: str
    publishers: dict[str, list[Sent]] = field(default_factory=dict)
    subscribers: dict[str, Stream] = field(default_factory=dict)


def digest(payload: bytes) -> str:
    """Identity of a content: what was altered on its way has another one."""
    return blake2b(payload, digest_size=8).hexdigest()


class _ClientFile:
    """A client's file of one topic: lines are appended, and counted for the last one."""

    def __init__(self, folder: Path, topic: str, name: str) -> None:
        (folder / topic).mkdir(parents=True, exist_ok=True)
        self._file = (folder / topic / name).open("w", encoding="ascii", buffering=1 << 16)
        self._lines = 0

    def _add(self, line: str) -> None:
        self._file.write(f"{line}\n")
        self._lines += 1

    def close(self) -> None:
        self._file.write(f"e {self._lines}\n")
        self._file.close()


class PublisherFile(_ClientFile):
    """Appends a publisher's events of one topic."""

    def __init__(self, folder: Path, topic: str, client: str) -> None:
        super().__init__(folder, topic, f"p-{client}")

    def submitted(self, number: int, content: str, ms: int) -> None:
        self._add(f"s {number} {content} {ms}")

    def acknowledged(self, number: int, place: Place | None, ms: int) -> None:
        epoch, sequence = place if place is not None else (UNKNOWN, UNKNOWN)
        self._add(f"a {number} {epoch} {sequence} {ms}")

    def failed(self, number: int, code: str, ms: int) -> None:
        self._add(f"f {number} {code} {ms}")


class SubscriberFile(_ClientFile):
    """Appends a subscriber's events of one topic."""

    def __init__(self, folder: Path, topic: str, client: str) -> None:
        super().__init__(folder, topic, f"s-{client}")

    def began(self, place: Place) -> None:
        self._add(f"b {place[0]} {place[1]}")

    def delivered(self, place: Place, content: str) -> None:
        self._add(f"d {place[0]} {place[1]} {content}")

    def gap(self, kind: str, behind: Place, first: int, last: int) -> None:
        self._add(f"g {kind} {behind[0]} {behind[1]} {first} {last}")


def read(folder: Path) -> Iterator[TopicHistory]:
    """Topic by topic, so that an hour's histories need the memory of one topic.

    :raises BadHistory: naming file and line; also when there is nothing to read.
    """
    topics = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not topics:
        raise BadHistory(f"{folder}: no histories are there")
    for path in topics:
        yield read_topic(path)


def read_topic(path: Path) -> TopicHistory:
    """:raises BadHistory: naming file and line."""
    topic = TopicHistory(path.name)
    for file in sorted(path.iterdir()):
        kind, _, client = file.name.partition("-")
        if kind == "p":
            topic.publishers[client] = _read_publisher(file)
        elif kind == "s":
            topic.subscribers[client] = _read_subscriber(file)
        else:
            raise BadHistory(f"{file}: its name begins neither with p- nor with s-")
    return topic


def _read_publisher(file: Path) -> list[Sent]:
    sent: dict[int, Sent] = {}
    before = 0
    for number, fields in _lines(file):
        try:
            ms = int(fields[-1])
            if ms < before:
                raise ValueError(f"the clock went back, from {before}")
            before = ms
            match fields:
                case ["s", count, content, _] if int(count) not in sent:
                    sent[int(count)] = Sent(int(count), content, ms)
                case ["a", count, epoch, sequence, _] if sent[int(count)].answered_ms is None:
                    entry = sent[int(count)]
                    entry.acknowledged, entry.answered_ms = True, ms
                    entry.place = None if epoch == UNKNOWN else (int(epoch), int(sequence))
                case ["f", count, code, _] if sent[int(count)].answered_ms is None:
                    entry = sent[int(count)]
                    entry.failed, entry.answered_ms = code, ms
                case _:
                    raise ValueError("no event of a publisher, or one that came already")
        except (ValueError, KeyError, IndexError) as error:
            raise _bad(file, number, fields, error) from error
    return list(sent.values())


def _read_subscriber(file: Path) -> Stream:
    stream = Stream()
    append = stream.events.append
    for number, fields in _lines(file):
        try:
            match fields:
                case ["d", epoch, sequence, content]:
                    append(Delivered((int(epoch), int(sequence)), content))
                case ["g", kind, epoch, sequence, first, last]:
                    append(Gap(kind, (int(epoch), int(sequence)), int(first), int(last)))
                case ["b", epoch, sequence] if stream.start is None:
                    stream.start = (int(epoch), int(sequence))
                case _:
                    raise ValueError("no event of a subscriber, or a second beginning")
        except ValueError as error:
            raise _bad(file, number, fields, error) from error
    return stream


def _lines(file: Path) -> Iterator[tuple[int, list[str]]]:
    """All but the last, which must say how many there are."""
    ended = False
    number = 0
    with file.open(encoding="ascii", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if ended:
                raise BadHistory(f"{file}, line {number}: {line.strip()[:100]!r}: something stands behind the end")
            ended = line == f"e {number - 1}\n"
            if fields[:1] == ["e"] and not ended:
                raise BadHistory(f"{file}, line {number}: {line.strip()[:100]!r} behind {number - 1} lines")
            if not ended:
                yield number, fields
    if not ended:
        raise BadHistory(f"{file}: cut off behind line {number}: its last line is not `e {number}`")


def _bad(file: Path, number: int, fields: list[str], error: Exception) -> BadHistory:
    return BadHistory(f"{file}, line {number}: {' '.join(fields)[:100]!r}: {error}")
