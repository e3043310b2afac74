"""Whether a receipt of a broker's logic was due. A wrong one breaks no order and hides nothing: it names publications
as missing that the broker could have given, and everybody who checks holes is content with it.

Knows of `Logic` what a log's bounds are.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from migratory_broker.core.logic.events import Attach, Attached, Gap, Page
from migratory_broker.core.logic.replication.topic_log import TopicLog
from migratory_protocol.positions import Position

from migratory_simulation.external_checker import Violation
from migratory_simulation.internal_checker import views

if TYPE_CHECKING:
    from migratory_simulation.process import Process


class ReceiptChecker:
    """Of one process. `asked` is what subscriptions that have no answer yet resume from."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self._asked: dict[tuple[int, int], Position | None] = {}

    def asks(self, event: Attach) -> None:
        self._asked[event.edge, event.reference] = event.after

    def attached(self, answer: Attached) -> None:
        after = self._asked.pop((answer.edge, answer.reference), None)
        if answer.receipt == "reset" and after is not None:
            self._reset(answer, after)
        elif answer.receipt == "truncated":
            self.truncated(answer)

    def truncated(self, told: Attached | Page | Gap) -> None:
        """GAP-TOLD, RESUME: gone for good is what the cache of this broker begins behind."""
        log = self._log(told.topic)
        if log is None or log.base < told.last:
            raise Violation(
                1,
                f"{self._process.label} says that {told.first}..{told.last} of {told.topic} are gone, and holds what "
                f"is behind {None if log is None else log.base}",
            )

    def _reset(self, answer: Attached, after: Position) -> None:
        """RESUME: not for who stands where this broker's own committed log was, however little of it is cached."""
        external = self._process.world.external
        if not answer.position.epoch or external.history_of(answer.topic, after.epoch) != external.history_of(
            answer.topic, answer.position.epoch
        ):
            return
        log = self._log(answer.topic)
        committed = 0 if log is None else log.committed
        shown = external.current(answer.topic).entries.get(after.sequence)
        if after.sequence == 0 or (after.sequence <= committed and shown is not None and shown[0] == after.epoch):
            raise Violation(
                1,
                f"{self._process.label} resets who has {answer.topic} up to {after}, and has it up to {committed}",
            )

    def _log(self, topic: str) -> TopicLog | None:
        group = self._process.world.external.group_of[topic]
        return next(view.topics.get(topic) for view in views(self._process.logic) if view.group == group)
