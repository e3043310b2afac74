"""The invariants of docs/concepts/replication.md, checked from outside over what brokers show to clients.

A publication is *shown* when it leaves a broker as committed: delivered, replayed, or named in an acknowledgement.
Every payload is unique, so it identifies its publication. Each check raises `Violation` at the step that breaks it.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NamedTuple

from migratory_protocol.messages import Receipt
from migratory_protocol.positions import Position

from migratory_simulation.coverage import Coverage


class Violation(Exception):
    """A broken invariant: its number in docs/concepts/replication.md, and what was observed."""

    def __init__(self, invariant: int, text: str) -> None:
        super().__init__(f"invariant {invariant}: {text}")
        self.invariant = invariant


class Key(NamedTuple):
    """The identity of a publication. `extra` tells apart publications of QoS 0, which have id 0, and other payloads
    that are misused under a message id."""

    publisher: str
    topic: str
    id: int
    extra: int = 0

    @property
    def payload(self) -> bytes:
        """Return the payload that identifies this publication."""
        return f"{self.publisher}|{self.topic}|{self.id}|{self.extra}".encode()


@lru_cache(maxsize=4096)
def key_of(payload: bytes) -> Key:
    """Return the identity of the publication that a payload names. What follows it in the payload, such as padding, is
    ignored."""
    publisher, topic, number, extra, *_ = payload.decode().split("|")
    return Key(publisher, topic, int(number), int(extra))


@dataclass(slots=True)
class TopicHistory:
    """The publications of one topic in one history that were shown, by sequence number and by key."""

    entries: dict[int, tuple[int, Key]] = field(default_factory=dict)  # sequence -> (epoch, key)
    of_key: dict[Key, int] = field(default_factory=dict)
    last_of_publisher: dict[str, list[tuple[int, int]]] = field(default_factory=dict)  # sorted (sequence, id)
    named: dict[int, int] = field(default_factory=dict)  # sequence -> epoch of a position named as current
    last: int = 0
    last_epoch: int = 0


@dataclass(slots=True)
class Reader:
    """A subscription and its position, as its application sees it. `snapshot` is True while the publication at the
    first position may still come once."""

    subscriber: str
    topic: str
    position: Position | None = None  # None until the first receipt
    snapshot: bool = False  # the publication at the first position may come once


class ExternalChecker:
    """The histories that publishers and subscribers observe, and the invariants over them."""

    def __init__(self, coverage: Coverage) -> None:
        self.coverage = coverage
        self.firsts: dict[int, list[int]] = {}  # group -> first epochs of its histories, ascending
        self.group_of: dict[str, int] = {}
        self.topics: dict[tuple[str, int], TopicHistory] = {}  # (topic, first epoch of the history)
        self.readers: dict[tuple[str, str], Reader] = {}
        self._wanted: dict[tuple[str, str], bool] = {}  # snapshots requested with the next first receipt

    # ---- histories

    def history_begins(self, group: int, first: int) -> None:
        """Record that a new history of a group begins at the epoch `first`. Raise Violation unless that is the highest
        so far."""
        firsts = self.firsts.setdefault(group, [])
        if firsts and first <= firsts[-1]:
            raise Violation(3, f"group {group}: a new history begins at epoch {first}, not above {firsts[-1]}")
        firsts.append(first)

    def history_of(self, topic: str, epoch: int) -> int:
        """Return the first epoch of the history that `epoch` belongs to. Raise Violation if there is none."""
        firsts = self.firsts.get(self.group_of[topic], [])
        index = bisect_right(firsts, epoch)
        if index == 0:
            raise Violation(5, f"{topic}: epoch {epoch} belongs to no history that was ever recorded ({firsts})")
        return firsts[index - 1]

    def current(self, topic: str) -> TopicHistory:
        """Return the newest history of a topic, created if nothing of it was shown yet."""
        return self._of(topic, self.firsts[self.group_of[topic]][-1])

    def _of(self, topic: str, first: int) -> TopicHistory:
        history = self.topics.get((topic, first))
        if history is None:
            history = self.topics[topic, first] = TopicHistory()
        return history

    # ---- publications shown by brokers

    def shown(self, where: str, topic: str, position: Position, payload: bytes) -> bool:
        """Record that a committed publication was shown at `where` (a broker, subscriber or acknowledgement). Return
        whether this was the first time. Raise Violation if it contradicts what was shown before."""
        return self.shown_key(where, topic, position, key_of(payload))

    def shown_key(self, where: str, topic: str, position: Position, key: Key) -> bool:
        """Record that a publication was shown, by its key: see `shown`, with the same result and Violations."""
        history = self._of(topic, self.history_of(topic, position.epoch))
        sequence = position.sequence
        before = history.entries.get(sequence)
        if before is not None:
            if before != (position.epoch, key):
                raise Violation(
                    3,
                    f"{where} shows {key} at {topic} {position}, where {before[1]} was shown at {before[0]}:{sequence}",
                )
            return False
        if key.topic != topic:
            raise Violation(3, f"{where} shows {key} in {topic}")
        if sequence < 1:
            raise Violation(2, f"{where} shows {key} at sequence number {sequence}")
        if key in history.of_key:
            raise Violation(
                4,
                f"{where} shows {key} at {topic} {position}; it was already shown at sequence number "
                f"{history.of_key[key]}",
            )
        named = history.named.get(sequence)
        if named is not None and named != position.epoch:
            raise Violation(
                1,
                f"{where} shows {topic} {position}, but {named}:{sequence} was named as its current "
                "position: not committed then",
            )
        self._check_epochs(where, topic, history, position)
        if key.id:
            self._check_order(where, topic, history, position, key)
        history.entries[sequence] = (position.epoch, key)
        history.of_key[key] = sequence
        if sequence > history.last:
            history.last, history.last_epoch = sequence, position.epoch
        return True

    def _check_epochs(self, where: str, topic: str, history: TopicHistory, position: Position) -> None:
        """Check a publication's epoch against its neighbours that were shown: epochs do not fall as sequence numbers
        rise. Raise Violation otherwise."""
        for sequence in (position.sequence - 1, position.sequence + 1):
            other = history.entries.get(sequence)
            if (
                other is not None
                and (other[0] > position.epoch) != (sequence > position.sequence)
                and other[0] != position.epoch
            ):
                raise Violation(2, f"{where} shows {topic} {position} beside {other[0]}:{sequence}: epochs fall")

    def _check_order(self, where: str, topic: str, history: TopicHistory, position: Position, key: Key) -> None:
        """Check that a publisher's ids rise with the sequence numbers, and record this publication's. Raise Violation
        otherwise."""
        seen = history.last_of_publisher.setdefault(key.publisher, [])
        index = bisect_right(seen, (position.sequence, 0))
        if index and seen[index - 1][1] > key.id:
            raise Violation(
                6, f"{where} shows {key} at {topic} {position} after id {seen[index - 1][1]} of that publisher"
            )
        if index < len(seen) and seen[index][1] < key.id:
            raise Violation(6, f"{where} shows {key} at {topic} {position} before id {seen[index][1]} of its publisher")
        seen.insert(index, (position.sequence, key.id))

    def named_current(self, where: str, topic: str, position: Position) -> None:
        """Record that a receipt named `position` as the last one of `topic` at its broker. Raise Violation if that
        contradicts what was shown or named before."""
        history = self._of(topic, self.history_of(topic, position.epoch))
        sequence = position.sequence
        if sequence == 0:
            return
        before = history.entries.get(sequence)
        if before is not None and before[0] != position.epoch:
            raise Violation(1, f"{where} names {topic} {position} as current; shown there was {before[0]}:{sequence}")
        other = history.named.setdefault(sequence, position.epoch)
        if other != position.epoch:
            raise Violation(1, f"{where} names {topic} {position} as current; {other}:{sequence} was named before")

    # ---- publishers

    def acknowledges(self, key: Key, position: Position | None, committed: bool) -> None:
        """Record that a publisher got an acknowledgement. `committed`: the publication is committed in some history.
        Raise Violation if it is not, or if the acknowledgement has no position or a wrong one."""
        self.coverage["acknowledged"] += 1
        if not committed:
            raise Violation(1, f"{key} is acknowledged at {position}, but was never committed")
        if position is None:
            raise Violation(1, f"{key} is acknowledged without a position: unknown whether it is stored")
        self.shown_key("an acknowledgement", key.topic, position, key)

    def forgotten(self, key: Key, committed: bool) -> None:
        """Check that a publication that a broker refused with `outcome_unknown` is committed (`committed`). Raise
        Violation otherwise.

        Only what is committed may be evicted. So a broker that knows neither entry nor digest of a publication, whose
        publisher still waits for its answer, never stored it, and has let a later id overtake it.
        """
        if not committed:
            raise Violation(6, f"{key} is refused as unknown, but was never committed: a later id overtook it")

    # ---- subscribers

    def reader(self, subscriber: str, topic: str) -> Reader:
        """Return a subscription with its position; create it, without a position, if it is new."""
        reader = self.readers.get((subscriber, topic))
        if reader is None:
            reader = self.readers[subscriber, topic] = Reader(subscriber, topic)
        return reader

    def wants_snapshot(self, subscriber: str, topic: str) -> None:
        """Allow that the first receipt of this subscription is followed by the publication at its very position, the
        snapshot."""
        self._wanted[subscriber, topic] = True

    def leaves(self, subscriber: str, topic: str) -> None:
        """Forget the position of a subscription that ended."""
        self.readers.pop((subscriber, topic), None)
        self._wanted.pop((subscriber, topic), None)

    def receipt(self, subscriber: str, topic: str, receipt: Receipt, position: Position, first: int, last: int) -> None:
        """Check a receipt that the application got, and set the subscription's position from it. Raise Violation if the
        receipt contradicts the position, or what was shown or named before."""
        reader = self.reader(subscriber, topic)
        self.named_current(f"receipt for {subscriber}", topic, position)
        before = reader.position
        if receipt == "complete":
            if before is None:
                reader.position = position
                reader.snapshot = self._wanted.pop((subscriber, topic), False)
            return  # while a client moves, its old link may have delivered more than the new broker reports
        if receipt == "truncated":
            self.coverage["truncated"] += 1
            if before is None:
                raise Violation(2, f"{subscriber} {topic}: truncated, but it had no position")
            if first != before.sequence + 1 or last < first:
                raise Violation(2, f"{subscriber} {topic}: truncated {first}..{last}, but it has {before}")
            epoch = before.epoch
            shown = self._of(topic, self.history_of(topic, before.epoch)).entries.get(last)
            reader.position = Position(shown[0] if shown else epoch, last)
            return
        self.coverage["reset"] += 1
        if before is not None and self.history_of(topic, before.epoch) == self.history_of(topic, position.epoch):
            self.coverage["resets inside a history"] += 1
        reader.position = position

    def received(
        self, subscriber: str, topic: str, position: Position, payload: bytes, replayed: bool, first: int = 0
    ) -> None:
        """Check a delivered publication and move the subscription's position. It stands for all from `first` on that
        the subscriber does not have (0: for itself only). Raise Violation if it is out of order, leaves a gap, or
        contradicts what was shown before."""
        reader = self.reader(subscriber, topic)
        before = reader.position
        self.coverage["delivered"] += 1
        if replayed:
            self.coverage["replayed"] += 1
        if before is None:
            raise Violation(2, f"{subscriber} {topic}: {position} came before any receipt")
        if reader.snapshot and position == before:
            self.coverage["snapshots"] += 1
            reader.snapshot = False
            self.shown(f"subscriber {subscriber}", topic, position, payload)
            return
        reader.snapshot = False
        if position <= before:
            raise Violation(2, f"{subscriber} {topic}: {position} after {before}: not rising")
        if self.history_of(topic, before.epoch) != self.history_of(topic, position.epoch):
            raise Violation(2, f"{subscriber} {topic}: {position} of another history after {before}, without a reset")
        next_ = before.sequence + 1
        if not (first or position.sequence) <= next_ <= position.sequence:
            raise Violation(2, f"{subscriber} {topic}: {position} after {before}: an unreported gap")
        self._check_left_out(subscriber, topic, next_, position)
        self.shown(f"subscriber {subscriber}", topic, position, payload)
        reader.position = position

    def _check_left_out(self, subscriber: str, topic: str, first: int, position: Position) -> None:
        """Check that a delivery at `position`, which stands for the publications from `first` on, left out only QoS 0
        publications. Raise Violation otherwise. Count those that it left out."""
        history = self._of(topic, self.history_of(topic, position.epoch))
        for sequence in range(first, position.sequence):
            self.coverage["conflated"] += 1
            _, left = history.entries.get(sequence, (0, None))
            if left is not None and left.id:
                raise Violation(1, f"{subscriber} {topic}: {position} stands for {left}, which was acknowledged")

    # ---- after recovery

    def behind(self) -> list[str]:
        """Return a line for each subscription that has not caught up with the shown publications of its topic's newest
        history (invariants 1 and 7)."""
        late = []
        for reader in self.readers.values():
            history = self.current(reader.topic)
            if reader.position is None:
                late.append(f"{reader.subscriber} {reader.topic}: no receipt yet")
            elif self.history_of(reader.topic, reader.position.epoch) != self.firsts[self.group_of[reader.topic]][-1]:
                late.append(f"{reader.subscriber} {reader.topic}: still at {reader.position} of an older history")
            elif reader.position.sequence < history.last:
                late.append(
                    f"{reader.subscriber} {reader.topic}: at {reader.position}, shown up to "
                    f"{history.last_epoch}:{history.last}"
                )
        return late
