"""Reading the memory of processes: it happens at most once within the maximum age of a value, and dead processes are
forgotten."""

from __future__ import annotations

import os

import pytest
from migratory_broker.runtime.admin import metrics as memory


def test_memory_is_read_at_most_once_in_its_max_age_and_dead_processes_are_forgotten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 100.0
    read: list[int] = []

    def pss(pid: int) -> int:
        read.append(pid)
        return pid

    monkeypatch.setattr(memory, "pss", pss)
    reader = memory.MemoryReader(lambda: now)
    assert [reader.pss(pid) for pid in (1, 2, 1)] == [1, 2, 1]
    assert read == [1, 2]
    assert reader.total([1, 2]) == 1 + 2 + os.getpid()
    assert read == [1, 2, os.getpid()]
    for pid in range(3, 100):  # one process after the other
        now += memory.MEMORY_MAX_AGE
        assert reader.pss(pid) == pid
    assert len(reader._read) == 1
