"""The files in which clients record what they sent and received: a folder per topic, a text file per client, a line per
event, fields separated by spaces. They are written as events happen; `checker.py` judges them.

A publisher's file (its name begins with `p-`):
    s NUMBER DIGEST MS           submitted; NUMBER counts from 1 for each publisher and topic
    a NUMBER EPOCH SEQUENCE MS   acknowledged at that position; `a NUMBER ? ? MS`: without one
    f NUMBER CODE MS             refused, or not answered (timeout, closed)
A subscriber's file (`s-`), in the order in which the application received the events:
    b EPOCH SEQUENCE             the first receipt: everything after this position must be delivered
    d EPOCH SEQUENCE DIGEST      delivered
    g KIND EPOCH SEQUENCE FIRST LAST   a receipt that reports a gap: EPOCH SEQUENCE is where the stream continues
                                 (`reset`), or where it was before (`truncated`)
Both end with
    e LINES                      closed after that many lines: a file that was cut off, or lacks a line, is invalid
MS are milliseconds of the machine's monotonic clock, which all its processes share. In a file they never decrease.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path

Position = tuple[int, int]
"""(epoch, sequence number)."""

UNKNOWN = "?"
"""Epoch and sequence number of an acknowledgement without a position."""
REFUSED_LATER = ("timeout", "closed")
"""Failures after which the publication may still be delivered. After all others it must not."""


class BadHistory(ValueError):
    """A file that is no valid history. The text names file and line."""


@dataclass(slots=True)
class Sent:
    """A publication. `position` is None without an acknowledgement, and for one that named no position."""

    number: int
    digest: str
    sent_ms: int
    acknowledged: bool = False
    position: Position | None = None
    failed: str = ""
    answered_ms: int | None = None


@dataclass(frozen=True, slots=True)
class Delivered:
    """A delivery to one subscriber."""

    position: Position
    digest: str


@dataclass(frozen=True, slots=True)
class Gap:
    """A gap that a receipt reported: `first` to `last` are gone after position `after` (`truncated`), or everything
    before `after` is another history, and the stream continues there (`reset`)."""

    kind: str
    after: Position
    first: int
    last: int


@dataclass(slots=True)
class Stream:
    """The events that one subscriber received of a topic. `start` is None when no receipt came."""

    start: Position | None = None
    events: list[Delivered | Gap] = field(default_factory=list)


@dataclass(slots=True)
class TopicHistory:
    """All clients' events of one topic."""

    topic: str
    publishers: dict[str, list[Sent]] = field(default_factory=dict)
    subscribers: dict[str, Stream] = field(default_factory=dict)


def digest(payload: bytes) -> str:
    """Return the identity of a content. A payload that was altered has another one."""
    return blake2b(payload, digest_size=8).hexdigest()


class _ClientFile:
    """A client's file of one topic. Lines are counted for the last one."""

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
    """A publisher's events of one topic."""

    def __init__(self, folder: Path, topic: str, client: str) -> None:
        super().__init__(folder, topic, f"p-{client}")

    def submitted(self, number: int, content: str, ms: int) -> None:
        self._add(f"s {number} {content} {ms}")

    def acknowledged(self, number: int, position: Position | None, ms: int) -> None:
        epoch, sequence = position if position is not None else (UNKNOWN, UNKNOWN)
        self._add(f"a {number} {epoch} {sequence} {ms}")

    def failed(self, number: int, code: str, ms: int) -> None:
        self._add(f"f {number} {code} {ms}")


class SubscriberFile(_ClientFile):
    """A subscriber's events of one topic."""

    def __init__(self, folder: Path, topic: str, client: str) -> None:
        super().__init__(folder, topic, f"s-{client}")

    def began(self, position: Position) -> None:
        self._add(f"b {position[0]} {position[1]}")

    def delivered(self, position: Position, content: str) -> None:
        self._add(f"d {position[0]} {position[1]} {content}")

    def gap(self, kind: str, after: Position, first: int, last: int) -> None:
        self._add(f"g {kind} {after[0]} {after[1]} {first} {last}")


def read(folder: Path) -> Iterator[TopicHistory]:
    """Yield one topic after the other, so that an hour's histories need the memory of one topic.

    :raises BadHistory: a file is invalid, or there are none.
    """
    topics = sorted(path for path in folder.iterdir() if path.is_dir()) if folder.is_dir() else []
    if not topics:
        raise BadHistory(f"{folder}: no histories are there; give the folder `histories` of a run with --keep")
    for path in topics:
        yield read_topic(path)


def read_topic(path: Path) -> TopicHistory:
    """Return the history of the topic in this folder. :raises BadHistory: a file is invalid."""
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
                    entry.position = None if epoch == UNKNOWN else (int(epoch), int(sequence))
                case ["f", count, code, _] if sent[int(count)].answered_ms is None:
                    entry = sent[int(count)]
                    entry.failed, entry.answered_ms = code, ms
                case _:
                    raise ValueError("no event of a publisher, or one that is there already")
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
    """Yield the lines but for the last, which must say how many there are."""
    ended = False
    number = 0
    with file.open(encoding="ascii", errors="replace") as lines:
        for number, line in enumerate(lines, 1):
            fields = line.split()
            if ended:
                raise BadHistory(f"{file}, line {number}: {line.strip()[:100]!r}: there are lines after the end")
            ended = line == f"e {number - 1}\n"
            if fields[:1] == ["e"] and not ended:
                raise BadHistory(f"{file}, line {number}: {line.strip()[:100]!r} after {number - 1} lines")
            if not ended:
                yield number, fields
    if not ended:
        raise BadHistory(f"{file}: cut off after line {number}: its last line is not `e {number}`")


def _bad(file: Path, number: int, fields: list[str], error: Exception) -> BadHistory:
    return BadHistory(f"{file}, line {number}: {' '.join(fields)[:100]!r}: {error}")
