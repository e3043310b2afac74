"""The marked faults of a run: tracks which clients lost their link, and how long each of them took to resume.

Terms as in the glossary: the *resume time* is from the lost link to the client's last receipt; the *publish gap* is the
longest time between two successive acknowledgements around or after the mark, up to the next mark, per publisher and
group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import inf

from migratory_loadtest.worker_messages import FaultSummary, MarkFault


class FaultRecord:
    """The link losses of clients between one mark and the next, and their resumes. `clients` are those that were
    connected to the marked broker at the mark, `disconnected` those of them that lost their link, and
    `others_disconnected` all other clients that did. `changes` counts links lost or replaced by client, and `resumes`
    has the longest resume time of each disconnected client, in seconds."""

    def __init__(self, mark: MarkFault, clients: Iterable[str]) -> None:
        self.mark = mark
        self.clients = frozenset(clients)
        self.disconnected: set[str] = set()
        self.others_disconnected: set[str] = set()
        self.changes: Counter[str] = Counter()
        self.resumes: dict[str, float] = {}


class FaultTracker:
    """The records of all marks of a run, in one worker. A lost link belongs to the latest mark."""

    def __init__(self) -> None:
        self.faults: list[FaultRecord] = []

    def begin(self, mark: MarkFault, clients: Iterable[str]) -> FaultRecord:
        """Add a record for a mark, to which later link losses belong, and return it. `clients` are connected to the
        marked broker."""
        fault = FaultRecord(mark, clients)
        self.faults.append(fault)
        return fault

    def link_changed(self, client: str) -> None:
        """Count a link that the client lost or replaced by another one, for the latest mark. Do nothing before the
        first mark."""
        if self.faults:
            self.faults[-1].changes[client] += 1

    def disconnected(self, client: str) -> None:
        """Record for the latest mark that the client has no link any more; another time changes nothing. Do nothing
        before the first mark."""
        if self.faults:
            fault = self.faults[-1]
            (fault.disconnected if client in fault.clients else fault.others_disconnected).add(client)

    def resumed(self, client: str, seconds: float) -> None:
        """Record a client's resume time in seconds, for the latest mark whose broker it was connected to and whose
        record has it as disconnected; do nothing if there is none. Of several resume times the longest counts."""
        for fault in reversed(self.faults):
            if client in fault.disconnected:
                fault.resumes[client] = max(seconds, fault.resumes.get(client, 0.0))
                return

    def summaries(self, acknowledgements: Sequence[Sequence[int]]) -> list[FaultSummary]:
        """Return a summary of each fault, in the order of the marks.

        :param acknowledgements: for each publisher and group the times of its acknowledgements, ascending, in
            nanoseconds of the monotonic clock.
        """
        summaries = []
        for index, fault in enumerate(self.faults):
            until = self.faults[index + 1].mark.at if index + 1 < len(self.faults) else None
            gaps = [publish_gap(times, fault.mark.at, until) for times in acknowledgements]
            summaries.append(
                FaultSummary(
                    number=fault.mark.number,
                    clients=len(fault.clients),
                    disconnected=len(fault.disconnected),
                    others_disconnected=len(fault.others_disconnected),
                    changes=Counter(fault.changes.values()),
                    resumes=list(fault.resumes.values()),
                    gaps=[gap for gap in gaps if gap is not None],
                    open_gaps=sum(_ended_before(times, fault.mark.at) for times in acknowledgements),
                )
            )
        return summaries


def publish_gap(times: Sequence[int], at: int, until: int | None = None) -> float | None:
    """Return the longest publish gap of a fault in seconds: the longest time between two successive acknowledgements of
    which the later came after the mark `at`, and the earlier before the next mark `until` (None if there is none).
    Return None if there is no such pair.

    It is the longest and not the first, because an acknowledgement that was on its way at the mark must not hide the
    gap after it. A gap counts only up to `until`: its later part belongs to the next fault.

    :param times: times of acknowledgements, ascending, in nanoseconds like `at` and `until`.
    """
    end = inf if until is None else until
    gaps = [min(later, end) - earlier for earlier, later in pairwise(times) if later > at and earlier < end]
    return max(gaps) / 1e9 if gaps else None


def _ended_before(times: Sequence[int], at: int) -> bool:
    """Return whether there are acknowledgements, and none after `at`."""
    return bool(times) and times[-1] <= at
