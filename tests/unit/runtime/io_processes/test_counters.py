"""Counters summed over all I/O processes: those of dead processes stay in the sums."""

from __future__ import annotations

from typing import Any

from migratory_broker.core.logic.events import (
    ClientCounts,
    Observe,
)
from migratory_testing.waiting import until


async def test_counters_of_dead_processes_are_kept(site: Any) -> None:
    here = site()
    here.open()
    first, second = [await here.up(io) for io in here.started]
    first.say(first.report(1, 3, published=5, delivered=70, sent_bytes=900, queue_bytes=11, closed={"bye": 2}))
    second.say(second.report(1, 4, published=1, delivered=30, sent_bytes=100, closed={"bye": 1}))
    await until(lambda: all(process.report for process in here.clients._processes.values()))
    before = here.clients.edge_status()
    assert (before["clients"], before["published"], before["delivered"], before["queue_bytes"]) == (7, 6, 100, 11)
    assert before["by_process"] == {"0": 3, "1": 4}
    first.die(-9)
    await until(lambda: here.deaths == 1)
    after = here.clients.edge_status()
    assert (after["published"], after["delivered"], after["sent_bytes"]) == (6, 100, 1000)
    assert (after["clients"], after["queue_bytes"], after["connections"]) == (4, 0, 4)
    assert after["closed"] == {"bye": 3, "io_process": 3}
    assert Observe("migratory_closed_total", 3, "io_process") in here.observed
    assert Observe("migratory_io_process_deaths_total") in here.observed
    assert len(here.clients) == 4
    await until(
        lambda: here.logic.of(ClientCounts) == [ClientCounts(1, ())]
    )  # none of them are to be moved, or counted for it
    # its successor is another edge, and counts from nothing
    here.later(1.0)
    fresh = await here.up(here.started[2])
    assert (fresh.got[0].edge, fresh.got[0].process) == (3, 0)
    fresh.say(fresh.report(1, 1, published=2))
    await until(lambda: here.clients.edge_status()["published"] == 8)
