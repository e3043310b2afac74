"""The load of a run: which clients subscribe and publish what, how often, and when they leave topics for a while."""

from __future__ import annotations

from random import Random
from typing import TYPE_CHECKING

from migratory_protocol.codec import CODECS
from migratory_protocol.positions import Position

from migratory_simulation.clients import Client

if TYPE_CHECKING:
    from migratory_simulation.world import World

Quiet = dict[str, tuple[float, float]]
"""Per topic, the begin and end, in virtual seconds, of the interval in which its publisher publishes nothing."""


class Load:
    """The clients of a run and their schedules of publishing and subscribing. Creating it creates `clients` and
    schedules all their actions."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.options = world.options
        self.scheduler = world.scheduler
        self._misuse = Random(f"misuse load {self.options.seed}")
        self._probing = Random(f"probes {self.options.seed}")
        self._quietly = 0.5 if self.options.conflation else 0.1  # share of QoS 0 publications
        self.clients = self._make()

    def _make(self) -> list[Client]:
        """Create the clients, schedule their starts and actions, and return them."""
        options = self.options
        random = Random(f"clients {options.seed}")
        clients = []
        for number in range(options.publishers + options.subscribers):
            topics = tuple(topic for topic in options.topics if random.random() < 0.75) or options.topics[:1]
            reads = topics if number >= options.publishers or random.random() < 0.3 else ()
            writes = topics if number < options.publishers else ()
            client = Client(self.world, number, reads, writes, random.choice(list(CODECS)))
            clients.append(client)
            # Some subscribers come late, to a topic that has a history.
            late = not writes and random.random() < 0.35
            tempo = options.tempo * options.hurry
            begins = random.uniform(8.0, 20.0) if late else random.uniform(0.0, 3.0)
            self.scheduler.at(options.clients_from + begins * tempo, client.start)
            if writes:
                quiet = self._quiet_times(random, writes)
                first = options.clients_from + random.uniform(1.0, 2.0) * tempo
                self.scheduler.at(first, self._publish_next, client, quiet)
            if reads and random.random() < 0.5:
                first = options.clients_from + random.uniform(5.0, 12.0) * tempo
                self.scheduler.at(first, self._churn, client)
        return clients

    def _quiet_times(self, random: Random, topics: tuple[str, ...]) -> Quiet:
        """Draw topics on which a publisher is silent for longer than the duplicate window. Return the silent
        interval of each."""
        quiet = {}
        for topic in topics:
            if random.random() < 0.3:
                begin = random.uniform(3.0, 12.0) * self.options.tempo
                quiet[topic] = (begin, begin + self.options.duplicate_window + random.uniform(1.0, 6.0))
        return quiet

    def _publish_next(self, client: Client, quiet: Quiet) -> None:
        """Publish a batch, sometimes give a publication up or misuse an id, and schedule the next batch. Stop when
        the load ends."""
        now = self.scheduler.now
        if not self.world.under_load:
            return
        topic = client.random.choice(client.publishes)
        begin, end = quiet.get(topic, (0.0, 0.0))
        if not begin <= now < end:
            for _ in range(client.random.choice((1, 1, 1, 2, 5))):
                client.publish(topic, qos=0 if client.random.random() < self._quietly else 1)
        if client.random.random() < 0.02:
            client.give_up_something()
        if self._misuse.random() < self.options.misuse:
            self._misuse.choice(self.clients).misuse(client, topic, self._misuse)
        if self._probing.random() < self.options.probes:
            self._probe(topic)
        self.scheduler.after(client.random.expovariate(self.options.rate), self._publish_next, client, quiet)

    def _probe(self, topic: str) -> None:
        """Ask a broker to continue at a position that was never shown: one near the beginning of its cache, of an epoch
        beside the right one. Do nothing if a broker drawn at random has no log of the topic, or is frozen."""
        random = self._probing
        process = random.choice(self.world.running() or [None])
        log = None if process is None else process.log(topic)
        if process is not None and log is not None and log.base_epoch and not process.frozen:
            sequence = log.base + random.choice((0, 0, 0, 1))
            epoch = (log.epoch_at(sequence) or log.base_epoch) + random.choice((-1, -1, 1))
            first = process.replica(self.world.external.group_of[topic]).first
            self.world.coverage["resumes from made-up positions"] += 1
            process.run(process.probe, topic, Position(max(epoch, first), sequence))

    def _churn(self, client: Client) -> None:
        """Leave a random topic for a while, and schedule the next change. Stop when the faults end."""
        if self.scheduler.now < self.options.faults_end:
            client.toggle(client.random.choice(client.subscribes))
            self.scheduler.after(client.random.uniform(1.0, 8.0) * self.options.hurry, self._churn, client)
