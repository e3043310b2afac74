"""The marks of a run, and what became of the clients around each: who was on the marked broker, who lost the link,
and how long each took to resume. Terms as in docs/replication.md: *resume* is from link lost to the client's last
receipt, *publish gap* from the last acknowledgement before to the first after, per publisher and group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from migratory_loadtest.control import Mark, MarkSummary


class Fault:
    """What is known of one mark."""

    def __init__(self, mark: Mark, clients: Iterable[str]) -> None:
        self.mark = mark
        self.clients = frozenset(clients)  # on the marked broker, at the mark
        self.disconnected: set[str] = set()
        self.others = 0
        self.changes: Counter[str] = Counter()
        self.resumes: dict[str, float] = {}


class Faults:
    """All marks so far; a lost link is put down to the last one."""

    def __init__(self) -> None:
        self.all: list[Fault] = []

    def begin(self, mark: Mark, clients: Iterable[str]) -> Fault:
        fault = Fault(mark, clients)
        self.all.append(fault)
        return fault

    def changed(self, client: str) -> None:
        """It lost its link, or left it for another that stood already."""
        if self.all:
            self.all[-1].changes[client] += 1

    def lost(self, client: str) -> None:
        if self.all:
            fault = self.all[-1]
            if client in fault.clients:
                fault.disconnected.add(client)
            else:
                fault.others += 1

    def resumed(self, client: str, seconds: float) -> None:
        """The slowest one counts, when a client had to resume more than once."""
        for fault in reversed(self.all):
            if client in fault.disconnected:
                fault.resumes[client] = max(seconds, fault.resumes.get(client, 0.0))
                return

    def summaries(self, acknowledgements: Sequence[Sequence[int]]) -> list[MarkSummary]:
        """`acknowledgements`: for each publisher and group their times, rising, in nanoseconds."""
        found = []
        for place, fault in enumerate(self.all):
            until = self.all[place + 1].mark.at if place + 1 < len(self.all) else None
            gaps = [publish_gap(times, fault.mark.at, until) for times in acknowledgements]
            found.append(
                MarkSummary(
                    number=fault.mark.number,
                    clients=len(fault.clients),
                    disconnected=len(fault.disconnected),
                    others_disconnected=fault.others,
                    changes=Counter(fault.changes.values()),
                    resumes=list(fault.resumes.values()),
                    gaps=[gap for gap in gaps if gap is not None],
                    open_gaps=sum(_ended(times, fault.mark.at) for times in acknowledgements),
                )
            )
        return found


def publish_gap(times: Sequence[int], at: int, until: int | None = None) -> float | None:
    """The longest silence between two acknowledgements of which the later came behind the mark `at`, in seconds. The
    longest, because an acknowledgement that was under way at the mark must not hide the gap behind it. A silence counts
    up to the next mark, `until`: what is behind that is the next fault's. None when there was none before, or none
    behind."""
    end = inf if until is None else until
    spans = [min(late, end) - early for early, late in pairwise(times) if late > at and early < end]
    return max(spans) / 1e9 if spans else None


def _ended(times: Sequence[int], at: int) -> bool:
    return bool(times) and times[-1] <= at
