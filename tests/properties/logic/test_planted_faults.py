"""The machines beside this file fail when the cache, the publisher table or the resume has a planted fault."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from migratory_broker.core.logic.replication.cache import Cache
from migratory_broker.core.logic.replication.replica import Replica
from migratory_broker.core.logic.replication.topic_log import PublisherTable, TopicLog
from migratory_broker.core.logic.serving.resume import Resume
from migratory_protocol.peer import Publication
from migratory_protocol.positions import Position
from migratory_testing.machines import assert_caught, load_machine

pytestmark = pytest.mark.interpreted

Plant = Callable[[pytest.MonkeyPatch], None]

# ---- the cache


def young_entries_evicted(patch: pytest.MonkeyPatch) -> None:
    def trim(self: Cache, log: TopicLog, wall: float) -> None:
        while log.base < log.committed and len(log.entries) > self._config.messages_per_topic:
            self._drop(log)

    patch.setattr(Cache, "trim", trim)


def old_entries_kept(patch: pytest.MonkeyPatch) -> None:
    def trim(self: Cache, log: TopicLog, wall: float) -> None:
        if self.bytes > self._config.max_bytes:
            self._squeeze(wall)

    patch.setattr(Cache, "trim", trim)


def bytes_unbounded(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Cache, "_squeeze", lambda self, wall: None)


def bytes_squeezed_too_far(patch: pytest.MonkeyPatch) -> None:
    whole = Cache._squeeze

    def squeeze(self: Cache, wall: float) -> None:
        whole(self, wall)
        log = self._logs[0]
        if log.base < log.committed:
            self._drop(log)

    patch.setattr(Cache, "_squeeze", squeeze)


def bytes_not_booked(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(
        Replica, "_replace", lambda self, log, base, base_epoch, entries: log.replace(base, base_epoch, entries)
    )


def epoch_of_the_base_lost(patch: pytest.MonkeyPatch) -> None:
    whole = TopicLog.drop_first

    def drop_first(self: TopicLog) -> Publication:
        before = self.base_epoch
        entry = whole(self)
        self.base_epoch = before or entry.epoch
        return entry

    patch.setattr(TopicLog, "drop_first", drop_first)


def oldest_found_first(patch: pytest.MonkeyPatch) -> None:
    def find(self: TopicLog, publisher: str, number: int) -> Publication | None:
        return next((entry for entry in self.entries if (entry.publisher, entry.id) == (publisher, number)), None)

    patch.setattr(TopicLog, "find", find)


def commit_skips_one(patch: pytest.MonkeyPatch) -> None:
    whole = TopicLog.between

    def between(self: TopicLog, after: int, to: int) -> list[Publication]:
        publications = whole(self, after, to)
        return publications[1:] if len(publications) > 3 else publications

    patch.setattr(TopicLog, "between", between)


# ---- the publisher table


def gaps_let_through(patch: pytest.MonkeyPatch) -> None:
    def judge(self: PublisherTable, publisher: str, number: int, mark: int) -> str:
        row = self.rows.get(publisher)
        return "duplicate" if row is not None and number <= row[0] else "new"

    patch.setattr(PublisherTable, "judge", judge)


def only_the_last_is_a_duplicate(patch: pytest.MonkeyPatch) -> None:
    whole = PublisherTable.judge

    def judge(self: PublisherTable, publisher: str, number: int, mark: int) -> str:
        row = self.rows.get(publisher)
        return "new" if row is not None and number == row[0] - 1 else whole(self, publisher, number, mark)

    patch.setattr(PublisherTable, "judge", judge)


def marks_ignored(patch: pytest.MonkeyPatch) -> None:
    def judge(self: PublisherTable, publisher: str, number: int, mark: int) -> str:
        last = self.rows.get(publisher, (0, 0, 0))[0]
        return "duplicate" if number <= last else "new" if number == last + 1 else "gap"

    patch.setattr(PublisherTable, "judge", judge)


def forgotten_at_once(patch: pytest.MonkeyPatch) -> None:
    whole = TopicLog.append

    def append(self: TopicLog, publication: Publication) -> int:
        added = whole(self, publication)
        if publication.id > 1:
            self.table.forget(publication.publisher)
        return added

    patch.setattr(TopicLog, "append", append)


def publishers_confused(patch: pytest.MonkeyPatch) -> None:
    def find(self: TopicLog, publisher: str, number: int) -> Publication | None:
        return next((entry for entry in reversed(self.entries) if entry.id == number), None)

    patch.setattr(TopicLog, "find", find)


# ---- the resume


def holes_not_told(patch: pytest.MonkeyPatch) -> None:
    whole = Resume._attached

    def attached(self: Resume, event: Any, receipt: Any, *arguments: Any) -> None:
        if receipt == "truncated":
            receipt, arguments = "complete", arguments[:3]
        whole(self, event, receipt, *arguments)

    patch.setattr(Resume, "_attached", attached)


def any_epoch_taken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(TopicLog, "epoch_at", lambda self, sequence: AnyEpoch(0))


class AnyEpoch(int):
    def __eq__(self, other: object) -> bool:
        return True

    def __hash__(self) -> int:
        return 0


def nobody_waits(patch: pytest.MonkeyPatch) -> None:
    whole = Resume._try_to_answer
    patch.setattr(Resume, "_try_to_answer", lambda self, group, waiting, expired: whole(self, group, waiting, True))


def waiting_never_ends(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Resume, "tick", lambda self: None)


def first_of_a_page_lost(patch: pytest.MonkeyPatch) -> None:
    whole = Resume._page
    patch.setattr(Resume, "_page", lambda self, log, after, size: whole(self, log, after, size)[1:] or [])


def pages_without_a_limit(patch: pytest.MonkeyPatch) -> None:
    whole = Resume._page
    patch.setattr(Resume, "_page", lambda self, log, after, size: whole(self, log, after, 10**6))


def replay_from_the_base(patch: pytest.MonkeyPatch) -> None:
    whole = Resume._replay

    def replay(self: Resume, event: Any, log: TopicLog, position: Position, after: Position) -> None:
        if after.sequence > log.base:
            after = Position(after.epoch, log.base)
        whole(self, event, log, position, after)

    patch.setattr(Resume, "_replay", replay)


def snapshot_of_the_oldest(patch: pytest.MonkeyPatch) -> None:
    whole = TopicLog.entry
    patch.setattr(
        TopicLog,
        "entry",
        lambda self, sequence: self.entries[0] if self.entries and sequence == self.last else whole(self, sequence),
    )


CACHE = (
    young_entries_evicted,
    old_entries_kept,
    bytes_unbounded,
    bytes_squeezed_too_far,
    bytes_not_booked,
    epoch_of_the_base_lost,
    oldest_found_first,
    commit_skips_one,
)
TABLE = (gaps_let_through, only_the_last_is_a_duplicate, marks_ignored, forgotten_at_once, publishers_confused)
RESUME = (
    holes_not_told,
    any_epoch_taken,
    nobody_waits,
    waiting_never_ends,
    first_of_a_page_lost,
    pages_without_a_limit,
    replay_from_the_base,
    snapshot_of_the_oldest,
)


@pytest.mark.parametrize("plant", CACHE)
def test_a_fault_of_the_cache_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert_caught(load_machine(__file__, "test_cache_machine", "CacheMachine"))


@pytest.mark.parametrize("plant", TABLE)
def test_a_fault_of_the_publisher_table_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert_caught(load_machine(__file__, "test_publisher_table_machine", "PublisherTableMachine"))


@pytest.mark.parametrize("plant", RESUME)
def test_a_fault_of_the_resume_is_caught(plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch)
    assert_caught(load_machine(__file__, "test_resume_machine", "ResumeMachine"), examples=200, steps=30)
