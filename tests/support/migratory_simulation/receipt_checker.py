"""Checks that each receipt of a broker's logic is justified, and raises `Violation` for one that is not.

An unjustified receipt breaks no order and hides nothing: it reports publications as missing that the broker could have
delivered, and satisfies every check for unreported gaps. This module uses the bounds of the logic's logs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_broker.core.logic.events import Attach, Attached, Gap, Page
from migratory_protocol.positions import Position

from migratory_simulation.external_checker import Violation

if TYPE_CHECKING:
    from migratory_simulation.process import Process


class ReceiptChecker:
    """The receipts of one broker process, checked against its own logs."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._asked: dict[tuple[int, int], Position | None] = {}

    def asks(self, event: Attach) -> None:
        """Record the position from which a subscription request resumes, None for new publications only."""
        self._asked[event.edge, event.reference] = event.after

    def attached(self, answer: Attached) -> None:
        """Check the receipt in the answer to a subscription request. Raise Violation if it is not justified."""
        after = self._asked.pop((answer.edge, answer.reference), None)
        if answer.receipt == "reset" and after is not None:
            self._reset(answer, after)
        elif answer.receipt == "complete" and after is not None:
            self._complete(answer, after)
        elif answer.receipt == "truncated":
            self.truncated(answer)

    def _complete(self, answer: Attached, after: Position) -> None:
        """Check RESUME: a client is continued only from a position that was committed. Raise Violation otherwise."""
        world = self._process.world
        first = world.external.history_of(answer.topic, answer.position.epoch)
        epoch = world.internal.committed_epoch(answer.topic, first, after.sequence)
        if epoch and epoch != after.epoch:
            raise Violation(
                1, f"{self._process.label} continues a client at {answer.topic} {after}; committed there is {epoch}"
            )

    def truncated(self, receipt: Attached | Page | Gap) -> None:
        """Check GAP-TOLD and RESUME: the reported publications lie before the beginning of the broker's cache. Raise
        Violation otherwise."""
        group = self._process.world.external.group_of[receipt.topic]
        log = self._process.log(receipt.topic) or self._process.replica(group).vacant(receipt.topic)
        if log.base < receipt.last:
            raise Violation(
                1,
                f"{self._process.label} reports {receipt.first}..{receipt.last} of {receipt.topic} as gone; its "
                f"cache begins behind {log.base}",
            )

    def _reset(self, answer: Attached, after: Position) -> None:
        """Check RESUME: no reset for a client whose position lies in the broker's own committed log, cached or not.
        Raise Violation otherwise."""
        external = self._process.world.external
        if not answer.position.epoch or external.history_of(answer.topic, after.epoch) != external.history_of(
            answer.topic, answer.position.epoch
        ):
            return
        log = self._process.log(answer.topic)
        committed = 0 if log is None else log.committed
        shown = external.current(answer.topic).entries.get(after.sequence)
        if after.sequence == 0 or (after.sequence <= committed and shown is not None and shown[0] == after.epoch):
            raise Violation(
                1,
                f"{self._process.label} resets a client at {answer.topic} {after}, though its own log is "
                f"committed to {committed}",
            )
