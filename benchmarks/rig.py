"""The test rig: a system under test with its subscribers and its publisher. Most measurements are made on one."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from benchmarks import ipc, machine
from benchmarks.processes import MeasurementFailed
from benchmarks.receivers import Receivers, ReceiverTotals
from benchmarks.systems import System, Workload

MAX_PENDING, MAX_TLS_PENDING = 200, 20
"""Connections of a receiver that may be opening at the same time, without and with TLS: servers end a handshake after
10 s, and a busy machine takes long for each."""


class RoundResult(Struct, kw_only=True):
    """The publishing of one system in one round: its counts, and the CPU seconds of the system's processes in
    `seconds`, up to the last delivery."""

    deliveries: int
    publications: int
    user: float
    system: float
    seconds: float
    late: int = 0
    receiver: float = 0.0  # CPU seconds of the receivers: the cost of the measurement itself
    median_ms: float | None = None  # latency; None without subscribers
    p99_ms: float | None = None

    @property
    def micros(self) -> float:
        """CPU microseconds per delivery, or per publication without subscribers."""
        return (self.user + self.system) / (self.deliveries or self.publications) * 1e6


class Rig:
    """A system under test and its clients. Without `subscribed` nobody subscribes, so that only the publications cost.
    `reconnects`: subscribers reconnect when their connection ends."""

    def __init__(
        self, system: System, work: Workload, *, pinned: bool = True, subscribed: bool = True, publishers: int = 4,
        reconnects: bool = False,
    ) -> None:  # fmt: skip
        """Prepare a rig. `pinned`: the system runs on one core of the machine and all clients on another.
        `publishers`: the number of the publisher's connections."""
        self.system = system
        self.work = work
        self.subscribed = subscribed
        self._reconnects = reconnects
        self._publishers = publishers
        self._core: int | None = None
        self._client_core: int | None = None
        if pinned:
            self._core, self._client_core = machine.cores()
        self._receivers: Receivers | None = None

    @property
    def name(self) -> str:
        """The system's name."""
        return self.system.name

    @property
    def receivers(self) -> Receivers:
        """The receivers, which hold the subscribers. They exist after `connect`."""
        assert self._receivers is not None
        return self._receivers

    async def start(self) -> None:
        """Start the system, its subscribers and its publisher. Raise MeasurementFailed, which names the system, as all
        methods do."""
        await self.serve()
        await self.connect()
        await self.start_publisher()

    async def serve(self) -> None:
        """Start the system without subscribers and publisher."""
        with self._named():
            await self.system.start(self.work, self._core)

    async def start_publisher(self) -> None:
        """Start the publisher."""
        with self._named():
            await self.system.start_publisher(self.work, self._client_core, self._publishers)

    async def connect(self) -> None:
        """Start the receivers and wait until their subscribers are connected. Do nothing if the rig has no
        subscribers."""
        if not self.subscribed:
            return
        with self._named():
            setup = ipc.ReceiverSetup(
                protocol=self.system.protocol, addresses=self.system.addresses,
                connections=self.work.subscribers, topics=self.work.topics, reconnects=self._reconnects,
                authority=self.system.authority, token=self.system.token,
                max_pending=MAX_TLS_PENDING if self.system.authority else MAX_PENDING,
            )  # fmt: skip
            self._receivers = Receivers(setup, self._client_core)
            await self._receivers.start()
            await self.system.connected()

    async def run_round(
        self, rate: float, seconds: float, limit: float = 30.0
    ) -> tuple[RoundResult, ReceiverTotals | None]:
        """Publish at `rate` per topic for `seconds`, wait until everything is delivered, and return the cost.

        Raise MeasurementFailed when a publication was not answered, or was lost, repeated, or not delivered within
        `limit` seconds after the last publication."""
        with self._named():
            return await self._run_round(rate, seconds, limit)

    async def _run_round(self, rate: float, seconds: float, limit: float) -> tuple[RoundResult, ReceiverTotals | None]:
        before = await self.receivers.report(reset=True) if self.subscribed else None
        cpu, begin = machine.cpu(self.system.pids), time.monotonic()
        published = await self.system.publish_open_loop(rate, seconds, limit)
        if published.answered != published.scheduled:
            raise MeasurementFailed(f"{published.answered} of {published.scheduled} publications were answered")
        totals = None
        deliveries = published.scheduled * self.work.subscribers_per_topic if self.subscribed else 0
        if before is not None:
            totals = await self.receivers.wait_for(before.deliveries + deliveries, limit)
        spent, lasted = machine.cpu(self.system.pids) - cpu, time.monotonic() - begin
        median, p99 = (totals.latency.median, totals.latency.p99) if totals is not None else (None, None)
        result = RoundResult(
            deliveries=deliveries, publications=published.scheduled, user=spent.user, system=spent.system,
            seconds=lasted, late=published.late,
            receiver=totals.cpu - before.cpu if totals is not None and before is not None else 0.0,
            median_ms=median, p99_ms=p99,
        )  # fmt: skip
        return result, totals

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Add the system's name and the end of its logs to a MeasurementFailed."""
        try:
            yield
        except MeasurementFailed as error:
            raise MeasurementFailed(f"{self.name}: {error}{self.system.last_log_lines}") from error

    async def stop(self) -> None:
        """Stop the subscribers and the system."""
        try:
            if self._receivers is not None:
                await self._receivers.stop()
        finally:
            await self.system.stop()
