"""State that the internal checker records of each topic, epoch and broker incarnation."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from migratory_broker.core.logic.membership.records import GroupRecord, SourceEpoch
from migratory_protocol.peer import BrokerId

from migratory_simulation.external_checker import Key


class Committed:
    """The committed publications of one topic in one history. `last` is the last committed sequence number, and `keys`
    has the sequence number of each publication."""

    __slots__ = ("at", "entries", "ids", "keys", "last")

    def __init__(self) -> None:
        self.last = 0
        self.at = 0.0  # moment of the last commit
        self.entries: dict[int, tuple[int, Key]] = {}  # those still cached somewhere at the commit
        self.keys: dict[Key, int] = {}
        self.ids: dict[tuple[str, int], tuple[float, Key]] = {}  # (publisher, id) -> when which payload was committed


class EpochState:
    """The internal checker's knowledge of one epoch of one group.

    Beside the ZooKeeper record: the incarnations that were synced, the last entry that each member accepted (`votes`,
    which commit), the sequence numbers assigned and committed, when each publisher was last heard, and the members that
    promised a higher epoch, with the limits that a quorum of them sets to commits.
    """

    __slots__ = (
        "activated", "committed", "limits", "numbered", "promised_higher", "publishers", "record", "synced", "votes",
    )  # fmt: skip

    def __init__(self, record: GroupRecord) -> None:
        self.record = record
        self.activated = False
        self.synced: set[BrokerId] = set()  # listed incarnations that held the epoch's log
        self.votes: dict[str, dict[BrokerId, int]] = {}  # topic -> listed incarnation -> last accepted
        self.committed: dict[str, int] = {}
        self.numbered: dict[str, int] = {}  # topic -> last sequence number assigned
        self.publishers: dict[str, dict[str, float]] = {}  # topic -> publisher -> coordinator's time
        self.promised_higher: set[BrokerId] = set()
        self.limits: dict[str, int] | None = None  # highest commits allowed after a quorum of higher promises


class Incarnations:
    """The moments at which each broker's incarnations registered. From them follows since when too few members of a
    list can answer."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self._began: dict[str, list[tuple[int, float]]] = {}

    def begins(self, name: str, incarnation: int, now: float) -> None:
        """Record that an incarnation registered."""
        self.newest[name] = incarnation
        self._began.setdefault(name, []).append((incarnation, now))

    def here(self, members: Iterable[BrokerId]) -> list[BrokerId]:
        """Return the members whose broker has no newer incarnation."""
        return [broker for broker in members if self.newest.get(broker[0]) == broker[1]]

    def lost_at(self, source: SourceEpoch) -> float:
        """Return the moment at which so many members of the source list were replaced with newer incarnations that
        the rest cannot answer a candidate any more; infinity while enough remain."""
        ends = {broker: self._replaced_at(broker) for broker in source.members}
        for moment in sorted(set(ends.values())):
            if not source.enough(broker for broker, end in ends.items() if end > moment):
                return moment
        return inf

    def _replaced_at(self, broker: BrokerId) -> float:
        """Return the moment at which a newer incarnation of the broker registered; infinity if there is none."""
        name, incarnation = broker
        return next((began for life, began in self._began.get(name, []) if life > incarnation), inf)
