"""One I/O process of a broker is killed, stopped or hangs under load, in a cluster of three real brokers."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import pytest
from migratory_loadtest.api import Load
from migratory_testing.stalls import HANG, stallable_path
from migratory_testing.traffic import SECOND, Traffic, flawless, scenario
from migratory_testing.waiting import until

pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP, HANG], ids=["killed", "stopped", "hung"])
async def test_failed_io_process_loses_nothing_and_disturbs_no_other(
    start_cluster: Any, number: signal.Signals, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", stallable_path(tmp_path))
    async with start_cluster(brokers={"ioProcesses": 2}) as cluster:
        name = await cluster.busiest_coordinator()

        async def processes() -> list[dict[str, Any]]:
            statuses: Any = (await cluster.status(name))["io_processes"]
            return list(statuses)

        async def is_replaced() -> bool:
            status = await cluster.status(name)
            states = [process["state"] for process in await processes()]
            return status["io_process_deaths"] == 1 and states == ["up", "up"]

        traffic = Traffic()
        async with Load(scenario(cluster), traffic) as load:
            await load.measuring()
            await traffic.flows(2 * SECOND, within=20)
            victim, other = await processes()
            assert victim["connections"] > 0
            os.kill(victim["pid"], number)
            await until(is_replaced, "it is replaced", 20)
            await traffic.flows(2 * SECOND, within=20)
            load.stop_publishing()
            result = await load.result()
            assert (await processes())[1]["pid"] == other["pid"]
            closed: Any = (await cluster.status(name))["edge"]
        log = cluster.broker(name).process.log.read_text()
        assert ('"event":"loop_hung"' in log.replace(" ", "")) == (number == HANG), "its own watchdog ended it"
        flawless(result)
        assert result.reconnects >= victim["connections"]
        assert closed["closed"]["io_process"] == victim["connections"]
        assert "lost" not in closed["closed"]  # no client of the other process
