"""The publisher table of one topic: each publisher's last message id and where it stands.

It belongs to the log: it travels, is cut and is replaced with it, and is never rebuilt from cached entries. A publisher
leaves it when the coordinator says so (`duplicateWindow` after its last publication), alike at every broker.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from migratory_protocol.peer import Row


class PublisherTable:
    __slots__ = ("rows",)

    def __init__(self, rows: Iterable[Row] = ()) -> None:
        self.rows: dict[str, tuple[int, int, int]] = {row.publisher: (row.id, row.epoch, row.sequence) for row in rows}

    def forget(self, publisher: str) -> None:
        self.rows.pop(publisher, None)

    def as_rows(self) -> list[Row]:
        return [Row(publisher, *row) for publisher, row in self.rows.items()]

    def judge(self, publisher: str, number: int, mark: int) -> Literal["new", "duplicate", "gap"]:
        """NEXT-OR-MARK: an id above the last is taken when it is the next one, or the lowest that its publisher still
        waits for; anything else above would overtake an id that may yet come."""
        row = self.rows.get(publisher)
        if row is not None:
            if number <= row[0]:
                return "duplicate"
            if number == row[0] + 1:
                return "new"
        return "new" if number == mark else "gap"
