"""`migratory up`: a cluster that stays until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal

from migratory_resources import MigratoryCluster
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_spark.alerting.rules import rule_file

from migratory_local.cluster import LocalCluster
from migratory_local.errors import LocalError
from migratory_local.ports import HOST, free_ports
from migratory_local.prometheus import find_prometheus, prometheus_process
from migratory_local.recorder import Recorder
from migratory_local.scrape_file import ScrapeFile
from migratory_local.state import publish

Metrics = Literal["auto", "prometheus", "recorder", "none"]
_CHECK_SECONDS = 1.0


class Source:
    """The cluster's file. It is read once: whoever changes it later should not wait for an effect."""

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path.absolute()
        self._say = say
        self._stamp, self._text = self._seen()

    def look(self) -> None:
        """Says so when it has changed since the last look."""
        stamp, text = self._seen(self._stamp)
        # A file that is away is about to be replaced by another one.
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        if text == self._text:
            return
        self._text = text
        self._say(
            f"warning: {self._path} has changed; changes take effect at the next start, which begins without what "
            "topics hold (docs/local.md has what needs no start)"
        )

    def _seen(self, known: tuple[int, int, int] | None = None) -> tuple[tuple[int, int, int] | None, bytes]:
        """What tells of a change, and what the file holds unless that is `known`."""
        try:
            found = self._path.stat()
            stamp = found.st_mtime_ns, found.st_size, found.st_ino
            return stamp, b"" if stamp == known else self._path.read_bytes()
        except OSError:
            return None, b""


async def up(
    resource: MigratoryCluster,
    workdir: Path,
    *,
    ports: int | None = None,
    metrics: Metrics = "auto",
    scrape: Path | None = None,
    source: Path | None = None,
    say: Callable[[str], None] = print,
) -> int:
    """Runs until it is cancelled. Then, and on any error, all that was started is ended.

    :param source: the file of `resource`, whose changes are told of.
    :param scrape: a file of more targets whose metrics are kept, which may appear and change later (scrape_file.py).
    :raises LocalError: when it can't start, or metrics can't be recorded any more.
    """
    executable = find_prometheus() if metrics in ("auto", "prometheus") else None
    if metrics == "prometheus" and executable is None:
        raise LocalError("no prometheus on PATH; install one, or use --metrics recorder")
    if metrics == "none" and scrape is not None:
        raise LocalError("--scrape needs somebody who keeps the metrics: not with --metrics none")
    file = None if scrape is None else ScrapeFile(scrape, say)
    read = None if source is None else Source(source, say)
    cluster = LocalCluster(resource, workdir, ports=ports, on_happening=lambda happening: say(happening.text))
    await cluster.start(say)
    try:
        async with _metrics(cluster, metrics != "none", executable, file) as (where, check):
            state_file = publish(cluster.state(where))
            try:
                _announce(cluster, where, say)
                while True:
                    cluster.check()
                    check()
                    if read is not None:
                        read.look()
                    await asyncio.sleep(_CHECK_SECONDS)
            finally:
                state_file.unlink(missing_ok=True)
    finally:
        say("Ending all processes")
        await cluster.stop()


@contextlib.asynccontextmanager
async def _metrics(
    cluster: LocalCluster, wanted: bool, prometheus: Path | None, file: ScrapeFile | None
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Where metrics go (empty: nowhere), and what to call every second: it raises when they no longer go there."""
    ports = [broker.ports.admin for broker in cluster.brokers]
    if not wanted:
        yield "", lambda: None
    elif prometheus is not None:
        port = free_ports(1)[0]
        folder, logs = cluster.workdir / "prometheus", cluster.workdir / "logs"
        scrape = None if file is None else file.path
        rules = rule_file(cluster.resource.spec.sla.objectives or DEFAULT_OBJECTIVES)
        cluster.add(prometheus_process(prometheus, folder, port, ports, logs, scrape=scrape, rules=rules))

        def look() -> None:
            if file is not None:
                file.look()  # Prometheus reads it itself, but tells its log alone what is wrong with it.

        yield f"http://{HOST}:{port}", look
    else:
        async with Recorder(cluster.workdir / "samples") as recorder:
            for port in ports:
                recorder.add(port, "broker")

            def check() -> None:
                recorder.check()
                if file is not None and file.look():
                    recorder.follow(file.targets)

            yield str(recorder.folder), check


def _announce(cluster: LocalCluster, metrics: str, say: Callable[[str], None]) -> None:
    say(f"Cluster {cluster.resource.name} is up. Clients connect to any of")
    for broker in cluster.brokers:
        say(f"  {broker.url}    {broker.name}, administration {broker.admin_url}")
    say(f"ZooKeeper {cluster.ensemble.servers}")
    say(f"Metrics   {metrics or 'not recorded'}")
    say(f"Logs      {cluster.workdir / 'logs'}")
    say("Ctrl-C ends all of it.")
