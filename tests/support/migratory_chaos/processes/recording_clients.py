"""The clients of a run: `python -m migratory_chaos.processes.recording_clients OPTIONS.json publishers|subscribers`.

They use the product's Python client as an application would, and write histories (`history.py`). Each second they print
a `Sample` as a JSON line; the last line is a `Final`. They read commands from the standard input, one a line:
    burst        publishers submit many publications at once
    stop         publishers stop submitting, and end when all publications are answered
    until JSON   subscribers end when they have received these positions of all topics
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from functools import partial
from pathlib import Path

import migratory_client
import msgspec
import uvloop
from migratory_client import Client, GapError, Message, PublishError, Receipt, Settings
from migratory_client.errors import Closed
from msgspec import Struct, field

from migratory_chaos.processes.history import Position, PublisherFile, SubscriberFile, digest

SUBMIT_INTERVAL = 0.02
"""Seconds between two rounds of submissions: a few publications each at the usual rate."""
CATCH_UP = 3
"""A delayed publisher catches up at this multiple of its rate at most, so that a pause does not become a burst."""
BURST_SIZE = 400
"""Publications of all publishers together on the command `burst`."""
MAX_UNANSWERED = 300
"""Unanswered publications of one publisher and topic. At the limit its other topics get more, so that the rate holds
while a coordinator is away."""
SETTLE_SECONDS = 2.0
"""How long subscribers listen after the last publication, for deliveries that are repeated."""
SETTINGS = Settings(max_waiting=20 * MAX_UNANSWERED, backoff_cap=4.0, blacklist=5.0)


class LoadOptions(Struct):
    """The options of both processes. `rate`: publications a second of all publishers together. `churn`: seconds after
    which every third client is closed, reopened and resumes on any broker; 0: never. `patience`: seconds to end."""

    servers: list[str]
    folder: str
    topics: list[str]
    publishers: int = 5
    subscribers: int = 6
    rate: float = 1100.0
    payload: int = 64
    patience: float = 90.0
    churn: float = 20.0
    seed: int = 1


class Sample(Struct):
    """Totals so far. `oldest` is the age in seconds of the oldest unanswered publication."""

    submitted: int = 0
    acknowledged: int = 0
    failed: int = 0
    waiting: int = 0
    oldest: float = 0.0
    delivered: int = 0
    connected: int = 0
    clients: int = 0
    bursts: int = 0
    reconnects: int = 0


class Final(Struct):
    """The last totals. `last`: the highest acknowledged position of each topic. `behind`: subscribers that are not
    there yet."""

    final: Sample
    last: dict[str, Position] = field(default_factory=dict)
    behind: list[str] = field(default_factory=list)


def milliseconds() -> int:
    return int(time.monotonic() * 1000)


class RecordingPublisher:
    """A publisher that submits to its topics in turn without waiting for acknowledgements."""

    def __init__(self, options: LoadOptions, number: int) -> None:
        self.name = name = f"publisher-{number}"
        topics = options.topics
        share = max(1, 2 * len(topics) // options.publishers)  # so that two publishers meet in each topic
        self.topics = [topics[(number * share // 2 + step) % len(topics)] for step in range(min(share, len(topics)))]
        self.files = {topic: PublisherFile(Path(options.folder), topic, name) for topic in self.topics}
        self.numbers = dict.fromkeys(self.topics, 0)
        self.rate = options.rate / options.publishers
        self.payload = options.payload
        self.random = random.Random(f"{options.seed} {number}")
        self.client = Client(options.servers, name=name, settings=SETTINGS, open_timeout=None)
        self.churn = options.churn if number % 3 == 0 else 0.0
        self.waiting: dict[str, dict[int, int]] = {topic: {} for topic in self.topics}
        self.last: dict[str, Position] = {}
        self.sample = Sample()
        self.ended = asyncio.Event()
        self.open = True

    async def run(self) -> None:
        began = previous = time.monotonic()
        total = 0
        turn = 0
        change = began + self.churn
        while not self.ended.is_set():
            now = time.monotonic()
            if self.churn and now >= change:
                change = now + self.churn
                # Unanswered publications are given up: whether they were published is unknown.
                self.open = False
                await self.client.close()
                await self.client.open()
                self.open = True
            due = min(
                int((now - began) * self.rate) - total,
                int((now - previous) * self.rate * CATCH_UP) + 1,
            )
            previous = now
            for _ in range(due):
                for topic in self.topics[turn:] + self.topics[:turn]:
                    turn = (turn + 1) % len(self.topics)
                    if len(self.waiting[topic]) < MAX_UNANSWERED:
                        self.submit(topic)
                        total += 1
                        break
            await asyncio.sleep(SUBMIT_INTERVAL)

    def burst(self, count: int) -> None:
        """Submit `count` publications at once, unless the client is closed at the moment."""
        if self.open and not self.ended.is_set():
            for number in range(count):
                self.submit(self.topics[number % len(self.topics)])

    def submit(self, topic: str) -> None:
        number = self.numbers[topic] = self.numbers[topic] + 1
        head = f"{self.name}/{topic}/{number}/".encode()
        payload = head + self.random.randbytes(max(8, self.payload - len(head)))
        now = milliseconds()
        self.files[topic].submitted(number, digest(payload), now)
        self.waiting[topic][number] = now
        self.sample.submitted += 1
        future = self.client.submit(topic, payload)
        future.add_done_callback(partial(self.answered, topic, number))

    def answered(self, topic: str, number: int, future: asyncio.Future[migratory_client.Position | None]) -> None:
        del self.waiting[topic][number]
        try:
            acknowledged = future.result()
        except (PublishError, Closed) as error:
            self.sample.failed += 1
            self.files[topic].failed(number, error.code, milliseconds())
            return
        self.sample.acknowledged += 1
        position = None if acknowledged is None else (acknowledged.epoch, acknowledged.sequence)
        self.files[topic].acknowledged(number, position, milliseconds())
        if position is not None:
            self.last[topic] = max(self.last.get(topic, position), position)


class RecordingSubscriber:
    """A subscriber of half the topics."""

    def __init__(self, options: LoadOptions, number: int) -> None:
        self.name = f"subscriber-{number}"
        self.topics = options.topics[number % 2 :: 2] if options.subscribers > 1 else options.topics
        self.files = {topic: SubscriberFile(Path(options.folder), topic, self.name) for topic in self.topics}
        self.churn = options.churn if number % 3 == 0 else 0.0
        self.client = Client(
            options.servers, name=self.name, settings=SETTINGS, open_timeout=None, on_receipt=self.receipt
        )
        self.started: set[str] = set()
        self.reached: dict[str, Position] = {}
        self.sample = Sample()

    async def run(self) -> None:
        """Receive until cancelled. A client that was closed by `churn` is opened again and resumes its stream."""
        while True:
            changing = asyncio.create_task(self.change()) if self.churn else None
            stream = self.client.subscribe(*self.topics, on_gap=self.gap)
            try:
                async for message in stream:
                    self.deliver(message)
            finally:
                if changing is not None:
                    changing.cancel()
            if not self.churn:
                raise RuntimeError(f"{self.name}: the stream ended")
            await self.client.open()

    async def change(self) -> None:
        await asyncio.sleep(self.churn)
        await self.client.close()

    def receipt(self, receipt: Receipt) -> None:
        """Record the start of a stream: the first receipt of a topic precedes its messages."""
        position = receipt.after or receipt.position
        if receipt.topic not in self.started and position is not None:
            self.started.add(receipt.topic)
            self.files[receipt.topic].began((position.epoch, position.sequence))

    def gap(self, receipt: Receipt) -> None:
        position = receipt.after or receipt.position
        if position is None:
            raise GapError(receipt)
        after = (position.epoch, position.sequence)
        self.files[receipt.topic].gap(receipt.kind, after, receipt.first, receipt.last)
        self.reached[receipt.topic] = after

    def deliver(self, message: Message) -> None:
        position = (message.position.epoch, message.position.sequence)
        self.files[message.topic].delivered(position, digest(message.payload))
        self.reached[message.topic] = position
        self.sample.delivered += 1

    def behind(self, last: dict[str, Position]) -> list[str]:
        return [
            f"{self.name}: {topic} at {self.reached.get(topic)}, not at {last[topic]}"
            for topic in self.topics
            if topic in last and self.reached.get(topic, (0, 0)) < last[topic]
        ]


def print_line(line: Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


def add_up(samples: list[Sample], clients: list[Client]) -> Sample:
    found = Sample(clients=len(clients), connected=sum(client.connected for client in clients))
    found.reconnects = sum(client.reconnects for client in clients)
    for sample in samples:
        found.submitted += sample.submitted
        found.acknowledged += sample.acknowledged
        found.failed += sample.failed
        found.delivered += sample.delivered
    return found


async def publish(options: LoadOptions, commands: asyncio.StreamReader) -> None:
    bursts = 0
    publishers = [RecordingPublisher(options, number) for number in range(options.publishers)]
    clients = [publisher.client for publisher in publishers]
    await asyncio.gather(*(client.open() for client in clients))

    def sample() -> Sample:
        found = add_up([publisher.sample for publisher in publishers], clients)
        waiting = [topic for publisher in publishers for topic in publisher.waiting.values()]
        found.waiting = sum(map(len, waiting))
        found.bursts = bursts
        now = milliseconds()
        found.oldest = (now - min(next(iter(topic.values()), now) for topic in waiting)) / 1000
        return found

    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(publisher.run()) for publisher in publishers]
        command = tasks.create_task(commands.readline())
        while True:
            print_line(sample())
            await asyncio.wait([command], timeout=1.0)
            if command.done():
                if command.result() != b"burst\n":
                    break
                for publisher in publishers:
                    publisher.burst(BURST_SIZE // len(publishers))
                bursts += 1  # counted before the clients have written anything
                command = tasks.create_task(commands.readline())
        for publisher in publishers:
            publisher.ended.set()
        await asyncio.wait(running)
    deadline = time.monotonic() + options.patience
    while sample().waiting and time.monotonic() < deadline:
        print_line(sample())
        await asyncio.sleep(0.2)
    for client in clients:
        await client.close(flush=0.0)
    final = Final(sample())
    for publisher in publishers:
        for topic, position in publisher.last.items():
            final.last[topic] = max(final.last.get(topic, position), position)
        for file in publisher.files.values():
            file.close()
    print_line(final)


async def subscribe(options: LoadOptions, commands: asyncio.StreamReader) -> None:
    subscribers = [RecordingSubscriber(options, number) for number in range(options.subscribers)]
    clients = [subscriber.client for subscriber in subscribers]
    await asyncio.gather(*(client.open() for client in clients))

    def sample() -> Sample:
        return add_up([subscriber.sample for subscriber in subscribers], clients)

    running = [asyncio.create_task(subscriber.run()) for subscriber in subscribers]
    stop = asyncio.create_task(commands.readline())
    while not stop.done():
        found = sample()
        if any(subscriber.started != set(subscriber.topics) for subscriber in subscribers):
            found.connected = 0  # until every topic has its first receipt: earlier publications are not owed
        print_line(found)
        done, _ = await asyncio.wait([stop, *running], timeout=1.0, return_when=asyncio.FIRST_COMPLETED)
        for task in done - {stop}:
            task.result()  # a subscriber only ends with an error
            raise RuntimeError("a subscriber ended")
    last = msgspec.json.decode(stop.result().removeprefix(b"until ") or b"{}", type=dict[str, Position])
    deadline = time.monotonic() + options.patience
    while time.monotonic() < deadline and any(subscriber.behind(last) for subscriber in subscribers):
        print_line(sample())
        await asyncio.sleep(0.2)
    await asyncio.sleep(SETTLE_SECONDS)
    behind = [line for subscriber in subscribers for line in subscriber.behind(last)]
    final = Final(sample(), behind=behind)
    for task in running:
        task.cancel()
    await asyncio.wait(running)
    for subscriber in subscribers:
        await subscriber.client.close(flush=0.0)
        for file in subscriber.files.values():
            file.close()
    print_line(final)


async def main(options: LoadOptions, role: str) -> None:
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    await (publish if role == "publishers" else subscribe)(options, commands)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=LoadOptions), sys.argv[2]))
