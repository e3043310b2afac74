"""The index that finds the old position of a duplicate gives the same results as a scan of the whole log, at a cost
that does not grow with the log."""

from __future__ import annotations

import random
import sys
import tracemalloc
from collections.abc import Iterator

import pytest
from migratory_broker.core.logic.replication import topic_log
from migratory_broker.core.logic.replication.message_index import MIN_BUCKETS
from migratory_broker.core.logic.replication.topic_log import SCANNED_ENTRIES, TopicLog
from migratory_protocol.peer import Publication


@pytest.fixture
def nothing_is_near(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(topic_log, "SCANNED_ENTRIES", 0)


def appended(log: TopicLog, publisher: str, number: int) -> Publication:
    entry = Publication(1, log.last + 1, b"x", publisher, number, 0.0, None)
    log.append(entry)
    log.committed = log.last
    return entry


def filled(count: int, publishers: int = 3) -> TopicLog:
    log = TopicLog("t")
    for number in range(1, count + 1):
        appended(log, f"p{number % publishers}", number)
    return log


def steps(log: TopicLog, publisher: str, number: int) -> int:
    """Return the effort of one search: the number of lines of code that run, which grows with the entries visited."""
    looked = 0

    def trace(frame: object, event: str, argument: object) -> object:
        nonlocal looked
        looked += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)  # type: ignore[arg-type]
    try:
        log.find(publisher, number)
    finally:
        sys.settrace(before)
    return looked


@pytest.mark.usefixtures("nothing_is_near")
@pytest.mark.parametrize("seed", range(20))
def test_index_finds_the_same_as_a_scan(seed: int) -> None:
    chance = random.Random(seed)
    log = TopicLog("t")
    names = [f"p{number}" for number in range(chance.choice((1, 3, 40)))]
    most = chance.choice((10, MIN_BUCKETS, 5 * MIN_BUCKETS))
    for _ in range(600):
        name = chance.choice(names)
        appended(log, name, chance.choice((0, chance.randint(1, 90))))  # ids come again after a forgotten life
        while len(log.entries) > most or (log.entries and chance.random() < 0.3):
            log.drop_first()
        if chance.random() < 0.003:
            remaining = list(log.entries)[: chance.randint(0, len(log.entries))]
            log.replace(log.base, 1, remaining)
            log.committed = log.last
        if chance.random() < 0.3:
            for _ in range(5):
                name, number = chance.choice(names), chance.randint(1, 90)
                same = [entry for entry in log.entries if (entry.publisher, entry.id) == (name, number)]
                assert log.find(name, number) is (same[-1] if same else None)


def test_the_cost_does_not_grow_with_the_log() -> None:
    costs = []
    for count in (1000, 20_000):
        log = filled(count)
        log.find("p1", 1)  # makes the table
        costs.append(max(steps(log, f"p{number % 3}", number) for number in range(1, count, count // 50)))
        assert steps(log, "nobody", 5) < 12 * SCANNED_ENTRIES
    assert max(costs) < 12 * SCANNED_ENTRIES


def test_search_reads_only_new_entries() -> None:
    log = filled(20_000)
    log.find("p1", 1)
    for number in range(20_001, 20_101):
        appended(log, f"p{number % 3}", number)
    assert steps(log, "p1", 4) < 12 * (SCANNED_ENTRIES + 100)
    assert log.find("p1", 4) is log.entry(4)


@pytest.fixture
def traced() -> Iterator[None]:
    tracemalloc.start()
    yield
    tracemalloc.stop()


@pytest.mark.unmeasured
@pytest.mark.usefixtures("traced")
def test_index_is_small_and_built_on_demand() -> None:
    log = filled(20_000)
    before = tracemalloc.get_traced_memory()[0]
    assert log.find(f"p{20_000 % 3}", 20_000) is log.entry(20_000)  # one of the newest
    assert log.message_index is None
    log.find("p1", 1)
    assert log.message_index is not None
    assert (tracemalloc.get_traced_memory()[0] - before) / 20_000 < 25
    for _ in range(20_000 - SCANNED_ENTRIES):
        log.drop_first()
    assert log.find("p1", 1) is None
    for _ in range(SCANNED_ENTRIES):
        log.drop_first()
    assert log.message_index is None
