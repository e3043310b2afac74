"""The load's progress, second by second, evaluated for one fault: when clients were served again, and reconnects."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from migratory_chaos.kubernetes.load_program import KEYS

ANSWER_SECONDS = 2.0
"""A publication of a healthy cluster is answered sooner."""
DELIVERY_SECONDS = 1.5
"""A publication of a healthy cluster is delivered sooner."""


@dataclass(frozen=True)
class Moment:
    """An entry of the timeline, as `load_program.py` writes it."""

    elapsed: float
    connected: float
    publishers: float
    oldest: float
    published: float
    acknowledged: float
    received: float
    expected: float
    reconnects: float


def parse_timeline(entries: Sequence[Sequence[float]]) -> list[Moment]:
    """Return the entries as moments. :raises ValueError: entries of another length."""
    if any(len(entry) != len(KEYS) for entry in entries):
        raise ValueError(f"a timeline entry must have the keys {', '.join(KEYS)}: the load pod has another program")
    return [Moment(**dict(zip(KEYS, entry, strict=True))) for entry in entries]


def find_unserved(moments: Sequence[Moment], index: int, subscribers: int, publishers: int) -> list[str]:
    """Return what was wrong for clients at an entry; empty when all subscribers and publishers are served."""
    now = moments[index]
    found = []
    if now.connected < subscribers:
        found.append(f"{subscribers - now.connected:g} subscribers have no broker")
    if now.publishers < publishers:
        found.append(f"{publishers - now.publishers:g} publishers have no broker")
    if now.oldest > ANSWER_SECONDS:
        found.append(f"a publication waits for {now.oldest:g} s")
    due = [moment.expected for moment in moments[: index + 1] if moment.elapsed <= now.elapsed - DELIVERY_SECONDS]
    missing = (due[-1] if due else 0.0) - now.received
    if missing > 0:
        found.append(f"{missing:g} deliveries are behind")
    return found


def clients_recovery(
    moments: Sequence[Moment], began: float, ended: float, subscribers: int, publishers: int
) -> float | None:
    """Return the seconds from `began` until clients were served without a break up to `ended`.

    0 means that nothing was wrong at any entry between (one a second), None that clients were not served at the end.
    """
    last = None
    between = [index for index, moment in enumerate(moments) if began <= moment.elapsed <= ended]
    for number, index in enumerate(between):
        if find_unserved(moments, index, subscribers, publishers):
            if number + 1 == len(between):
                return None
            last = moments[between[number + 1]].elapsed
    return 0.0 if last is None else round(last - began, 2)


def count_reconnects(moments: Sequence[Moment], began: float, ended: float) -> int:
    """Return how many connections clients lost or left between two times."""

    def total(at: float) -> float:
        before = [moment.reconnects for moment in moments if moment.elapsed <= at]
        return before[-1] if before else 0.0

    return int(total(ended) - total(began))
