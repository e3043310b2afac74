"""The files in which clients record what they sent and received: a folder per topic with a file per client.

A line is an event, a JSON array that begins with its letter, such as `["d",[1,7],"9f86d081884c7d65"]`. The names of
publishers' files begin with `p-`, those of subscribers' files with `s-`. Events are written as they happen, a
subscriber's in the order in which the application received them; `checker.py` judges them.

Milliseconds (`ms`) are of the machine's monotonic clock, which all its processes share. In a file they never decrease.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

Position = tuple[int, int]
"""(epoch, sequence number)."""

UNKNOWN_OUTCOMES = ("timeout", "closed", "unauthenticated", "outcome_unknown")
"""Failures after which the publication may be delivered, now or later. After all others it must not."""


class BadHistory(ValueError):
    """A file that is no valid history. The text names file and line."""


class Event(Struct, array_like=True, forbid_unknown_fields=True):
    """A line of a history file."""


class Submitted(Event, tag="s"):
    """A submitted publication. `number` counts from 1 for each publisher and topic."""

    number: int
    digest: str
    ms: int


class Acknowledged(Event, tag="a"):
    """An acknowledgement, with the publication's position unless the broker named none."""

    number: int
    position: Position | None
    ms: int


class Failed(Event, tag="f"):
    """A publication that was refused, or not answered (`timeout`, `closed`)."""

    number: int
    code: str
    ms: int


class Began(Event, tag="b"):
    """A subscriber's first receipt: everything after this position must be delivered."""

    position: Position


class Delivered(Event, tag="d"):
    """A delivery to one subscriber."""

    position: Position
    digest: str


class Gap(Event, tag="g"):
    """A gap that a receipt reported: `first` to `last` are gone after position `after` (`truncated`), or everything
    before `after` is another history, and the stream continues there (`reset`)."""

    kind: str
    after: Position
    first: int
    last: int


class End(Event, tag="e"):
    """The last line, with the number of lines before it: a file that was cut off, or lacks a line, is invalid."""

    lines: int


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
    """Return the digest that identifies a payload in histories. An altered payload has another one."""
    return blake2b(payload, digest_size=8).hexdigest()


class HistoryFile:
    """A client's file of one topic. :param name: `p-` or `s-`, and the client."""

    def __init__(self, folder: Path, topic: str, name: str) -> None:
        (folder / topic).mkdir(parents=True, exist_ok=True)
        self._file = (folder / topic / name).open("wb", buffering=1 << 16)
        self._lines = 0

    def add(self, event: Event) -> None:
        self._file.write(msgspec.json.encode(event) + b"\n")
        self._lines += 1

    def close(self) -> None:
        self.add(End(self._lines))
        self._file.close()


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

    def add(event: Submitted | Acknowledged | Failed) -> None:
        nonlocal before
        if event.ms < before:
            raise ValueError(f"the clock went back, from {before}")
        before = event.ms
        if isinstance(event, Submitted):
            if event.number in sent:
                raise ValueError("submitted already")
            sent[event.number] = Sent(event.number, event.digest, event.ms)
            return
        entry = sent.get(event.number)
        if entry is None or entry.answered_ms is not None:
            raise ValueError("not submitted, or answered already")
        entry.answered_ms = event.ms
        if isinstance(event, Acknowledged):
            entry.acknowledged, entry.position = True, event.position
        else:
            entry.failed = event.code

    _read_events(file, Submitted | Acknowledged | Failed, add)
    return list(sent.values())


def _read_subscriber(file: Path) -> Stream:
    stream = Stream()

    def add(event: Began | Delivered | Gap) -> None:
        if not isinstance(event, Began):
            stream.events.append(event)
        elif stream.start is None:
            stream.start = event.position
        else:
            raise ValueError("a second beginning")

    _read_events(file, Began | Delivered | Gap, add)
    return stream


def _read_events(file: Path, types: Any, add: Callable[[Any], None]) -> None:
    """Call `add` with each event but the last, which must be an `End` with their number. :raises BadHistory: it is
    not, or a line is invalid."""
    *lines, last = file.read_bytes().splitlines(keepends=True) or [b""]
    if last != msgspec.json.encode(End(len(lines))) + b"\n":
        raise BadHistory(f"{file}, line {len(lines) + 1}: {last[:100]!r} is no end after {len(lines)} lines")
    decoder = msgspec.json.Decoder(types)
    for number, line in enumerate(lines, 1):
        try:
            add(decoder.decode(line))
        except (ValueError, msgspec.DecodeError) as error:
            raise BadHistory(f"{file}, line {number}: {line[:100]!r}: {error}") from error
