"""One load process ("worker") of a run: runs its part of the subscribers and publishers on one event loop.

`controller.py` starts it as `python -m migratory_loadtest.worker`, sends commands to its standard input and reads its
messages from its standard output (`worker_messages.py`). It ends when its standard input ends.
"""

from __future__ import annotations

import asyncio
import gc
import random
import resource
import signal
import sys
import time
from collections import Counter
from collections.abc import Coroutine
from typing import Any

from migratory_client.core.servers import parse_servers
from migratory_client.core.settings import Settings
from migratory_protocol.codec import JSON, MSGPACK

from migratory_loadtest.client import WorkerContext
from migratory_loadtest.histogram import Histogram, bucket_bounds
from migratory_loadtest.meter import Meter, to_histogram_data
from migratory_loadtest.publisher import LoadPublisher
from migratory_loadtest.records import TopicRecord
from migratory_loadtest.subscriber import LoadSubscriber, Transcript
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
    WorkerMessage,
    WorkerProgress,
    WorkerStarted,
    WorkerSummary,
    decode_command,
    encode_line,
)

PROGRESS_INTERVAL = 0.5
"""Seconds between two progress messages."""
MAX_COMMAND_BYTES = 16 * 1024 * 1024
"""Bytes of the largest command that is read. The largest is the scenario with its list of servers."""
CONNECT_BATCH = 20
"""Number of clients that are started in one turn of the event loop, so that sleeping between starts costs little."""
MAX_WAITING = 1_000_000
"""The largest number of unanswered publications of a client, in place of `Settings.max_waiting`: an open loop must not
be throttled by the client."""


