"""One process of a run: its share of the subscribers and publishers on one event loop. Started by `fleet.py`, which it
obeys over stdin and answers over stdout (`control.py`); it ends when stdin does.

Run as `python -m migratory_loadtest.worker`.
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

from migratory_loadtest.account import TopicAccount
from migratory_loadtest.client import World
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
    line,
    read_order,
)
from migratory_loadtest.histogram import Histogram, bounds
from migratory_loadtest.meter import Meter, buckets
from migratory_loadtest.publisher import Publisher
from migratory_loadtest.subscriber import Subscriber, Transcript

PROGRESS = 0.5  # seconds
LONGEST_ORDER = 16 * 1024 * 1024  # bytes
BATCH = 20  # clients that are started in one turn of the loop


class Worker:
    """`answer` writes one message to the parent."""

    def __init__(self, begin: Begin) -> None:
        scenario = begin.scenario
        self.begin = begin
        self.scenario = scenario
        self.meter = Meter(bounds(scenario.thresholds), scenario.settle)
        servers, problems = parse_servers(scenario.servers)
        if problems:
            raise ValueError("; ".join(problems))
        self.world = World(
            JSON if scenario.wire == "json" else MSGPACK, servers, Settings(max_waiting=1_000_000), self.meter,
            scenario.source_addresses(),
        )  # fmt: skip
        self.subscribers: list[Subscriber] = []
        self.publishers: list[Publisher] = []
        self.transcripts: dict[int, Transcript] = {}
        self.tasks: set[asyncio.Task[object]] = set()
        self.going = False
        self.began_cpu = 0.0  # CPU seconds until the first publication: connecting is not the load

    # ---- clients -----------------------------------------------------------------------------------------------

    async def connect(self) -> None:
        """Starts this worker's clients, no faster than its share of `connects_per_second`."""
        scenario, number, workers = self.scenario, self.begin.number, self.begin.workers
        names = scenario.topic_names()
        choices = scenario.choices()
        expecting = Counter(choices)
        pause = BATCH * workers / scenario.connects_per_second
        due = time.monotonic()
        for publisher in range(number, scenario.publisher_count(), workers):
            topics = {topic: names[topic] for topic in range(publisher, scenario.topics, scenario.publisher_count())}
            name = f"{self.begin.run}-p{publisher}"
            chance = random.Random(f"{scenario.seed}/{name}")
            self.publishers.append(Publisher(self.world, name, chance, scenario, publisher, topics, expecting))
            self.publishers[-1].open()
        for started, subscriber in enumerate(range(number, scenario.subscribers, workers), 1):
            topic = choices[subscriber]
            transcript = self.transcripts.get(topic)
            if transcript is None:
                transcript = self.transcripts[topic] = Transcript(names[topic])
            name = f"{self.begin.run}-s{subscriber}"
            chance = random.Random(f"{scenario.seed}/{name}")
            client = Subscriber(self.world, name, chance, scenario.token, subscriber, transcript)
            self.subscribers.append(client)
            client.open()
            if started % BATCH == 0:
                due += pause
                await asyncio.sleep(max(0.0, due - time.monotonic()))
        gc.collect()
        gc.freeze()  # thousands of long-lived clients: no collection needs to look at them again

    # ---- orders ------------------------------------------------------------------------------------------------

    def go(self, order: Go) -> None:
        start = order.at + round(self.scenario.warmup * 1e9)
        self.meter.measure(start, start + round(self.scenario.duration * 1e9))
        self.going = True
        self.began_cpu = self.cpu()
        for publisher in self.publishers:
            self._publish(publisher, order.at)

    def _publish(self, publisher: Publisher, start_ns: int) -> None:
        due = publisher.send_due(start_ns)
        if due is not None:
            wait = due - (time.monotonic_ns() - start_ns) / 1e9
            self.world.loop.call_later(max(0.0, wait), self._publish, publisher, start_ns)

    def cease(self, order: Cease) -> None:
        self.meter.cease(order.at)
        for publisher in self.publishers:
            publisher.schedule.cease()

    def mark(self, order: Mark) -> None:
        self.meter.mark(order.at)
        clients = [*self.subscribers, *self.publishers]
        on = [client.name for client in clients if order.broker is not None and client.broker == order.broker]
        self.world.faults.begin(order, on)
        self.answer(Marked(order.number, len(on), self.connections()))

    def report(self) -> None:
        accounts: dict[str, TopicAccount] = {}
        for publisher in self.publishers:
            for account in publisher.account().values():
                accounts[account.topic] = account
        for transcript in self.transcripts.values():
            account = accounts.setdefault(transcript.topic, TopicAccount(transcript.topic))
            account.transcripts.append(transcript.entries())
        for subscriber in self.subscribers:
            account = accounts[subscriber.transcript.topic]
            account.subscribers.append(subscriber.account(0))
        for account in accounts.values():
            self.answer(Topic(account))
        self.answer(self._summary())

    def _summary(self) -> Summary:
        meter = self.meter
        acknowledgements = [times for publisher in self.publishers for times in publisher.acknowledgements.values()]
        marks = self.world.faults.summaries(acknowledgements)
        for mark in marks:
            meter.publish_gaps(mark.gaps)
        publish = Histogram(meter.bounds)
        for histogram in meter.publish.values():
            publish.add(histogram)
        reasons: Counter[str] = Counter()
        for (_, reason), count in meter.reconnects.items():
            reasons[reason] += count
        return Summary(
            latency=meter.by_window(),
            publish=buckets(publish),
            resumes=meter.resumes,
            reconnects=dict(reasons),
            changes=Counter(client.changes for client in (*self.subscribers, *self.publishers)),
            connections=self.connections(),
            measured_bytes=meter.measured_bytes,
            repeated=sum(client.core.subscriptions.dropped for client in self.subscribers),
            scheduled=sum(publisher.schedule.scheduled for publisher in self.publishers),
            published=sum(publisher.schedule.sent for publisher in self.publishers),
            late=sum(publisher.schedule.late for publisher in self.publishers),
            latest=max((publisher.schedule.latest for publisher in self.publishers), default=0.0),
            errors=list(self.world.errors),
            marks=marks,
            cpu=self.cpu() - self.began_cpu,
            peak_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        )

    def verified(self, order: Verified) -> None:
        self.meter.lost.update(order.lost)
        self.meter.duplicates = order.duplicates
        self.meter.reordered = order.reordered

    @staticmethod
    def cpu() -> float:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return usage.ru_utime + usage.ru_stime

    # ---- answers -----------------------------------------------------------------------------------------------

    def connections(self) -> dict[str, int]:
        return dict(Counter(client.broker for client in self.subscribers if client.broker))

    def oldest(self) -> float:
        """Tickets stand in the order in which they were sent."""
        first = [next(iter(publisher.waiting.values())).sent_ns for publisher in self.publishers if publisher.waiting]
        return (time.monotonic_ns() - min(first)) / 1e9 if first else 0.0

    def progress(self) -> Progress:
        meter = self.meter
        return Progress(
            connected=sum(client.ready for client in self.subscribers),
            publishers=sum(client.ready for client in self.publishers),
            published=sum(publisher.schedule.sent for publisher in self.publishers),
            acknowledged=sum(
                len(outcome.acknowledged) for publisher in self.publishers for outcome in publisher.outcome.values()
            ),
            waiting=sum(len(publisher.waiting) for publisher in self.publishers),
            oldest=self.oldest(),
            done=self.going and all(publisher.schedule.peek() is None for publisher in self.publishers),
            received=meter.received.total(),
            expected=meter.expected,
            reconnects=meter.reconnects.total(),
            late=sum(publisher.schedule.late for publisher in self.publishers),
            connections=self.connections(),
            latencies=meter.take_recent(),
            error=self.world.error,
        )

    def answer(self, message: FromWorker) -> None:
        sys.stdout.buffer.write(line(message))
        sys.stdout.buffer.flush()

    async def report_progress(self) -> None:
        while True:
            await asyncio.sleep(PROGRESS)
            self.answer(self.progress())

    def start(self, work: Coroutine[Any, Any, object]) -> None:
        """A task whose failure ends the process."""
        task = asyncio.get_running_loop().create_task(work)
        self.tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[object]) -> None:
        self.tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            raise SystemExit(f"load worker {self.begin.number}: {task.exception()!r}")


