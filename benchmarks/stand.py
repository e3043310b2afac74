"""A contender with its subscribers and its publisher: what most measurements are made on."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

from msgspec import Struct

from benchmarks import machine
from benchmarks import orders as o
from benchmarks.audience import Audience, Totals
from benchmarks.contenders import Contender, Work
from benchmarks.processes import Broken


class Turn(Struct, kw_only=True):
    """What one turn of publishing was, and what it cost the contender's processes (CPU seconds) in `seconds`, up to the
    last delivery."""

    deliveries: int
    publications: int
    user: float
    system: float
    seconds: float
    late: int = 0
    receiver: float = 0.0  # CPU seconds of the receivers: what measuring itself costs
    median_ms: float | None = None  # latency; None where nobody hears
    p99_ms: float | None = None

    @property
    def micros(self) -> float:
        """CPU per delivery; per publication where nobody hears them."""
        return (self.user + self.system) / (self.deliveries or self.publications) * 1e6


class Stand:
    """`heard` False: nobody subscribes, so that what remains is the cost of the publications themselves."""

    def __init__(
        self, contender: Contender, work: Work, *, pinned: bool = True, heard: bool = True, publishers: int = 4,
        stays: bool = False,
    ) -> None:  # fmt: skip
        self.contender = contender
        self.work = work
        self.heard = heard
        self._stays = stays
        self._publishers = publishers
        self._core: int | None = None
        self._rest: int | None = None
        if pinned:
            self._core, self._rest = machine.cores()
        self._audience: Audience | None = None

    @property
    def name(self) -> str:
        return self.contender.name

    @property
    def audience(self) -> Audience:
        assert self._audience is not None
        return self._audience

    async def start(self) -> None:
        """Raises Broken, which names the contender, as everything here does."""
        await self.serve()
        await self.connect()
        await self.publishes()

    async def serve(self) -> None:
        """The servers alone."""
        with self._named():
            await self.contender.start(self.work, self._core)

    async def publishes(self) -> None:
        with self._named():
            await self.contender.publishes(self.work, self._rest, self._publishers)

    async def connect(self) -> None:
        """The subscribers."""
        if not self.heard:
            return
        with self._named():
            setup = o.Audience(
                dialect=self.contender.dialect, addresses=self.contender.addresses,
                connections=self.work.subscribers, topics=self.work.topics, stays=self._stays,
            )  # fmt: skip
            self._audience = Audience(setup, self._rest)
            await self._audience.start()
            await self.contender.connected()

    async def turn(self, rate: float, seconds: float, limit: float = 30.0) -> tuple[Turn, Totals | None]:
        """Publishes, waits until everything was delivered, and tells the cost. Raises Broken when anything was not
        answered, lost, repeated or did not come within `limit` seconds behind the last publication."""
        with self._named():
            return await self._turn(rate, seconds, limit)

    async def _turn(self, rate: float, seconds: float, limit: float) -> tuple[Turn, Totals | None]:
        before = await self.audience.heard(anew=True) if self.heard else None
        cpu, begin = machine.cpu(self.contender.pids), time.monotonic()
        published = await self.contender.schedule(rate, seconds, limit)
        if published.answered != published.scheduled:
            raise Broken(f"{published.answered} of {published.scheduled} publications were answered")
        totals = None
        deliveries = published.scheduled * self.work.audience if self.heard else 0
        if before is not None:
            totals = await self.audience.expect(before.deliveries + deliveries, limit)
        spent, lasted = machine.cpu(self.contender.pids) - cpu, time.monotonic() - begin
        median, p99 = (totals.latency.median, totals.latency.p99) if totals is not None else (None, None)
        turn = Turn(
            deliveries=deliveries, publications=published.scheduled, user=spent.user, system=spent.system,
            seconds=lasted, late=published.late,
            receiver=totals.cpu - before.cpu if totals is not None and before is not None else 0.0,
            median_ms=median, p99_ms=p99,
        )  # fmt: skip
        return turn, totals

    @contextmanager
    def _named(self) -> Iterator[None]:
        """Whose fault it was, and what its servers said of it."""
        try:
            yield
        except Broken as reason:
            raise Broken(f"{self.name}: {reason}{self.contender.last_words}") from reason

    async def stop(self) -> None:
        try:
            if self._audience is not None:
                await self._audience.stop()
        finally:
            await self.contender.stop()
