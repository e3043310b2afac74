"""The clients of a run: `python -m migratory_chaos.processes.recording_clients OPTIONS.json`.

They use the product's Python client as an application would, and write histories (`history.py`). When all are
connected, the process reads commands from the standard input, one a line after a number, and answers each with that
number and the totals (`Sample`) as a JSON line:
    sample   nothing else
    burst    publishers submit many publications at once
    stop     publishers stop, wait for answers, and subscribers for the last deliveries; the process ends
"""

from __future__ import annotations

import asyncio
import random
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

import migratory_client
import msgspec
import uvloop
from migratory_client import Client, GapError, Message, PublishError, Receipt, Settings
from migratory_client.errors import Closed
from msgspec import Struct, field

from migratory_chaos.engine import poll_until
from migratory_chaos.processes.history import (
    Acknowledged,
    Began,
    Delivered,
    Failed,
    Gap,
    HistoryFile,
    Position,
    Submitted,
    digest,
)

SUBMIT_INTERVAL = 0.02
"""Seconds between two rounds of submissions: a few publications each at the usual rate."""
CATCH_UP = 3
"""The multiple of its rate at which a delayed publisher catches up, at most, so that a pause does not become a
burst."""
BURST_SIZE = 400
"""Publications of all publishers together on the command `burst`."""
MAX_UNANSWERED = 300
"""Unanswered publications of one publisher and topic. At the limit the publisher submits to its other topics
instead, so that the rate holds while a coordinator is away."""
PAYLOAD = 64
"""Bytes of a publication: a head that makes it unique, and random ones."""
CHURN_SECONDS = 20.0
"""Seconds after which every third client is closed, opened again, and resumes on any broker."""
PATIENCE_SECONDS = 60.0
"""Seconds for the answers to the last publications, and then for the last deliveries, at most."""
SETTLE_SECONDS = 2.0
"""Seconds for which subscribers listen after the last publication, for deliveries that are repeated."""
SETTINGS = Settings(max_waiting=20 * MAX_UNANSWERED, backoff_cap=4.0, blacklist=5.0)
_POLL_SECONDS = 0.1


class LoadOptions(Struct):
    """The options of the clients. `rate`: publications a second of all publishers together."""

    servers: list[str]
    folder: str
    topics: list[str]
    publishers: int
    subscribers: int
    rate: float
    seed: int


class Sample(Struct):
    """Totals so far. `request` is the number of the command, `connected` the number of clients with a connection,
    `oldest` the age in seconds of the oldest unanswered publication.

    At the end, `seconds` is the time until all were answered, and `behind` are the subscribers that lack deliveries.
    """

    request: int = 0
    submitted: int = 0
    acknowledged: int = 0
    delivered: int = 0
    unanswered: int = 0
    oldest: float = 0.0
    clients: int = 0
    connected: int = 0
    reconnects: int = 0
    seconds: float = 0.0
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
        self.files = {topic: HistoryFile(Path(options.folder), topic, f"p-{name}") for topic in self.topics}
        self.numbers = dict.fromkeys(self.topics, 0)
        self.rate = options.rate / options.publishers
        self.random = random.Random(f"{options.seed} {number}")
        self.client = Client(options.servers, name=name, settings=SETTINGS, open_timeout=None)
        self.churns = number % 3 == 0
        self.unanswered: dict[str, dict[int, int]] = {topic: {} for topic in self.topics}
        self.last: dict[str, Position] = {}
        self.acknowledged = 0
        self.ended = False
        self.open = True

    async def run(self) -> None:
        began = previous = time.monotonic()
        total = 0
        turn = 0
        change = began + CHURN_SECONDS
        while not self.ended:
            now = time.monotonic()
            if self.churns and now >= change:
                change = now + CHURN_SECONDS
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
                    if len(self.unanswered[topic]) < MAX_UNANSWERED:
                        self.submit(topic)
                        total += 1
                        break
            await asyncio.sleep(SUBMIT_INTERVAL)

    def burst(self, count: int) -> None:
        """Submit `count` publications at once, spread over the topics. Do nothing while the client is closed, or at
        the end."""
        if self.open and not self.ended:
            for number in range(count):
                self.submit(self.topics[number % len(self.topics)])

    def submit(self, topic: str) -> None:
        number = self.numbers[topic] = self.numbers[topic] + 1
        head = f"{self.name}/{topic}/{number}/".encode()
        payload = head + self.random.randbytes(max(8, PAYLOAD - len(head)))
        now = milliseconds()
        self.files[topic].add(Submitted(number, digest(payload), now))
        self.unanswered[topic][number] = now
        future = self.client.submit(topic, payload)
        future.add_done_callback(partial(self.answered, topic, number))

    def answered(self, topic: str, number: int, future: asyncio.Future[migratory_client.Position | None]) -> None:
        del self.unanswered[topic][number]
        try:
            acknowledged = future.result()
        except (PublishError, Closed) as error:
            self.files[topic].add(Failed(number, error.code, milliseconds()))
            return
        self.acknowledged += 1
        position = None if acknowledged is None else (acknowledged.epoch, acknowledged.sequence)
        self.files[topic].add(Acknowledged(number, position, milliseconds()))
        if position is not None:
            self.last[topic] = max(self.last.get(topic, position), position)