async def orders() -> asyncio.StreamReader:
    reader = asyncio.StreamReader(limit=LONGEST_ORDER)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    return reader


async def main() -> None:
    reader = await orders()
    first = await reader.readline()
    if not first:
        return
    begin = read_order(first)
    if not isinstance(begin, Begin):
        raise SystemExit("load worker: the first order must be Begin")
    worker = Worker(begin)
    exporter = None
    if begin.scenario.metrics:
        from migratory_loadtest.exporter import Exporter

        exporter = Exporter(worker.meter, begin.scenario.cluster, begin.scenario.metrics_address(begin.number))
    try:
        worker.answer(Hello(await exporter.start() if exporter else ""))
    except OSError as error:
        raise SystemExit(f"load worker: /metrics can't be served: {error}") from error
    worker.start(worker.connect())
    worker.start(worker.report_progress())
    while order := await reader.readline():
        match read_order(order):
            case Go() as go:
                worker.go(go)
            case Mark() as mark:
                worker.mark(mark)
            case Cease() as cease:
                worker.cease(cease)
            case Report():
                worker.report()
            case Verified() as verified:
                worker.verified(verified)
            case Begin():
                raise SystemExit("load worker: a second Begin")


def run() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is the parent's: the workers end with its pipe
    try:
        import uvloop
    except ImportError:  # an accelerator, not a need
        asyncio.run(main())
    else:
        uvloop.run(main())


if __name__ == "__main__":
    run()
