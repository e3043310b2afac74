"""What the load's progress, second by second, says of one fault: clients served again, reconnects. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migratory_chaos_k8s.inside import KEYS

OLDEST_SECONDS = 2.0
"""A publication that waits longer for its answer is not being accepted."""
BEHIND_SECONDS = 1.5
"""What was owed so long ago must have been delivered."""


@dataclass(frozen=True)
class Moment:
    """One entry of the timeline, as `inside.py` writes it."""

    elapsed: float
    connected: float
    publishers: float
    oldest: float
    published: float
    acknowledged: float
    received: float
    expected: float
    reconnects: float


def read(entries: Sequence[Sequence[float]]) -> list[Moment]:
    """:raises ValueError: entries of another shape."""
    if any(len(entry) != len(KEYS) for entry in entries):
        raise ValueError("this timeline has other keys")
    return [Moment(**dict(zip(KEYS, entry, strict=True))) for entry in entries]


def owed(moments: Sequence[Moment], at: float) -> float:
    """Deliveries that were owed `BEHIND_SECONDS` before."""
    earlier = [moment.expected for moment in moments if moment.elapsed <= at - BEHIND_SECONDS]
    return earlier[-1] if earlier else 0.0


def served(moments: Sequence[Moment], place: int, subscribers: int, publishers: int) -> list[str]:
    """What was wrong for clients at that entry; empty: every subscriber receives, every publisher is accepted."""
    now = moments[place]
    found = []
    if now.connected < subscribers:
        found.append(f"{subscribers - now.connected:g} subscribers have no broker")
    if now.publishers < publishers:
        found.append(f"{publishers - now.publishers:g} publishers have no broker")
    if now.oldest > OLDEST_SECONDS:
        found.append(f"a publication waits for {now.oldest:g} s")
    missing = owed(moments[: place + 1], now.elapsed) - now.received
    if missing > 0:
        found.append(f"{missing:g} deliveries are behind")
    return found


def clients_whole(
    moments: Sequence[Moment], began: float, ended: float, subscribers: int, publishers: int
) -> float | None:
    """Seconds from `began` until clients were served without a break up to `ended`; 0 when nothing was ever missing at
    one of the entries between (they come once a second); None when they were not at the end."""
    last = None
    inside = [place for place, moment in enumerate(moments) if began <= moment.elapsed <= ended]
    for number, place in enumerate(inside):
        if served(moments, place, subscribers, publishers):
            if number + 1 == len(inside):
                return None
            last = moments[inside[number + 1]].elapsed
    return 0.0 if last is None else round(last - began, 2)


def reconnects(moments: Sequence[Moment], began: float, ended: float) -> int:
    """Links that clients lost or left between the two."""

    def at(moment: float) -> float:
        before = [one.reconnects for one in moments if one.elapsed <= moment]
        return before[-1] if before else 0.0

    return int(at(ended) - at(began))
