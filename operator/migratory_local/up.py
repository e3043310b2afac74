"""`migratory up`: a cluster that stays until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

from migratory_resources import MigratoryCluster

from migratory_local.cluster import LocalCluster
from migratory_local.errors import LocalError
from migratory_local.ports import HOST, free_ports
from migratory_local.prometheus import find_prometheus, prometheus_process
from migratory_local.recorder import Recorder
from migratory_local.state import publish

Metrics = Literal["auto", "prometheus", "recorder", "none"]
_CHECK_SECONDS = 1.0


async def up(
    resource: MigratoryCluster,
    workdir: Path,
    *,
    ports: int | None = None,
    metrics: Metrics = "auto",
    say: Callable[[str], None] = print,
) -> int:
    """Runs until it is cancelled. Then, and on any error, all that was started is ended.

    :raises LocalError: when it can't start, or metrics can't be recorded any more.
    """
    cluster = LocalCluster(resource, workdir, ports=ports, on_happening=lambda happening: say(happening.text))
    await cluster.start(say)
    try:
        async with _metrics(cluster, metrics) as (where, check):
            state_file = publish(cluster.state(where))
            try:
                _announce(cluster, where, say)
                while True:
                    check()
                    await asyncio.sleep(_CHECK_SECONDS)
            finally:
                state_file.unlink(missing_ok=True)
    finally:
        say("Ending all processes")
        await cluster.stop()


@contextlib.asynccontextmanager
async def _metrics(cluster: LocalCluster, wish: Metrics) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Where metrics go (empty: nowhere), and a check that raises when they no longer do."""
    executable = find_prometheus() if wish in ("auto", "prometheus") else None
    if wish == "prometheus" and executable is None:
        raise LocalError("no prometheus on PATH; install one, or use --metrics recorder")
    ports = [broker.ports.admin for broker in cluster.brokers]
    if executable is not None:
        port = free_ports(1)[0]
        folder = cluster.workdir / "prometheus"
        cluster.add(prometheus_process(executable, folder, port, ports, cluster.workdir / "logs"))
        yield f"http://{HOST}:{port}", lambda: None
    elif wish == "none":
        yield "", lambda: None
    else:
        async with Recorder(cluster.workdir / "samples") as recorder:
            for port in ports:
                recorder.add(port, "broker")
            yield str(recorder.folder), recorder.check


def _announce(cluster: LocalCluster, metrics: str, say: Callable[[str], None]) -> None:
    say(f"Cluster {cluster.resource.name} is up. Clients connect to any of")
    for broker in cluster.brokers:
        say(f"  {broker.url}    {broker.name}, administration {broker.admin_url}")
    say(f"ZooKeeper {cluster.ensemble.servers}")
    say(f"Metrics   {metrics or 'not recorded'}")
    say(f"Logs      {cluster.workdir / 'logs'}")
    say("Ctrl-C ends all of it.")
