"""The parent of a run: starts the worker processes, tells them when to begin, gathers and verifies what they saw."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable

from migratory_loadtest.account import TopicAccount
from migratory_loadtest.control import (
    Begin,
    Cease,
    FromWorker,
    Go,
    Hello,
    Mark,
    Marked,
    Progress,
    Report,
    Summary,
    Topic,
    Verified,
    read_answer,
)
from migratory_loadtest.histogram import bounds
from migratory_loadtest.progress import LoadEvent, OnEvent, Phase
from migratory_loadtest.result import LoadResult
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.seats import Seat, Seats
from migratory_loadtest.totals import RunFacts, assemble
from migratory_loadtest.verifier import verify

LONGEST_ANSWER = 1024 * 1024 * 1024  # bytes: one topic's account
LEAD = 0.5  # seconds from the order to the first publication, so that every worker has it in time
GRACE = 1.0  # seconds after the last owed delivery, so that a second one of it would be seen
OBSTACLE = 3.0  # seconds of connecting after which a progress display is told what is in the way
STOP = 5.0  # seconds for a worker to end by itself


class LoadFailed(Exception):
    """The run could not be made, or not to its end. The text says why."""


class Fleet:
    """See `api.Load`."""

    def __init__(self, scenario: Scenario, on_event: OnEvent | None) -> None:
        self.scenario = scenario
        self._on_event = on_event
        self._seats = Seats()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._phase: Phase = "connecting"
        self._began = time.monotonic()
        self._start_ns = 0
        self._end_ns = 0
        self._marks: list[Mark] = []
        self._before: dict[str, int] = {}
        self._bounds = bounds(scenario.thresholds)
        self._accounts: dict[str, TopicAccount] = {}
        self._result: LoadResult | None = None
        self._finished = 0.0
        self._failure = ""
        self._stopping = False

    @property
    def targets(self) -> list[str]:
        return [seat.hello.metrics for seat in self._seats if seat.hello is not None and seat.hello.metrics]

    @property
    def pids(self) -> list[int]:
        return [seat.process.pid for seat in self._seats]

    @property
    def accounts(self) -> list[TopicAccount]:
        return [self._accounts[topic] for topic in sorted(self._accounts)]

    # ---- the run -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        scenario = self.scenario
        run = secrets.token_hex(4)  # publishers of two runs must never share an id, whatever the seed
        workers = scenario.worker_count()
        for number in range(workers):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "migratory_loadtest.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=LONGEST_ANSWER,
                process_group=0,  # the terminal's Ctrl-C must not meet a worker that is still loading
            )
            seat = Seat(number, process)
            self._seats.append(seat)
            self._tasks.append(asyncio.create_task(self._listen(seat)))
            seat.tell(Begin(scenario, number, workers, run))
        self._tasks.append(asyncio.create_task(self._tick()))
        await self._until(
            lambda: all(seat.hello is not None for seat in self._seats), 60.0, "the workers did not start"
        )
        allowed = scenario.connect_timeout + scenario.subscribers / scenario.connects_per_second
        await self._until(self._all_connected, allowed, "not every client got its receipt")
        self._before = self._seats.connections()
        self._start_ns = time.monotonic_ns() + round(LEAD * 1e9)
        self._end_ns = self._start_ns + round((scenario.warmup + scenario.duration) * 1e9)
        self._seats.tell(Go(self._start_ns))
        self._enter("warmup")

    async def measuring(self) -> None:
        await self._sleep_until(lambda: self._start_ns + round(self.scenario.warmup * 1e9))
        if self._phase == "warmup":
            self._enter("measuring")

    async def mark(self, name: str, broker: str | None) -> None:
        order = Mark(len(self._marks), time.monotonic_ns(), name, broker)
        if not self._marks:
            self._before = self._seats.connections()
        self._marks.append(order)
        self._seats.tell(order)
        await self._until(
            lambda: all(order.number in seat.marked for seat in self._seats), 30.0, "a worker did not take the mark"
        )
        if order.number == 0:
            noted: Counter[str] = Counter()
            for seat in self._seats:
                noted.update(seat.marked[0].connections)
            self._before = dict(noted)
        self._emit(mark=name)

    def cease(self) -> None:
        now = time.monotonic_ns()
        if self._start_ns and now < self._end_ns:
            self._end_ns = max(now, self._start_ns)
            self._seats.tell(Cease(self._end_ns))

    async def connections(self) -> dict[str, int]:
        self._check()
        return self._seats.connections()

    async def result(self) -> LoadResult:
        if self._result is not None:
            return self._result
        await self.measuring()
        await self._sleep_until(lambda: self._end_ns)
        self._enter("draining")
        await self._drain()
        self._enter("verifying")
        self._seats.tell(Report())
        await self._until(
            lambda: all(seat.summary is not None for seat in self._seats), 120.0, "a worker did not report"
        )
        self._result = await asyncio.to_thread(self._verify)
        self._finished = time.monotonic()
        self._enter("done")
        return self._result

    async def linger(self) -> None:
        """The last scrapes must see the final counts."""
        if self.scenario.metrics and self._result is not None:
            await asyncio.sleep(max(0.0, self._finished + 2 * self.scenario.scrape_interval - time.monotonic()))

    async def stop(self) -> None:
        self._stopping = True
        for seat in self._seats:
            if seat.process.stdin is not None:
                seat.process.stdin.close()
        for seat in self._seats:
            try:
                async with asyncio.timeout(STOP):
                    await seat.process.wait()
            except TimeoutError:
                seat.process.kill()
                await seat.process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- its steps ---------------------------------------------------------------------------------------------

    def _all_connected(self) -> bool:
        return (
            self._seats.sum("connected") == self.scenario.subscribers
            and self._seats.sum("publishers") == self.scenario.publisher_count()
        )

    async def _drain(self) -> None:
        """Until everything is answered and everything owed was delivered, or patience is at its end."""
        deadline = time.monotonic() + self.scenario.patience
        quiet_since: float | None = None
        while time.monotonic() < deadline:
            quiet = (
                all(seat.progress.done for seat in self._seats)
                and not self._seats.sum("waiting")
                and self._seats.sum("received") >= self._seats.sum("expected")
            )
            if not quiet:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= GRACE:
                return
            await self._news(0.2)

    def _verify(self) -> LoadResult:
        scenario = self.scenario
        verdict = verify(self.accounts, elsewhere=scenario.publisher_count() == 0)
        self._seats[0].tell(Verified(dict(verdict.lost_by_broker), verdict.duplicates, verdict.reordered))
        facts = RunFacts(
            scenario=scenario,
            bounds=self._bounds,
            summaries=[seat.summary for seat in self._seats if seat.summary is not None],
            marks=self._marks,
            before=self._before,
            seconds=(time.monotonic_ns() - self._start_ns) / 1e9,
            measured=(self._end_ns - self._start_ns) / 1e9 - scenario.warmup,
        )
        return assemble(facts, verdict)

    # ---- workers -----------------------------------------------------------------------------------------------

    async def _listen(self, seat: Seat) -> None:
        assert seat.process.stdout is not None
        while data := await seat.process.stdout.readline():
            self._take(seat, read_answer(data))
            self._changed.set()
        seat.ended = True
        if not self._stopping:
            self._failure = f"load worker {seat.number} ended early (exit status {await seat.process.wait()})"
        self._changed.set()

    def _take(self, seat: Seat, answer: FromWorker) -> None:
        match answer:
            case Progress():
                for bucket, count in seat.progress.latencies.items():  # not shown yet: keep them
                    answer.latencies[bucket] = answer.latencies.get(bucket, 0) + count
                seat.progress = answer
            case Hello():
                seat.hello = answer
            case Marked():
                seat.marked[answer.number] = answer
            case Topic():
                known = self._accounts.get(answer.account.topic)
                if known is None:
                    self._accounts[answer.account.topic] = answer.account
                else:
                    known.add(answer.account)
            case Summary():
                seat.summary = answer

    def _check(self) -> None:
        if self._failure:
            raise LoadFailed(self._failure)

    async def _news(self, limit: float) -> None:
        """Waits for the next word of a worker, at most `limit` seconds. Raises LoadFailed when one has ended."""
        self._check()
        self._changed.clear()
        try:
            async with asyncio.timeout(limit):
                await self._changed.wait()
        except TimeoutError:
            return
        self._check()

    async def _until(self, condition: Callable[[], bool], limit: float, text: str) -> None:
        deadline = time.monotonic() + limit
        while not condition():
            left = deadline - time.monotonic()
            if left <= 0:
                subscribers = f"{self._seats.sum('connected')} of {self.scenario.subscribers} subscribers"
                publishers = f"{self._seats.sum('publishers')} of {self.scenario.publisher_count()} publishers"
                errors = "".join(f"; {error}" for error in sorted(set(self._seats.errors()))[:3])
                raise LoadFailed(f"{text} within {limit:.0f} s: {subscribers} and {publishers} are connected{errors}")
            await self._news(left)

    async def _sleep_until(self, moment_ns: Callable[[], int]) -> None:
        """The moment may come nearer meanwhile: `cease`."""
        while (left := (moment_ns() - time.monotonic_ns()) / 1e9) > 0:
            self._check()
            await asyncio.sleep(min(left, 0.2))

    # ---- progress ----------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        self._phase = phase
        self._emit()

    async def _tick(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._emit()

    def _emit(self, mark: str = "") -> None:
        if self._on_event is not None:
            self._on_event(self._event(mark))

    def _event(self, mark: str) -> LoadEvent:
        recent = self._seats.take_latencies(self._bounds)
        median, high = recent.quantile(0.5), recent.quantile(0.99)
        scenario = self.scenario
        return LoadEvent(
            phase=self._phase,
            elapsed=max(0.0, (time.monotonic_ns() - self._start_ns) / 1e9) if self._start_ns else 0.0,
            total=scenario.warmup + scenario.duration,
            connected=self._seats.sum("connected"),
            subscribers=scenario.subscribers,
            publishers=self._seats.sum("publishers"),
            oldest=max((seat.progress.oldest for seat in self._seats), default=0.0),
            published=self._seats.sum("published"),
            acknowledged=self._seats.sum("acknowledged"),
            received=self._seats.sum("received"),
            expected=self._seats.sum("expected"),
            reconnects=self._seats.sum("reconnects"),
            late=self._seats.sum("late"),
            connections=self._seats.connections(),
            latency_ms={"median": median * 1e3, "p99": high * 1e3} if median is not None and high is not None else {},
            error=self._obstacle(),
            mark=mark,
        )

    def _obstacle(self) -> str:
        """What keeps clients from connecting; they go on trying."""
        if self._phase != "connecting" or time.monotonic() - self._began < OBSTACLE:
            return ""
        return next(iter(self._seats.errors()), "")
