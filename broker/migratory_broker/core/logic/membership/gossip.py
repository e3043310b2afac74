"""Gossip, for `Logic`: what the last heartbeat of a peer said, and which broker last said that it coordinates a
group."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

from migratory_protocol.peer import BrokerId, ClientLoad


@dataclass(slots=True)
class PeerState:
    """The last heartbeat of a peer, as this broker received it. Times are of this broker's monotonic clock, in
    seconds."""

    heard_at: float
    zookeeper_heard_at: float  # when the peer last heard ZooKeeper; -inf if it never did
    heard: dict[str, int]  # the peers that it hears, with the incarnation that it has a link to; 0: the link broke
    member: bool  # it is a synced member of every group
    load: ClientLoad | None  # None from a broker that is older than this field
    incarnation: int

    def links_to(self, broker: BrokerId) -> bool:
        """Return whether this peer, by this heartbeat, heard `broker` lately and has a link to that incarnation of
        it."""
        return self.heard.get(broker[0]) == broker[1]


class GossipMap:
    """The coordinator of each group, as the coordinators report it themselves at activation and with every heartbeat: a
    hint for routing, never an authority. A report of a lower epoch than the known one is ignored."""

    def __init__(self, groups: int) -> None:
        self._hints: list[tuple[int, str]] = [(0, "")] * groups  # (epoch, broker)
        self._heard_at = [float("-inf")] * groups
        self._counts: dict[str, int] | None = {}  # None when it is to be counted again

    def learn(self, group: int, epoch: int, broker: str, now: float) -> None:
        """Record that `broker` coordinates the group in `epoch`, as was heard at `now`. Ignored if a higher epoch is
        known, or there is no such group."""
        if 0 <= group < len(self._hints) and epoch >= self._hints[group][0]:
            if self._hints[group][1] != broker:
                self._counts = None
            self._hints[group] = (epoch, broker)
            self._heard_at[group] = now

    def coordinator(self, group: int) -> str:
        """Return the name of the group's last known coordinator, "" if none ever reported itself."""
        return self._hints[group][1]

    def epoch(self, group: int) -> int:
        """Return the highest epoch in which a coordinator of the group has reported itself, 0 if none ever did."""
        return self._hints[group][0]

    def heard_at(self, group: int) -> float:
        """Return the time at which the coordinator of the highest known epoch last reported that it coordinates the
        group, by this broker's clock; -inf if none did."""
        return self._heard_at[group]

    def counts(self) -> dict[str, int]:
        """Return a new dict with the number of groups that each known coordinator coordinates, by its name. Brokers
        that coordinate none are not in it."""
        if self._counts is None:
            self._counts = dict(Counter(name for _, name in self._hints if name))
        return dict(self._counts)
