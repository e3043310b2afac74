"""State learned from other brokers' heartbeats: the last one of each peer, and the coordinator of each group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from migratory_protocol.peer import ClientLoad


@dataclass(slots=True)
class PeerState:
    """The last heartbeat of a peer. Times are of the own clock."""

    heard_at: float
    zookeeper_heard_at: float
    heard: frozenset[str]  # the peers that it hears
    member: bool
    load: ClientLoad | None  # None from a broker that is older than this field
    incarnation: int


class GossipMap:
    """The coordinator of each group, as coordinators report it themselves, at activation and with every heartbeat: a
    hint for routing, never an authority. The higher epoch wins.
    """

    def __init__(self, groups: int) -> None:
        self._hints: list[tuple[int, str]] = [(0, "")] * groups  # (epoch, broker)
        self._heard_at = [float("-inf")] * groups
        self._counts: dict[str, int] | None = {}  # None when it is to be counted again

    def learn(self, group: int, epoch: int, broker: str, now: float) -> None:
        if 0 <= group < len(self._hints) and epoch >= self._hints[group][0]:
            if self._hints[group][1] != broker:
                self._counts = None
            self._hints[group] = (epoch, broker)
            self._heard_at[group] = now

    def coordinator(self, group: int) -> str:
        """Return the last known coordinator, "" if none was ever named."""
        return self._hints[group][1]

    def epoch(self, group: int) -> int:
        return self._hints[group][0]

    def heard_at(self, group: int) -> float:
        """Return when the group's coordinator last said that it is the coordinator, by the own clock; -inf if never."""
        return self._heard_at[group]

    def counts(self) -> dict[str, int]:
        """Return the number of groups of each coordinator, as far as known."""
        if self._counts is None:
            self._counts = dict(Counter(name for _, name in self._hints if name))
        return dict(self._counts)
