"""What the internal knows of each topic and epoch: what is committed, who voted, who promised higher; and of lives."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from migratory_broker.core.logic.membership.records import GroupRecord, SourceEpoch
from migratory_protocol.peer import BrokerId

from migratory_simulation.external_checker import Key


class Committed:
    """What is committed of one topic in one history."""

    __slots__ = ("entries", "keys", "last")

    def __init__(self) -> None:
        self.last = 0
        self.entries: dict[int, tuple[int, Key]] = {}  # as far as an observer could see them when they were committed
        self.keys: dict[Key, int] = {}


class EpochState:
    """One epoch of one group."""

    __slots__ = (
        "activated", "committed", "limits", "numbered", "promised_higher", "publishers", "record", "synced", "votes",
    )  # fmt: skip

    def __init__(self, record: GroupRecord) -> None:
        self.record = record
        self.activated = False
        self.synced: set[BrokerId] = set()  # listed incarnations that ever held the epoch's log
        self.votes: dict[str, dict[BrokerId, int]] = {}  # topic -> listed incarnation -> accepted up to
        self.committed: dict[str, int] = {}
        self.numbered: dict[str, int] = {}  # topic -> last sequence number given in this epoch
        self.publishers: dict[str, dict[str, float]] = {}  # topic -> who was numbered here last when, by its clock
        self.promised_higher: set[BrokerId] = set()
        self.limits: dict[str, int] | None = None  # since enough promised higher: nothing above may be committed


class Incarnations:
    """When each life of a broker began: what tells that a list can never answer again, and since when."""

    def __init__(self) -> None:
        self.newest: dict[str, int] = {}
        self._began: dict[str, list[tuple[int, float]]] = {}

    def begins(self, name: str, incarnation: int, now: float) -> None:
        self.newest[name] = incarnation
        self._began.setdefault(name, []).append((incarnation, now))

    def here(self, members: Iterable[BrokerId]) -> list[BrokerId]:
        """Those that were not replaced by a newer life."""
        return [broker for broker in members if self.newest.get(broker[0]) == broker[1]]

    def lost_at(self, source: SourceEpoch) -> float:
        """Since when so many of the list are replaced that the others' answers are not enough; inf: they are."""
        ends = {broker: self._replaced_at(broker) for broker in source.members}
        for moment in sorted(set(ends.values())):
            if not source.enough(broker for broker, end in ends.items() if end > moment):
                return moment
        return inf

    def _replaced_at(self, broker: BrokerId) -> float:
        name, incarnation = broker
        return next((began for life, began in self._began.get(name, []) if life > incarnation), inf)
