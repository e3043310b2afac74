"""The event loop of a broker hangs: alone, together with all other threads of the process, or for a moment only.
`test_io_processes` tests a hung I/O process."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from migratory_broker.runtime.errors import EXIT_HUNG
from migratory_loadtest.api import Load
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_testing.stalls import HANG, HOLD, PAUSE, stallable_path
from migratory_testing.traffic import SECOND, Traffic, flawless, scenario
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


@pytest.fixture(autouse=True)
def stallable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONPATH", stallable_path(tmp_path))


def log_lines(cluster: LocalCluster, name: str, event: str) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in cluster.broker(name).process.log.read_text().splitlines() if line[:1] == "{"]
    return [line for line in lines if line["event"] == event]


async def test_broker_with_a_hung_loop_ends_itself_and_is_replaced(start_cluster: Any) -> None:
    """A broker whose event loop hangs is ended by its watchdog after three seconds and started again by the
    supervisor: nothing is lost, and its clients resume in time. Without a watchdog its ZooKeeper session would go on
    and keep its groups from others."""
    async with start_cluster() as cluster:
        events: list[str] = []
        cluster.supervisor._on_event = lambda event: events.append(event.text)
        victim = await cluster.busiest_coordinator()
        process = cluster.broker(victim).process
        traffic = Traffic()
        async with Load(scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            await load.mark("hang", victim)
            process.signal(HANG)
            await until(lambda: process.starts == 2, "it ends and is started again", 10)
            await traffic.flows(5 * SECOND, within=20)
            await cluster.wait_ready(40)
            await traffic.flows(2 * SECOND, within=20)
            load.stop_publishing()
            result = await load.result()
        flawless(result)
        assert events[0].startswith(f"{victim} ended with {EXIT_HUNG};")
        (line,) = log_lines(cluster, victim, "loop_hung")
        assert 3.0 <= line["seconds"] < 4.0  # less than the session
        assert line["limit"] == 3.0
        assert "hang_here" in line["stack"][-1]
        (mark,) = result.marks
        assert mark.disconnected == mark.resumed == mark.within_limit == mark.clients > 0


async def test_loop_that_stands_for_a_moment_is_counted_and_goes_on(start_cluster: Any) -> None:
    async with start_cluster() as cluster:
        victim = await cluster.busiest_coordinator()
        process = cluster.broker(victim).process
        traffic = Traffic()
        async with Load(scenario(cluster), traffic) as load:
            await load.measuring()
            process.signal(PAUSE)

            async def is_counted() -> bool:
                return int(str((await cluster.status(victim))["late_ticks"])) > 0

            await until(is_counted, "the stall is counted", 20)
            await traffic.flows(2 * SECOND, within=20)
            load.stop_publishing()
            result = await load.result()
        flawless(result)
        assert process.starts == 1
        _, page = await cluster.broker(victim).get_admin(cluster.http, "/metrics") or (0, "")
        values = {line.partition("{")[0]: float(line.rpartition(" ")[2]) for line in page.splitlines() if "{" in line}
        assert values["migratory_loop_stalls_total"] >= 1
        assert 1.0 <= values["migratory_loop_longest_stall_seconds"] < 3.0


async def test_broker_that_holds_the_interpreter_is_killed_by_the_supervisor(start_cluster: Any) -> None:
    """A broker that holds the Python interpreter, so that its watchdog cannot run, fails the supervisor's probe: the
    supervisor reports it as hung, kills it and starts it again."""
    async with start_cluster() as cluster:
        events: list[tuple[str, str]] = []
        cluster.supervisor._on_event = lambda event: events.append((event.kind, event.name))
        victim = await cluster.busiest_coordinator()
        process = cluster.broker(victim).process
        await until(lambda: cluster.supervisor._watched[victim].probed_pid == process.pid, "a first probe", 10)
        process.signal(HOLD)
        await until(lambda: process.starts == 2, "it is killed and started again", 40)
        assert events[:3] == [("hung", victim), ("died", victim), ("restarted", victim)]
        await cluster.wait_ready(40)
