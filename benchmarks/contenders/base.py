"""One interface for everything that is measured: how to start it, where its clients go, whose CPU and memory counts."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import ClassVar

from migratory_local.processes.process import Process
from msgspec import Struct

from benchmarks import orders as o
from benchmarks.processes import Helper, pids, stop_processes, tails


class Work(Struct, frozen=True, kw_only=True):
    """The same for every contender. `rate` is publications per topic and second."""

    subscribers: int
    topics: int
    payload: int
    rate: float

    @property
    def audience(self) -> int:
        """Subscribers of one topic. Raises ValueError when they are not equally many: counts must come out even."""
        if self.subscribers % self.topics:
            raise ValueError(f"{self.subscribers} subscribers can't be spread evenly over {self.topics} topics")
        return self.subscribers // self.topics


class Contender:
    """`core` None leaves its processes where the kernel puts them."""

    name: str
    dialect: ClassVar[str]
    publish_dialect: ClassVar[str] = ""
    addresses: list[o.Address]

    def __init__(self, name: str) -> None:
        self.name = name
        self.addresses = []
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._processes: list[Process] = []
        self._publisher: Helper | None = None

    @property
    def folder(self) -> Path:
        """Its own, until it is stopped."""
        if self._folder is None:
            self._folder = tempfile.TemporaryDirectory(prefix="migratory-bench-")
        return Path(self._folder.name)

    @property
    def pids(self) -> list[int]:
        """Of the processes whose CPU and memory count."""
        return pids(self._processes)

    @property
    def last_words(self) -> str:
        """Of each of its servers' logs."""
        return tails(self._processes)

    async def start(self, work: Work, core: int | None) -> None:
        """Returns when clients can connect. Raises Broken."""
        raise NotImplementedError

    async def connected(self) -> None:
        """All subscribers are there."""

    async def stop(self) -> None:
        if self._publisher is not None:
            await self._publisher.stop()
        await stop_processes(self._processes)
        if self._folder is not None:
            self._folder.cleanup()

    # ---- publishing: the same publisher for all that speak WebSocket --------------------------------------------

    async def publishes(self, work: Work, core: int | None, connections: int = 4) -> None:
        """Gets a publisher ready. Its numbers rise as long as it lives."""
        setup = o.Publishers(
            dialect=self.publish_dialect or self.dialect, addresses=self.addresses, connections=connections,
            topics=work.topics, payload=work.payload,
        )  # fmt: skip
        self._publisher = await Helper.start("benchmarks.publisher", setup, core)
        await self._publisher.ready(60.0)

    async def schedule(self, rate: float, seconds: float, settle: float = 30.0) -> o.Published:
        """Open loop: each topic `rate` times a second; then answers are waited for, up to `settle` seconds."""
        return await self._ask(o.Schedule(rate, seconds, settle), seconds * 3 + settle + 60)

    async def pipeline(self, window: int, seconds: float) -> o.Published:
        return await self._ask(o.Pipeline(window, seconds), seconds + 90)

    async def _ask(self, order: o.Order, limit: float) -> o.Published:
        assert self._publisher is not None
        return await self._publisher.ask(order, o.Published, limit)

    def _run(self, command: list[str], core: int | None, environment: dict[str, str] | None = None) -> Process:
        """Started on its core: a Go program counts its cores when it starts."""
        where = [] if core is None else ["taskset", "-c", str(core)]
        name = self.name.replace(" ", "-")
        log = self.folder / f"{name}-{len(self._processes)}.log"
        process = Process(name, [*where, *command], log, environment=environment)
        process.start()
        self._processes.append(process)
        return process
