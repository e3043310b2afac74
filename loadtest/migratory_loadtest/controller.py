"""The parent process of a run: starts the workers, sends them commands, and collects and verifies their run records."""

from __future__ import annotations

import asyncio
import secrets
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence

from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_loadtest.records import TopicRecord
from migratory_loadtest.result import LoadEvent, LoadResult, OnEvent, Phase
from migratory_loadtest.result_builder import RunData, build_result
from migratory_loadtest.scenario import Scenario
from migratory_loadtest.verifier import verify
from migratory_loadtest.worker_messages import (
    AwaitScrape,
    ExportVerification,
    FaultMarked,
    MarkFault,
    ReportResults,
    Scraped,
    StartPublishing,
    StartWorker,
    StopPublishing,
    TopicReport,
    WorkerCommand,
    WorkerMessage,
    WorkerProgress,
    WorkerStarted,
    WorkerSummary,
    decode_message,
    encode_line,
)

MAX_MESSAGE_BYTES = 1024 * 1024 * 1024
"""Bytes of the largest message of a worker that is read. The largest is the record of one topic."""
START_DELAY = 0.5
"""Seconds from the command to the first publication, so that every worker has the command in time."""
DRAIN_GRACE = 1.0
"""Seconds to keep listening after the last expected delivery, so that a duplicate of it is seen."""
CONNECT_ERROR_DELAY = 3.0
"""Seconds of connecting after which events name the error: short failures at the start are normal."""
SCRAPE_TIMEOUT = 20.0
"""Seconds to wait for a scrape of the last counts, besides two scrape intervals. On a busy machine scrapes fail."""
STOP_TIMEOUT = 5.0
"""Seconds for a worker to end by itself before it is killed."""


class LoadFailed(Exception):
    """Raised when the run could not be started or finished. The message says why."""


class WorkerHandle:
    """A worker process as its parent sees it, with the last messages that it sent. `marked` has its answers by the
    number of the mark."""

    def __init__(self, number: int, process: asyncio.subprocess.Process) -> None:
        self.number = number
        self.process = process
        self.progress = WorkerProgress()
        self.started: WorkerStarted | None = None
        self.summary: WorkerSummary | None = None
        self.marked: dict[int, FaultMarked] = {}
        self.is_scraped = False  # its last counts
        self.ended = False

    def send(self, command: WorkerCommand) -> None:
        """Send a command to the worker, without waiting for an answer."""
        assert self.process.stdin is not None
        self.process.stdin.write(encode_line(command))


class WorkerPool(list[WorkerHandle]):
    """The list of all workers of a run."""

    def send(self, command: WorkerCommand) -> None:
        """Send a command to every worker."""
        for worker in self:
            worker.send(command)

    def sum(self, name: str) -> int:
        """Return the sum of the field `name` of all workers' last progress messages."""
        return sum(int(getattr(worker.progress, name)) for worker in self)

    def connections(self) -> dict[str, int]:
        """Return the number of connected subscribers by broker, from the workers' last progress messages."""
        total: Counter[str] = Counter()
        for worker in self:
            total.update(worker.progress.connections)
        return dict(sorted(total.items()))

    def errors(self) -> list[str]:
        """Return the last client error of each worker that had one."""
        return [worker.progress.error for worker in self if worker.progress.error]

    def take_latencies(self, bounds: Sequence[float]) -> Histogram:
        """Remove and return the latencies of the deliveries since the last call. `largest` is the upper bound of the
        highest bucket that is not empty, or the highest bound."""
        recent = Histogram(bounds)
        for worker in self:
            for bucket, count in worker.progress.latencies.items():
                upper = bounds[min(bucket, len(bounds) - 1)]
                recent.counts[bucket] += count
                recent.largest = max(recent.largest, upper)
            worker.progress.latencies = {}
        return recent