class RecordingSubscriber:
    """A subscriber of half the topics, or of all if it is the only one."""

    def __init__(self, options: LoadOptions, number: int) -> None:
        self.name = f"subscriber-{number}"
        self.topics = options.topics[number % 2 :: 2] if options.subscribers > 1 else options.topics
        self.files = {topic: HistoryFile(Path(options.folder), topic, f"s-{self.name}") for topic in self.topics}
        self.churns = number % 3 == 0
        self.client = Client(
            options.servers, name=self.name, settings=SETTINGS, open_timeout=None, on_receipt=self.receipt
        )
        self.started: set[str] = set()
        self.reached: dict[str, Position] = {}
        self.delivered = 0

    async def run(self) -> None:
        """Receive until cancelled. A client that `change` closes from time to time is opened again and resumes its
        stream. Raise RuntimeError if the stream of any other client ends."""
        while True:
            changing = asyncio.create_task(self.change()) if self.churns else None
            stream = self.client.subscribe(*self.topics, on_gap=self.gap)
            try:
                async for message in stream:
                    self.deliver(message)
            finally:
                if changing is not None:
                    changing.cancel()
            if not self.churns:
                raise RuntimeError(f"{self.name}: the stream ended")
            await self.client.open()

    async def change(self) -> None:
        await asyncio.sleep(CHURN_SECONDS)
        await self.client.close()

    def receipt(self, receipt: Receipt) -> None:
        """Record the position at which a topic's stream begins, from the first receipt of the topic."""
        position = receipt.after or receipt.position
        if receipt.topic not in self.started and position is not None:
            self.started.add(receipt.topic)
            self.files[receipt.topic].add(Began((position.epoch, position.sequence)))

    def gap(self, receipt: Receipt) -> None:
        position = receipt.after or receipt.position
        if position is None:
            raise GapError(receipt)
        after = (position.epoch, position.sequence)
        self.files[receipt.topic].add(Gap(receipt.kind, after, receipt.first, receipt.last))
        self.reached[receipt.topic] = after

    def deliver(self, message: Message) -> None:
        position = (message.position.epoch, message.position.sequence)
        self.files[message.topic].add(Delivered(position, digest(message.payload)))
        self.reached[message.topic] = position
        self.delivered += 1

    def behind(self, last: dict[str, Position]) -> list[str]:
        return [
            f"{self.name}: {topic} at {self.reached.get(topic)}, not at {last[topic]}"
            for topic in self.topics
            if topic in last and self.reached.get(topic, (0, 0)) < last[topic]
        ]


