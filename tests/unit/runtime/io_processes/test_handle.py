"""Supervision of I/O processes: those that hang are killed, and those that ended are started again."""

from __future__ import annotations

import asyncio
import signal
from typing import Any

import pytest
from migratory_broker.core.logic.events import (
    Admission,
    Attach,
)
from migratory_broker.runtime.io_processes import handle as iolife
from migratory_broker.runtime.io_processes import pool as manyprocesses
from migratory_testing.ioprocesses import fanout
from migratory_testing.waiting import until


async def test_a_process_that_does_not_read_is_killed_before_it_fills_the_memory(
    site: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manyprocesses, "MAX_WAITING", 10_000_000)
    here = site()
    here.open()
    slow, _ = [await here.up(io) for io in here.started]
    slow.reading = False
    slow.say(Attach(1, 1, "t", None))
    await until(lambda: here.logic.of(Attach))
    for number in range(1, 80):
        here.effect(fanout("t", number, 500_000))
        await asyncio.sleep(0)
    await until(lambda: here.clients._processes[1].channel.waiting > 20_000_000)
    here.clients.tick(here.now)
    await until(lambda: here.deaths == 1)
    died = next(line for line in here.log.lines if line["event"] == "io_process_died")
    assert "bytes wait to be sent to it" in died["reason"]


async def test_a_process_that_hangs_gets_no_clients_and_is_killed(site: Any) -> None:
    here = site()
    here.open()
    hangs, other = [await here.up(io) for io in here.started]
    here.later(iolife.SUSPECT_AFTER)
    other.say(other.report(1))
    await until(lambda: here.clients._processes[2].report)
    assert here.clients._dealer.least_loaded() is here.clients._processes[2]
    for _ in range(5):
        here.later(1.0)
        count = here.clients._processes[2].report
        other.say(other.report(2))
        await until(lambda count=count: here.clients._processes[2].report is not count)  # type: ignore[misc, arg-type]
    await until(lambda: here.deaths == 1)
    assert (hangs.signals, other.signals) == ([signal.SIGKILL], [])
    assert "silent" in next(line["reason"] for line in here.log.lines if line["event"] == "io_process_died")


async def test_no_process_is_killed_because_the_broker_stalled(site: Any) -> None:
    here = site()
    here.open()
    ios = [await here.up(io) for io in here.started]
    here.clients.tick(here.now)
    here.now += 60.0
    here.clients.tick(here.now)
    here.later(1.0)
    assert [io.signals for io in ios] == [[], []]


async def test_a_hanging_process_is_killed_in_time_when_the_broker_is_fenced(site: Any) -> None:
    here = site()
    here.open()
    good, hangs = [await here.up(io) for io in here.started]
    here.effect(Admission(True), Admission(False, "fenced"))
    await until(lambda: Admission(False, "fenced") in good.got and Admission(False, "fenced") in hangs.got)
    good.say(good.report(here.clients._processes[1].channel.batches))
    hangs.say(hangs.report(here.clients._processes[2].channel.batches - 1))  # it is not through with that batch
    await until(lambda: here.clients._processes[1].report and here.clients._processes[2].report)
    here.later(iolife.CLOSE_TIMEOUT - 0.2)
    assert here.deaths == 0
    here.later(0.5)
    await until(lambda: here.deaths == 1)
    assert (good.signals, hangs.signals) == ([], [signal.SIGKILL])
    here.later(2.0)
    assert good.signals == []


async def test_a_process_that_keeps_dying_is_restarted_with_growing_delay(site: Any) -> None:
    here = site(1)
    here.open()
    waits = []
    for process in range(6):
        here.started[process].die(1)
        await until(lambda process=process: here.deaths == process + 1)  # type: ignore[misc]
        died = here.now
        while len(here.started) == process + 1:
            here.later(0.1)
        waits.append(here.now - died)
    assert waits == sorted(waits)
    assert waits[0] == pytest.approx(0.1, abs=0.11)
    assert waits[-1] == pytest.approx(3.2, abs=0.11)


async def test_a_process_that_fails_to_start_is_retried(site: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    here = site(1)
    assert len(here.started) == 1
    here.clients._start_at[0] = here.now

    def fail(ends: tuple[int, int]) -> Any:
        raise OSError(11, "Resource temporarily unavailable")

    good, here.clients._start = here.clients._start, fail
    here.clients.tick(here.now)
    assert here.log.lines[-1]["event"] == "io_process_start_failed"
    here.clients._start = good
    here.later(manyprocesses.LAST_DELAY + 0.2)
    assert len(here.started) == 2
