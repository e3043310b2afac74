"""What the probe knows of each topic and each epoch: what is committed, who voted for it, who promised higher."""

from __future__ import annotations

from migratory_broker.core.logic.records import GroupRecord
from migratory_protocol.peer import Broker

from migratory_simulation.ledger import Key


class Committed:
    """What is committed of one topic in one history."""

    __slots__ = ("entries", "keys", "last")

    def __init__(self) -> None:
        self.last = 0
        self.entries: dict[int, tuple[int, Key]] = {}  # as far as an observer could see them when they were committed
        self.keys: dict[Key, int] = {}


class Reign:
    """One epoch of one group."""

    __slots__ = ("activated", "committed", "limits", "numbered", "promised_higher", "record", "votes")

    def __init__(self, record: GroupRecord) -> None:
        self.record = record
        self.activated = False
        self.votes: dict[str, dict[Broker, int]] = {}  # topic -> listed incarnation -> accepted up to
        self.committed: dict[str, int] = {}
        self.numbered: dict[str, int] = {}  # topic -> last sequence number given in this epoch
        self.promised_higher: set[Broker] = set()
        self.limits: dict[str, int] | None = None  # since enough promised higher: nothing above may be committed