class RecordingClients:
    """All clients of a run."""

    def __init__(self, options: LoadOptions) -> None:
        self.publishers = [RecordingPublisher(options, number) for number in range(options.publishers)]
        self.subscribers = [RecordingSubscriber(options, number) for number in range(options.subscribers)]
        self.clients = [publisher.client for publisher in self.publishers]
        self.clients += [subscriber.client for subscriber in self.subscribers]
        self.files = [file for publisher in self.publishers for file in publisher.files.values()]
        self.files += [file for subscriber in self.subscribers for file in subscriber.files.values()]

    async def run(self, commands: asyncio.StreamReader) -> None:
        """Connect, wait until all subscriptions began, publish, and carry out commands until `stop`. A subscriber
        that ends raises its error."""
        async with asyncio.TaskGroup() as tasks:
            await asyncio.gather(*(client.open() for client in self.clients))
            receiving = [tasks.create_task(subscriber.run()) for subscriber in self.subscribers]
            # Publications before a topic's first receipt would not be owed.
            await poll(lambda: all(one.started == set(one.topics) for one in self.subscribers))
            began = time.monotonic()
            publishing = [tasks.create_task(publisher.run()) for publisher in self.publishers]
            while True:
                request, command = (await commands.readline()).split()
                sample = Sample()
                if command == b"burst":
                    for publisher in self.publishers:
                        publisher.burst(BURST_SIZE // len(self.publishers))
                elif command == b"stop":
                    sample = await self.stop(began, publishing, receiving)
                print_line(self.count(sample, int(request)))  # before the clients have written the burst
                if command == b"stop":
                    return

    async def stop(
        self, began: float, publishing: list[asyncio.Task[None]], receiving: list[asyncio.Task[None]]
    ) -> Sample:
        """End all clients and files. Return the number of unanswered publications, and the subscribers that lack
        deliveries, after waiting for both."""
        for publisher in self.publishers:
            publisher.ended = True
        await asyncio.wait(publishing)
        await poll(lambda: not self.unanswered(), PATIENCE_SECONDS)
        sample = Sample(unanswered=sum(map(len, self.unanswered())), seconds=time.monotonic() - began)
        last: dict[str, Position] = {}
        for publisher in self.publishers:
            await publisher.client.close(flush=0.0)
            for topic, position in publisher.last.items():
                last[topic] = max(last.get(topic, position), position)

        def behind() -> list[str]:
            return [line for subscriber in self.subscribers for line in subscriber.behind(last)]

        await poll(lambda: not behind(), PATIENCE_SECONDS)
        await asyncio.sleep(SETTLE_SECONDS)
        sample.behind = behind()
        for task in receiving:
            task.cancel()
        await asyncio.wait(receiving)
        for subscriber in self.subscribers:
            await subscriber.client.close(flush=0.0)
        for file in self.files:
            file.close()
        return sample

    def unanswered(self) -> list[dict[int, int]]:
        """Return the unanswered publications of each publisher and topic that has some: number to submission time."""
        topics = (topic for publisher in self.publishers for topic in publisher.unanswered.values())
        return [topic for topic in topics if topic]

    def count(self, sample: Sample, request: int) -> Sample:
        """Fill the totals into the sample, and return it."""
        sample.request = request
        sample.submitted = sum(sum(publisher.numbers.values()) for publisher in self.publishers)
        sample.acknowledged = sum(publisher.acknowledged for publisher in self.publishers)
        sample.delivered = sum(subscriber.delivered for subscriber in self.subscribers)
        now = milliseconds()
        sample.oldest = max(((now - next(iter(topic.values()))) / 1000 for topic in self.unanswered()), default=0.0)
        sample.clients = len(self.clients)
        sample.connected = sum(client.connected for client in self.clients)
        sample.reconnects = sum(client.reconnects for client in self.clients)
        return sample


async def poll(condition: Callable[[], bool], within: float = float("inf")) -> None:
    """Wait until the condition holds, at most `within` seconds. Return without an error in both cases."""

    async def look() -> bool:
        return condition()

    await poll_until(look, within, _POLL_SECONDS)


def print_line(line: Struct) -> None:
    sys.stdout.buffer.write(msgspec.json.encode(line) + b"\n")
    sys.stdout.buffer.flush()


async def main(options: LoadOptions) -> None:
    commands = asyncio.StreamReader()
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(commands), sys.stdin)
    await RecordingClients(options).run(commands)


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=LoadOptions)))