class Worker:
    """The clients of one load process, and the execution of the parent's commands. Creating it connects nothing.

    :raises ValueError: a server URL is invalid.
    """

    def __init__(self, start: StartWorker) -> None:
        scenario = start.scenario
        self.start_command = start
        self.scenario = scenario
        self.meter = Meter(bucket_bounds(scenario.thresholds), scenario.settle)
        servers, problems = parse_servers(scenario.servers)
        if problems:
            raise ValueError("; ".join(problems))
        self.context = WorkerContext(
            JSON if scenario.wire == "json" else MSGPACK, servers, Settings(max_waiting=MAX_WAITING), self.meter,
            scenario.source_addresses(),
        )  # fmt: skip
        self.subscribers: list[LoadSubscriber] = []
        self.publishers: list[LoadPublisher] = []
        self.transcripts: dict[int, Transcript] = {}
        self.tasks: set[asyncio.Task[object]] = set()
        self.publishing = False
        self.cpu_before = 0.0  # CPU seconds until the first publication; connecting is not part of the load

    # ---- clients -----------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Start this worker's clients: all publishers at once, then its subscribers at the worker's share of
        `connects_per_second`. Return when all are started, whether or not they are connected. Afterwards exclude the
        objects that exist then from garbage collection."""
        scenario, run = self.scenario, self.start_command.run
        number, workers = self.start_command.number, self.start_command.workers
        names = scenario.topic_names()
        topic_choices = scenario.choices()
        subscriber_counts = Counter(topic_choices)
        pause = CONNECT_BATCH * workers / scenario.connects_per_second
        batch_due = time.monotonic()
        for publisher in range(number, scenario.publisher_count(), workers):
            topics = {topic: names[topic] for topic in range(publisher, scenario.topics, scenario.publisher_count())}
            name = f"{run}-p{publisher}"
            rng = random.Random(f"{scenario.seed}/{name}")
            self.publishers.append(
                LoadPublisher(self.context, name, rng, scenario, publisher, topics, subscriber_counts)
            )
            self.publishers[-1].open()
        for started, subscriber in enumerate(range(number, scenario.subscribers, workers), 1):
            topic = topic_choices[subscriber]
            transcript = self.transcripts.get(topic)
            if transcript is None:
                transcript = self.transcripts[topic] = Transcript(names[topic])
            name = f"{run}-s{subscriber}"
            rng = random.Random(f"{scenario.seed}/{name}")
            client = LoadSubscriber(self.context, name, rng, scenario.token, subscriber, transcript)
            self.subscribers.append(client)
            client.open()
            if started % CONNECT_BATCH == 0:
                batch_due += pause
                await asyncio.sleep(max(0.0, batch_due - time.monotonic()))
        gc.collect()
        gc.freeze()  # the thousands of clients live until the end; no collection needs to visit them again

    # ---- commands ----------------------------------------------------------------------------------------------

    def start_publishing(self, command: StartPublishing) -> None:
        """Set the measured time, and begin to publish on schedule. CPU time counts from now on."""
        measure_from = command.at + round(self.scenario.warmup * 1e9)
        self.meter.measure(measure_from, measure_from + round(self.scenario.duration * 1e9))
        self.publishing = True
        self.cpu_before = self.cpu_seconds()
        for publisher in self.publishers:
            self._publish_due(publisher, command.at)

    def _publish_due(self, publisher: LoadPublisher, start_ns: int) -> None:
        """Send what is due of a publisher, and call this again at its next due time. `start_ns` is the start of the run
        in nanoseconds of the monotonic clock."""
        next_due = publisher.send_due(start_ns)
        if next_due is not None:
            delay = next_due - (time.monotonic_ns() - start_ns) / 1e9
            self.context.loop.call_later(max(0.0, delay), self._publish_due, publisher, start_ns)

    def stop_publishing(self, command: StopPublishing) -> None:
        """End the measured time at the command's time, and drop all publications that are not sent yet."""
        self.meter.stop(command.at)
        for publisher in self.publishers:
            publisher.schedule.stop()

    def mark_fault(self, command: MarkFault) -> None:
        """Record the mark and the clients that are connected to the marked broker, and answer FaultMarked."""
        self.meter.mark(command.at)
        clients = [*self.subscribers, *self.publishers]
        affected = [client.name for client in clients if command.broker is not None and client.broker == command.broker]
        self.context.faults.begin(command, affected)
        self.send(FaultMarked(command.number, len(affected), self.connections()))

    def report_results(self) -> None:
        """Send the records of all topics of this worker, and then the summary. Call it once, at the end of the run."""
        records: dict[str, TopicRecord] = {}
        for publisher in self.publishers:
            for record in publisher.final_records().values():
                records[record.topic] = record
        for transcript in self.transcripts.values():
            record = records.setdefault(transcript.topic, TopicRecord(transcript.topic))
            record.transcripts.append(transcript.deliveries())
        for subscriber in self.subscribers:
            record = records[subscriber.transcript.topic]
            record.subscribers.append(subscriber.record(0))
        for record in records.values():
            self.send(TopicReport(record))
        self.send(self._summary())

    def _summary(self) -> WorkerSummary:
        """Return the worker's measurements over the whole run. Add the publish gaps to /metrics: call it once, at the
        end."""
        meter = self.meter
        acknowledgements = [times for publisher in self.publishers for times in publisher.acknowledgements.values()]
        marks = self.context.faults.summaries(acknowledgements)
        for mark in marks:
            meter.publish_gaps(mark.gaps)
        publish = Histogram(meter.bounds)
        for histogram in meter.publish.values():
            publish.add(histogram)
        reasons: Counter[str] = Counter()
        for (_, reason), count in meter.reconnects.items():
            reasons[reason] += count
        return WorkerSummary(
            latency=meter.by_window(),
            publish=to_histogram_data(publish),
            resumes=meter.resumes,
            reconnects=dict(reasons),
            changes=Counter(client.changes for client in (*self.subscribers, *self.publishers)),
            connections=self.connections(),
            measured_bytes=meter.measured_bytes,
            repeated=sum(client.core.subscriptions.dropped for client in self.subscribers),
            scheduled=sum(publisher.schedule.scheduled for publisher in self.publishers),
            published=sum(publisher.schedule.sent for publisher in self.publishers),
            late=sum(publisher.schedule.late for publisher in self.publishers),
            latest=max((publisher.schedule.max_delay for publisher in self.publishers), default=0.0),
            errors=list(self.context.errors),
            marks=marks,
            cpu=self.cpu_seconds() - self.cpu_before,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def export_verification(self, command: ExportVerification) -> None:
        """Set the verifier's counts, which /metrics shows from now on."""
        self.meter.lost.update(command.lost)
        self.meter.duplicates = command.duplicates
        self.meter.reordered = command.reordered

    @staticmethod
    def cpu_seconds() -> float:
        """Return the CPU seconds that this process has used so far."""
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    # ---- messages ----------------------------------------------------------------------------------------------

    def connections(self) -> dict[str, int]:
        """Return the number of this worker's connected subscribers by broker."""
        return dict(Counter(client.broker for client in self.subscribers if client.broker))

    def oldest_pending(self) -> float:
        """Return the age of the oldest unanswered publication in seconds, 0 if there is none."""
        # `pending` is in the order of sending, so the first of each publisher is its oldest.
        oldest = [next(iter(publisher.pending.values())).sent_ns for publisher in self.publishers if publisher.pending]
        return (time.monotonic_ns() - min(oldest)) / 1e9 if oldest else 0.0

    def progress(self) -> WorkerProgress:
        """Return the current state and totals for the parent. The latencies are those since the last call, which resets
        them."""
        meter = self.meter
        return WorkerProgress(
            connected=sum(client.ready for client in self.subscribers),
            publishers=sum(client.ready for client in self.publishers),
            published=sum(publisher.schedule.sent for publisher in self.publishers),
            acknowledged=sum(
                len(record.acknowledged) for publisher in self.publishers for record in publisher.records.values()
            ),
            waiting=sum(len(publisher.pending) for publisher in self.publishers),
            oldest=self.oldest_pending(),
            done=self.publishing and all(publisher.schedule.next_due() is None for publisher in self.publishers),
            received=meter.received.total(),
            expected=meter.expected,
            reconnects=meter.reconnects.total(),
            late=sum(publisher.schedule.late for publisher in self.publishers),
            connections=self.connections(),
            latencies=meter.take_recent(),
            error=self.context.error,
        )

    def send(self, message: WorkerMessage) -> None:
        """Send a message to the parent process, on the standard output."""
        sys.stdout.buffer.write(encode_line(message))
        sys.stdout.buffer.flush()

    async def report_progress(self) -> None:
        """Send a progress message every `PROGRESS_INTERVAL`, until cancelled."""
        while True:
            await asyncio.sleep(PROGRESS_INTERVAL)
            self.send(self.progress())

    def start_task(self, work: Coroutine[Any, Any, object]) -> None:
        """Start a task on the event loop. If the task fails, the process ends with an error."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._task_done)

    def _task_done(self, task: asyncio.Task[object]) -> None:
        """Forget a task that has ended. If it failed, end the process with an error."""
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise SystemExit(f"load worker {self.start_command.number}: {task.exception()!r}")


async def _open_commands() -> asyncio.StreamReader:
    """Return a reader of standard input."""
    reader = asyncio.StreamReader(limit=MAX_COMMAND_BYTES)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main() -> None:
    """Execute commands until standard input ends. An error ends the process with a line on standard error. The first
    command must be StartWorker."""
    reader = await _open_commands()
    first_line = await reader.readline()
    if not first_line:
        return
    start = decode_command(first_line)
    if not isinstance(start, StartWorker):
        raise SystemExit(f"load worker: the first command is {type(start).__name__}; it must be StartWorker")
    worker = Worker(start)
    exporter = None
    if start.scenario.metrics:
        from migratory_loadtest.exporter import LoadExporter

        exporter = LoadExporter(worker.meter, start.scenario.cluster, start.scenario.metrics_address(start.number))
    try:
        worker.send(WorkerStarted(await exporter.start() if exporter else ""))
    except OSError as error:
        raise SystemExit(f"load worker: cannot serve /metrics: {error}") from error
    worker.start_task(worker.connect())
    worker.start_task(worker.report_progress())
    while line := await reader.readline():
        match decode_command(line):
            case StartPublishing() as command:
                worker.start_publishing(command)
            case MarkFault() as command:
                worker.mark_fault(command)
            case StopPublishing() as command:
                worker.stop_publishing(command)
            case ReportResults():
                worker.report_results()
            case ExportVerification() as command:
                worker.export_verification(command)
            case AwaitScrape() if exporter is not None:
                exporter.notify_of_scrape(lambda: worker.send(Scraped()))
            case AwaitScrape():
                raise SystemExit("load worker: AwaitScrape came, and there is no /metrics")
            case StartWorker():
                raise SystemExit("load worker: StartWorker came a second time")


def run() -> None:
    """Run `main` on uvloop if it is installed, else on asyncio's own event loop. Ignore Ctrl-C."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent; a worker ends with the parent's pipe
    try:
        import uvloop
    except ImportError:  # uvloop is only faster
        asyncio.run(main())
    else:
        uvloop.run(main())


if __name__ == "__main__":
    run()