class LoadController:
    """One run, from starting its workers to the verified result. `api.Load` is its public interface."""

    def __init__(self, scenario: Scenario, on_event: OnEvent | None) -> None:
        self.scenario = scenario
        self._on_event = on_event
        self._workers = WorkerPool()
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        self._phase: Phase = "connecting"
        self._created_at = time.monotonic()
        self._start_ns = 0
        self._end_ns = 0
        self._marks: list[MarkFault] = []
        self._connections_before: dict[str, int] = {}
        self._bounds = bucket_bounds(scenario.thresholds)
        self._records: dict[str, TopicRecord] = {}
        self._result: LoadResult | None = None
        self._finished_at = 0.0
        self._failure = ""
        self._stopping = False

    @property
    def targets(self) -> list[str]:
        """The host:port of each worker's /metrics, without workers that serve none."""
        return [
            worker.started.metrics for worker in self._workers if worker.started is not None and worker.started.metrics
        ]

    @property
    def pids(self) -> list[int]:
        return [worker.process.pid for worker in self._workers]

    @property
    def records(self) -> list[TopicRecord]:
        return [self._records[topic] for topic in sorted(self._records)]

    # ---- the run -----------------------------------------------------------------------------------------------

    async def start(self) -> None:
        """Start the workers, wait until every client is connected, and schedule the first publication.

        :raises LoadFailed: a worker ends early or does not start within a minute, or not every client is connected in
            time.
        """
        scenario = self.scenario
        run = secrets.token_hex(4)  # publisher ids of two runs must differ, even with the same seed
        workers = scenario.worker_count()
        for number in range(workers):
            process = await asyncio.create_subprocess_exec(
                sys.executable,
                "-P",  # files of the folder in which this program runs must not be imported
                "-m",
                "migratory_loadtest.worker",
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                limit=MAX_MESSAGE_BYTES,
                process_group=0,  # Ctrl-C in the terminal must not reach a worker that is still importing
            )
            worker = WorkerHandle(number, process)
            self._workers.append(worker)
            self._tasks.append(asyncio.create_task(self._read_messages(worker)))
            worker.send(StartWorker(scenario, number, workers, run))
        self._tasks.append(asyncio.create_task(self._emit_every_second()))
        await self._wait_until(
            lambda: all(worker.started is not None for worker in self._workers), 60.0, "the workers did not start"
        )
        timeout = scenario.connect_timeout + scenario.subscribers / scenario.connects_per_second
        await self._wait_until(self._all_connected, timeout, "not every client got its receipt")
        self._connections_before = self._workers.connections()
        self._start_ns = time.monotonic_ns() + round(START_DELAY * 1e9)
        self._end_ns = self._start_ns + round((scenario.warmup + scenario.duration) * 1e9)
        self._workers.send(StartPublishing(self._start_ns))
        self._enter("warmup")

    async def measuring(self) -> None:
        """Wait until the warm-up is over. Raise LoadFailed if a worker has ended early."""
        await self._sleep_until(lambda: self._start_ns + round(self.scenario.warmup * 1e9))
        if self._phase == "warmup":
            self._enter("measuring")

    async def mark(self, name: str, broker: str | None) -> None:
        """Mark the moment before a fault, and wait until all workers have recorded it, as `Load.mark` describes.

        :raises LoadFailed: a worker has ended early, or does not confirm the mark within 30 s.
        """
        mark = MarkFault(len(self._marks), time.monotonic_ns(), name, broker)
        if not self._marks:
            self._connections_before = self._workers.connections()
        self._marks.append(mark)
        self._workers.send(mark)
        await self._wait_until(
            lambda: all(mark.number in worker.marked for worker in self._workers),
            30.0,
            "a worker did not confirm the mark",
        )
        if mark.number == 0:
            connections: Counter[str] = Counter()
            for worker in self._workers:
                connections.update(worker.marked[0].connections)
            self._connections_before = dict(connections)
        self._emit(mark=name)

    def stop_publishing(self) -> None:
        """End the measured time now, and let the workers publish nothing more. Do nothing before the first publication
        is scheduled, or if the run's duration is over."""
        now = time.monotonic_ns()
        if self._start_ns and now < self._end_ns:
            self._end_ns = max(now, self._start_ns)
            self._workers.send(StopPublishing(self._end_ns))

    async def connections(self) -> dict[str, int]:
        """Return the number of connected subscribers by broker, as the workers last reported it. Raise LoadFailed if a
        worker has ended early."""
        self._raise_failure()
        return self._workers.connections()

    async def result(self) -> LoadResult:
        """Wait for the end of the run and of outstanding answers and deliveries, collect the workers' records, verify
        them, and return the result. Later calls return the same result.

        :raises LoadFailed: a worker has ended early, or does not report within 120 s.
        """
        if self._result is not None:
            return self._result
        await self.measuring()
        await self._sleep_until(lambda: self._end_ns)
        self._enter("draining")
        await self._drain()
        self._enter("verifying")
        self._workers.send(ReportResults())
        await self._wait_until(
            lambda: all(worker.summary is not None for worker in self._workers), 120.0, "a worker did not report"
        )
        self._result = await asyncio.to_thread(self._verify)
        if self.scenario.metrics:
            self._workers.send(AwaitScrape())
        self._finished_at = time.monotonic()
        self._enter("done")
        return self._result

    async def linger(self) -> None:
        """Wait until two scrape intervals after the result. Also wait until each worker that was scraped before has
        been scraped with its last counts, at most SCRAPE_TIMEOUT seconds more. Do nothing without metrics or result."""
        if not self.scenario.metrics or self._result is None:
            return
        await asyncio.sleep(max(0.0, self._finished_at + 2 * self.scenario.scrape_interval - time.monotonic()))
        deadline = time.monotonic() + SCRAPE_TIMEOUT
        while not all(worker.is_scraped for worker in self._workers) and time.monotonic() < deadline:
            await self._wait_for_message(0.2)

    async def stop(self) -> None:
        """End all workers. Wait for each in turn, and kill those that do not end within STOP_TIMEOUT seconds of their
        turn."""
        self._stopping = True
        for worker in self._workers:
            if worker.process.stdin is not None:
                worker.process.stdin.close()
        for worker in self._workers:
            try:
                async with asyncio.timeout(STOP_TIMEOUT):
                    await worker.process.wait()
            except TimeoutError:
                worker.process.kill()
                await worker.process.wait()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- steps of the run --------------------------------------------------------------------------------------

    def _all_connected(self) -> bool:
        """Return whether all subscribers and publishers of the scenario are ready, as the workers last reported."""
        return (
            self._workers.sum("connected") == self.scenario.subscribers
            and self._workers.sum("publishers") == self.scenario.publisher_count()
        )

    async def _drain(self) -> None:
        """Wait until every publication is answered, every expected delivery was made, and DRAIN_GRACE has passed since,
        but at most `Scenario.patience` seconds. Raise LoadFailed if a worker has ended early."""
        deadline = time.monotonic() + self.scenario.patience
        quiet_since: float | None = None
        while time.monotonic() < deadline:
            quiet = (
                all(worker.progress.done for worker in self._workers)
                and not self._workers.sum("waiting")
                and self._workers.sum("received") >= self._workers.sum("expected")
            )
            if not quiet:
                quiet_since = None
            elif quiet_since is None:
                quiet_since = time.monotonic()
            elif time.monotonic() - quiet_since >= DRAIN_GRACE:
                return
            await self._wait_for_message(0.2)

    def _verify(self) -> LoadResult:
        """Verify the collected records, send the findings to one worker for its /metrics, and return the result of the
        run."""
        scenario = self.scenario
        verification = verify(self.records, published_elsewhere=scenario.publisher_count() == 0)
        self._workers[0].send(
            ExportVerification(
                dict(verification.lost_by_broker), verification.duplicates, verification.reordered
            )
        )  # fmt: skip
        data = RunData(
            scenario=scenario,
            bounds=self._bounds,
            summaries=[worker.summary for worker in self._workers if worker.summary is not None],
            marks=self._marks,
            before=self._connections_before,
            seconds=(time.monotonic_ns() - self._start_ns) / 1e9,
            measured=(self._end_ns - self._start_ns) / 1e9 - scenario.warmup,
        )
        return build_result(data, verification)

    # ---- messages from workers ---------------------------------------------------------------------------------

    async def _read_messages(self, worker: WorkerHandle) -> None:
        """Handle the messages of a worker until it ends. If it ended early, the waiting methods raise LoadFailed."""
        assert worker.process.stdout is not None
        while line := await worker.process.stdout.readline():
            self._handle(worker, decode_message(line))
            self._changed.set()
        worker.ended = True
        if not self._stopping:
            self._failure = f"load worker {worker.number} ended early (exit status {await worker.process.wait()})"
        self._changed.set()

    def _handle(self, worker: WorkerHandle, message: WorkerMessage) -> None:
        """Record a message of a worker. Records of one topic from several workers are joined."""
        match message:
            case WorkerProgress():
                for bucket, count in worker.progress.latencies.items():  # no event has shown these yet
                    message.latencies[bucket] = message.latencies.get(bucket, 0) + count
                worker.progress = message
            case WorkerStarted():
                worker.started = message
            case FaultMarked():
                worker.marked[message.number] = message
            case TopicReport():
                record = self._records.get(message.record.topic)
                if record is None:
                    self._records[message.record.topic] = message.record
                else:
                    record.add(message.record)
            case WorkerSummary():
                worker.summary = message
            case Scraped():
                worker.is_scraped = True

    def _raise_failure(self) -> None:
        if self._failure:
            raise LoadFailed(self._failure)

    async def _wait_for_message(self, max_wait: float) -> None:
        """Wait for the next message of a worker, at most `max_wait` seconds.

        :raises LoadFailed: a worker has ended early.
        """
        self._raise_failure()
        self._changed.clear()
        try:
            async with asyncio.timeout(max_wait):
                await self._changed.wait()
        except TimeoutError:
            return
        self._raise_failure()

    async def _wait_until(self, condition: Callable[[], bool], max_wait: float, failure: str) -> None:
        """Wait until the condition holds, at most `max_wait` seconds. It is checked after each message of a worker.

        :param failure: the beginning of the error's message, to which the numbers of connected clients and their errors
            are added.
        :raises LoadFailed: the condition does not hold in time, or a worker has ended early.
        """
        deadline = time.monotonic() + max_wait
        while not condition():
            remaining = deadline - time.monotonic()
            if remaining <= 0:
                subscribers = f"{self._workers.sum('connected')} of {self.scenario.subscribers} subscribers"
                publishers = f"{self._workers.sum('publishers')} of {self.scenario.publisher_count()} publishers"
                errors = "".join(f"; {error}" for error in sorted(set(self._workers.errors()))[:3])
                raise LoadFailed(
                    f"{failure} within {max_wait:.0f} s: {subscribers} and {publishers} are connected{errors}"
                )
            await self._wait_for_message(remaining)

    async def _sleep_until(self, moment_ns: Callable[[], int]) -> None:
        """Sleep until a moment in nanoseconds of the monotonic clock. `stop_publishing` may bring the moment forward
        meanwhile. Raise LoadFailed if a worker has ended early."""
        while (remaining := (moment_ns() - time.monotonic_ns()) / 1e9) > 0:
            self._raise_failure()
            await asyncio.sleep(min(remaining, 0.2))

    # ---- events ------------------------------------------------------------------------------------------------

    def _enter(self, phase: Phase) -> None:
        """Begin a phase of the run, and emit an event."""
        self._phase = phase
        self._emit()

    async def _emit_every_second(self) -> None:
        while True:
            await asyncio.sleep(1.0)
            self._emit()

    def _emit(self, mark: str = "") -> None:
        if self._on_event is not None:
            self._on_event(self._event(mark))

    def _event(self, mark: str) -> LoadEvent:
        """Return the state of the run from the workers' last progress messages. Latencies are those since the previous
        event."""
        workers = self._workers
        recent = workers.take_latencies(self._bounds)
        median, p99 = recent.quantile(0.5), recent.quantile(0.99)
        scenario = self.scenario
        return LoadEvent(
            phase=self._phase,
            elapsed=max(0.0, (time.monotonic_ns() - self._start_ns) / 1e9) if self._start_ns else 0.0,
            total=scenario.warmup + scenario.duration,
            connected=workers.sum("connected"),
            subscribers=scenario.subscribers,
            publishers=workers.sum("publishers"),
            oldest=max((worker.progress.oldest for worker in workers), default=0.0),
            published=workers.sum("published"),
            acknowledged=workers.sum("acknowledged"),
            received=workers.sum("received"),
            expected=workers.sum("expected"),
            reconnects=workers.sum("reconnects"),
            late=workers.sum("late"),
            connections=workers.connections(),
            latency_ms={"median": median * 1e3, "p99": p99 * 1e3} if median is not None and p99 is not None else {},
            error=self._connect_error(),
            mark=mark,
        )

    def _connect_error(self) -> str:
        """Return an error of a client that cannot connect yet and retries, or "" if there is none, or connecting has
        just begun or is over."""
        if self._phase != "connecting" or time.monotonic() - self._created_at < CONNECT_ERROR_DELAY:
            return ""
        return next(iter(self._workers.errors()), "")
