"""The interface of a system under test: how to start it, where its clients connect, whose CPU and memory counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates
from migratory_local.processes.network import LOOPBACK
from migratory_local.processes.process import Process
from msgspec import Struct

from benchmarks import ipc
from benchmarks.processes import HelperProcess, pids, stop_processes, tails


class Workload(Struct, frozen=True, kw_only=True):
    """The work that every system of a comparison does. `payload` is the size of each in bytes, `rate` the publications
    per topic and second."""

    subscribers: int
    topics: int
    payload: int
    rate: float

    @property
    def subscribers_per_topic(self) -> int:
        """Subscribers of one topic. Raises ValueError when topics have unequal numbers of them, because expected
        deliveries are computed from it."""
        if self.subscribers % self.topics:
            raise ValueError(f"{self.subscribers} subscribers can't be spread evenly over {self.topics} topics")
        return self.subscribers // self.topics


class System:
    """A system under test. With `core` None its processes run on any core."""

    name: str
    protocol: ClassVar[str]
    publish_protocol: ClassVar[str] = ""
    addresses: list[ipc.Address]
    authority: str  # the file of the authority of its certificates; empty: no TLS
    token: str  # what its clients show of themselves

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses = []
        self.authority = ""
        self.token = ""
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[Process] = []
        self._publisher: HelperProcess | None = None

    @property
    def folder(self) -> Path:
        """The system's own temporary folder, created at the first use and deleted by `stop`."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="migratory-bench-")
        return Path(self._folder.name)

    def make_certificate(self) -> tuple[Path, Path]:
        """Make an authority, which clients will trust, and a certificate of the loopback address. Return the files of
        certificate and key."""
        write_certificates(self.folder, DevelopmentAuthority(), ["server"], LOOPBACK)
        self.authority = str(self.folder / "ca.crt")
        return self.folder / "server.crt", self.folder / "server.key"

    @property
    def pids(self) -> list[int]:
        """The ids of the processes whose CPU and memory count."""
        return pids(self._processes)

    @property
    def last_log_lines(self) -> str:
        """The end of each server's log."""
        return tails(self._processes)

    async def start(self, work: Workload, core: int | None) -> None:
        """Start the servers. Return when clients can connect. Raise MeasurementFailed when a server does
        not start."""
        raise NotImplementedError

    async def connected(self) -> None:
        """Wait until the system has accepted all subscribers. A system that cannot report it returns at once."""

    async def stop(self) -> None:
        """Stop publisher and servers, and delete the folder."""
        if self._publisher is not None:
            await self._publisher.stop()
        await stop_processes(self._processes)
        if self._folder is not None:
            self._folder.cleanup()

    # ---- publishing: the same publisher for all systems with WebSocket -----------------------------------------

    async def start_publisher(self, work: Workload, core: int | None, connections: int = 4) -> None:
        """Start a publisher and wait until it is connected. The numbers of its publications rise as long as it runs."""
        setup = ipc.PublisherSetup(
            protocol=self.publish_protocol or self.protocol, addresses=self.addresses, connections=connections,
            topics=work.topics, payload=work.payload, authority=self.authority,
            token=self.token,
        )  # fmt: skip
        self._publisher = await HelperProcess.start("benchmarks.publisher", setup, core)
        await self._publisher.ready(60.0)

    async def publish_open_loop(self, rate: float, seconds: float, settle: float = 30.0) -> ipc.PublishReport:
        """Publish on each topic `rate` times a second for `seconds`, then wait up to `settle` seconds for the
        answers. Return the counts."""
        return await self._ask(ipc.OpenLoop(rate, seconds, settle), seconds * 3 + settle + 60)

    async def publish_closed_loop(self, window: int, seconds: float) -> ipc.PublishReport:
        """Publish for `seconds` as fast as answers allow, with up to `window` unanswered publications a connection.
        Return the counts."""
        return await self._ask(ipc.ClosedLoop(window, seconds), seconds + 90)

    async def _ask(self, command: ipc.Command, limit: float) -> ipc.PublishReport:
        assert self._publisher is not None
        return await self._publisher.ask(command, ipc.PublishReport, limit)

    def _run(self, command: list[str], core: int | None, environment: dict[str, str] | None = None) -> Process:
        """Start a server on this core, and return its process. It is pinned from its start, because a Go program
        counts its cores then."""
        prefix = [] if core is None else ["taskset", "-c", str(core)]
        name = self.name.replace(" ", "-")
        log = self.folder / f"{name}-{len(self._processes)}.log"
        process = Process(name, [*prefix, *command], log, environment=environment)
        process.start()
        self._processes.append(process)
        return process
