"""The watchdog: what counts as a stall of the loop, and how the process ends."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.runtime import errors
from migratory_broker.runtime.logs import Log
from migratory_broker.runtime.watchdog import WATCH_INTERVAL, LoopProgress, Watchdog, stall_limit


@pytest.mark.parametrize("session", [1.0, 4.0, 60.0])
def test_limit_is_below_session_and_fencing_time(session: float) -> None:
    fencing = LogicConfig("c", "a", ("a", "b", "c")).fencing
    assert 0 < stall_limit(session, fencing) < min(session, fencing)
    assert stall_limit(4.0, 4.0) == 3.0


def observe(progress: LoopProgress, begin: float, seconds: float, *, turns: bool) -> float:
    """Observe the loop's progress at each watch interval for `seconds` from time `begin`; with `turns` the loop
    completes a turn before each. Return the last result, the seconds of the stall."""
    stalled = 0.0
    for step in range(1, round(seconds / WATCH_INTERVAL) + 1):
        if turns:
            progress.turn()
        stalled = progress.observe(begin + step * WATCH_INTERVAL)
    return stalled


def test_a_loop_that_stands_is_counted_from_its_last_turn() -> None:
    progress = LoopProgress(100.0)
    assert observe(progress, 100.0, 5.0, turns=True) == 0.0
    assert observe(progress, 105.0, 2.0, turns=False) == pytest.approx(2.0)
    assert observe(progress, 107.0, 1.0, turns=False) == pytest.approx(3.0)


def test_stalls_do_not_add_up_over_turns() -> None:
    progress = LoopProgress(0.0)
    for begin in range(0, 50, 5):
        assert observe(progress, begin, 2.0, turns=False) == pytest.approx(2.0)
        assert observe(progress, begin + 2, 3.0, turns=True) == 0.0


def test_time_in_which_the_whole_process_was_stopped_does_not_count() -> None:
    """When the observer itself did not run for an hour, as with SIGSTOP or a suspended machine, the stall counts as
    two watch intervals, and grows from there."""
    progress = LoopProgress(0.0)
    observe(progress, 0.0, 1.0, turns=True)
    assert progress.observe(3600.0) == 2 * WATCH_INTERVAL
    assert observe(progress, 3600.0, 0.2, turns=False) < stall_limit(1.0, 4.0)


class RecordingLog(Log):
    """A stand-in for `Log` that stores its lines in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[dict[str, Any]] = []
        self.closed = False

    def __call__(self, level: str, event: str, **fields: object) -> None:
        self.lines.append({"level": level, "event": event, **fields})

    def close(self, timeout: float = 1.0) -> None:
        self.closed = True


async def test_a_process_whose_loop_stands_ends_with_its_own_code_and_the_stack() -> None:
    log = RecordingLog()
    codes: list[int] = []
    Watchdog(0.3, log, codes.append)
    await asyncio.sleep(0.5)  # a loop that turns lives on
    assert codes == []
    deadline = time.monotonic() + 30
    while not codes and time.monotonic() < deadline:
        time.sleep(0.1)  # noqa: ASYNC251
    assert codes == [errors.EXIT_HUNG]
    (line,) = log.lines
    assert (line["level"], line["event"], line["limit"], line["code"]) == ("error", "loop_hung", 0.3, errors.EXIT_HUNG)
    assert 0.3 <= line["seconds"] < 1.0
    assert "time.sleep(0.1)" in line["stack"][-1]
    assert log.closed


def test_a_loop_that_has_ended_does_not_hang() -> None:
    codes: list[int] = []

    async def watched() -> None:
        Watchdog(0.2, RecordingLog(), codes.append)

    asyncio.run(watched())
    time.sleep(0.6)
    assert codes == []


def test_exit_codes_differ() -> None:
    codes = [value for name, value in vars(errors).items() if name.startswith("EXIT_")]
    assert len(set(codes)) == len(codes)
