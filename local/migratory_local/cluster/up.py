"""`migratory up`: runs a cluster until it is cancelled, records its metrics, and warns when the cluster's file
changes."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Literal, NoReturn
from urllib.parse import urljoin

from migratory_resources import MigratoryCluster
from migratory_resources.objectives import DEFAULT_OBJECTIVES
from migratory_resources.validation.document import read_document
from migratory_spark.alerting.rules import rule_file

from migratory_local import LocalError
from migratory_local.cluster.local_cluster import LocalCluster
from migratory_local.cluster.state import write_state
from migratory_local.metrics.prometheus import find_prometheus, prometheus_process
from migratory_local.metrics.recorder import Recorder
from migratory_local.metrics.scrape_file import ScrapeFile
from migratory_local.processes.network import LOOPBACK, free_ports

Metrics = Literal["auto", "prometheus", "recorder", "none"]
"""The choice of what records metrics: Prometheus, the built-in recorder, or nothing. `auto` is Prometheus if it is on
PATH, otherwise the built-in recorder."""
_CHECK_SECONDS = 1.0
"""Seconds between two checks of the supervisor, the metrics and the files."""


class ClusterFileWatcher:
    """A watcher of the cluster's file. The runner reads the file once, so the watcher warns that later changes have no
    effect.

    :param say: shows a line to the user.
    """

    def __init__(self, path: Path, say: Callable[[str], None]) -> None:
        self._path = path.absolute()
        self._say = say
        self._stamp, self._text = self._read()

    def check(self) -> None:
        """Warn if the file's content has changed since the last check. A missing file counts as unchanged."""
        stamp, text = self._read(self._stamp)
        # A missing file is about to be replaced by a new one.
        if stamp is None or stamp == self._stamp:
            return
        self._stamp = stamp
        if text == self._text:
            return
        self._text = text
        self._say(
            f"warning: {self._path} has changed; changes take effect at the next start, which begins with empty topics "
            "(docs/start/local.md lists what can change without a start)"
        )

    def _read(self, known: tuple[int, int, int] | None = None) -> tuple[tuple[int, int, int] | None, bytes]:
        """Return a stamp of the file (time of change, size, inode; None if there is no file), and its content; no
        content if the stamp is `known`."""
        try:
            status = self._path.stat()
            stamp = status.st_mtime_ns, status.st_size, status.st_ino
            return stamp, b"" if stamp == known else read_document(self._path)
        except OSError:
            return None, b""


async def run_up(
    resource: MigratoryCluster,
    workdir: Path,
    *,
    ports: int | None = None,
    metrics: Metrics = "auto",
    scrape: Path | None = None,
    source: Path | None = None,
    dev_tls: bool = False,
    say: Callable[[str], None] = print,
) -> NoReturn:
    """Run a cluster until cancelled; it does not return. When cancelled, and on any error, end everything that was
    started. A state file names the cluster to other commands meanwhile.

    :param ports: see `LocalCluster`.
    :param metrics: what records metrics.
    :param scrape: a file of additional targets whose metrics are recorded; it may appear and change later
        (scrape_file.py).
    :param source: the file of `resource`; the user is warned of changes.
    :param dev_tls: see `LocalCluster`.
    :param say: shows a line to the user.
    :raises LocalError: the options exclude each other, the cluster cannot start, or metrics cannot be recorded any
        more.
    """
    executable = find_prometheus() if metrics in ("auto", "prometheus") else None
    if metrics == "prometheus" and executable is None:
        raise LocalError("--metrics prometheus: there is no prometheus on PATH; install it, or use --metrics recorder")
    if metrics == "none" and scrape is not None:
        raise LocalError("--scrape is not allowed with --metrics none; use --metrics auto, prometheus or recorder")
    scrape_file = None if scrape is None else ScrapeFile(scrape, say)
    watcher = None if source is None else ClusterFileWatcher(source, say)
    cluster = LocalCluster(resource, workdir, ports=ports, on_event=lambda event: say(event.text), dev_tls=dev_tls)
    await cluster.start(say)
    try:
        async with _recorded_metrics(cluster, metrics != "none", executable, scrape_file) as (location, check_metrics):
            state_file = write_state(cluster.state(location))
            try:
                _announce(cluster, location, say)
                while True:
                    cluster.check()
                    check_metrics()
                    if watcher is not None:
                        watcher.check()
                    await asyncio.sleep(_CHECK_SECONDS)
            finally:
                state_file.unlink(missing_ok=True)
    finally:
        say("Ending all processes")
        await cluster.stop()


@contextlib.asynccontextmanager
async def _recorded_metrics(
    cluster: LocalCluster, wanted: bool, prometheus: Path | None, scrape_file: ScrapeFile | None
) -> AsyncIterator[tuple[str, Callable[[], None]]]:
    """Record metrics while the context is open. Yield where they are (folder or URL, "" for none), and a check to call
    every second.

    The check reads the scrape file, and raises LocalError if the built-in recorder has failed.

    :param wanted: True to record metrics.
    :param prometheus: the path of the `prometheus` to run; None for the built-in recorder.
    """
    ports = [broker.ports.admin for broker in cluster.brokers]
    tls = cluster.resource.spec.security.tls.administration is not None
    if not wanted:
        yield "", lambda: None
    elif prometheus is not None:
        port = free_ports(1)[0]
        folder, logs = cluster.workdir / "prometheus", cluster.workdir / "logs"
        scrape = None if scrape_file is None else scrape_file.path
        rules = rule_file(cluster.resource.spec.sla.objectives or DEFAULT_OBJECTIVES)
        cluster.add(prometheus_process(prometheus, folder, port, ports, logs, scrape=scrape, rules=rules, tls=tls))

        def check() -> None:
            if scrape_file is not None:
                scrape_file.read()  # Prometheus reads the file itself, but reports its errors only in its log.

        yield f"http://{LOOPBACK}:{port}", check
    else:
        async with Recorder(cluster.workdir / "samples") as recorder:
            for port in ports:
                recorder.add(port, "broker", tls=tls)

            def check() -> None:
                recorder.check()
                if scrape_file is not None and scrape_file.read():
                    recorder.follow(scrape_file.targets)

            yield str(recorder.folder), check


def _announce(cluster: LocalCluster, metrics: str, say: Callable[[str], None]) -> None:
    """Show the user the cluster's URLs, its authority if it made one, its console if that is on, and where metrics
    (`metrics`, "" for none) and logs are."""
    say(f"Cluster {cluster.resource.name} is up. Clients connect to any of")
    for broker in cluster.brokers:
        say(f"  {broker.url}    {broker.name}, administration {broker.admin_url}")
    if cluster.authority is not None:
        say(f"Authority {cluster.authority} (for programs: SSL_CERT_FILE)")
    if cluster.resource.spec.console.enabled is not False:
        say(f"Console   {urljoin(cluster.brokers[0].url.replace('ws', 'http', 1), '/console')}")
    say(f"ZooKeeper {cluster.ensemble.servers}")
    say(f"Metrics   {metrics or 'not recorded'}")
    say(f"Logs      {cluster.workdir / 'logs'}")
    say("Ctrl-C ends everything.")
