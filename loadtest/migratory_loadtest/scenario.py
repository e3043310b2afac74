"""What a run is: who subscribes to what, who publishes what and when. Everything follows from the scenario's seed.

As in the published evaluation each subscriber takes one random topic, and every topic gets `rate` publications a
second; topics are spread over the period, so that the fan-outs of a second do not fall into one moment.
"""

from __future__ import annotations

import random
from math import inf
from typing import Literal

from msgspec import Struct

from migratory_loadtest.histogram import bounds
from migratory_loadtest.payload import SMALLEST

HIGHEST_PORT = 65535


def read_address(text: str) -> tuple[str, int]:
    """Of HOST:PORT, an IPv6 host in brackets. Raises ValueError."""
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) <= HIGHEST_PORT):
        raise ValueError(f"metrics_listen: {text!r} is no HOST:PORT, such as 0.0.0.0:9100")
    return host.strip("[]"), int(port)


class Scenario(Struct, frozen=True, kw_only=True):
    """Durations in seconds, sizes in bytes. Raises ValueError, naming field and bound, for what cannot be run."""

    servers: tuple[str, ...]
    subscribers: int = 1000
    topics: int = 100
    payload: int = 140
    rate: float = 1.0  # publications per topic and second
    duration: float = 30.0  # measured
    warmup: float = 5.0  # before it: counted for loss, duplicates and order, not for latency
    seed: int = 1
    publishers: int = 10  # connections that publish; each owns topics, at most one connection per topic
    qos: Literal[0, 1] = 1
    alone: bool = False  # no subscribers, or no publishers, by intent: the other half runs elsewhere
    workers: int = 0  # processes; 0: one per 4,000 subscribers, at least 2
    sources: int = 0  # loopback addresses to connect from, in turn; one has ports for some 28,000 connections a broker
    groups: int = 100  # topic groups of the cluster, for the publish gap per group
    topic_prefix: str = "bench"
    wire: Literal["msgpack", "json"] = "msgpack"
    token: str | None = None
    cluster: str = ""  # label of exported metrics
    connects_per_second: float = 1000.0  # over all workers
    connect_timeout: float = 60.0  # for all subscribers to have their receipt
    resume_limit: float = 5.0  # for each client of a killed broker
    settle: float = 10.0  # after a mark: "during" the fault, neither before nor after it
    patience: float = 20.0  # after the last publication, for answers and deliveries still under way
    thresholds: tuple[float, ...] = ()  # objectives' latency thresholds, exact bounds of the histogram
    metrics: bool = False  # each worker serves /metrics on a port of its own
    metrics_listen: str = ""  # host:port of the first worker's, the others' follow; else free ports of 127.0.0.1
    scrape_interval: float = 1.0  # /metrics stays up for two of them after the end

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("servers: at least one URL is needed")
        for url in self.servers:
            if not url.startswith(("ws://", "wss://")):
                raise ValueError(f"servers: {url!r} is no ws:// or wss:// URL")
        for name, low, high in (
            ("subscribers", 0, 1_000_000),
            ("topics", 1, 100_000),
            ("payload", SMALLEST, 16 * 1024 * 1024),
            ("publishers", 0, 100_000),
            ("workers", 0, 256),
            ("sources", 0, 200),
            ("groups", 1, 100_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: {value} is not in {low}..{high}")
        for name in ("rate", "duration", "connects_per_second", "connect_timeout", "resume_limit", "scrape_interval"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not above 0 and finite")
        bounds(self.thresholds)
        if self.metrics_listen:
            last = read_address(self.metrics_listen)[1] + self.worker_count() - 1
            if last > HIGHEST_PORT:
                raise ValueError(f"metrics_listen: the last worker's port would be {last}, above {HIGHEST_PORT}")
        for name in ("warmup", "settle", "patience"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not 0 or above, and finite")

    def worker_count(self) -> int:
        return self.workers or max(2, -(-self.subscribers // 4000))

    def metrics_address(self, worker: int) -> tuple[str, int]:
        """Where this worker serves /metrics; port 0: any that is free."""
        if not self.metrics_listen:
            return "127.0.0.1", 0
        host, port = read_address(self.metrics_listen)
        return host, port + worker

    def source_addresses(self) -> list[str]:
        """127.0.0.2 and on: for brokers of this machine, and none unless asked for."""
        return [f"127.0.0.{number}" for number in range(2, 2 + self.sources)]

    def publisher_count(self) -> int:
        return min(self.publishers, self.topics)

    def topic_names(self) -> list[str]:
        width = len(str(self.topics - 1))
        return [f"{self.topic_prefix}/{number:0{width}d}" for number in range(self.topics)]

    def choices(self) -> list[int]:
        """For each subscriber the number of its topic."""
        chance = random.Random(f"{self.seed}/subscribers")
        return [chance.randrange(self.topics) for _ in range(self.subscribers)]

    def offsets(self) -> list[float]:
        """For each topic when in its period it is published, in seconds: evenly spread, in random order."""
        order = list(range(self.topics))
        random.Random(f"{self.seed}/offsets").shuffle(order)
        return [place / self.topics / self.rate for place in order]

    def sends_per_topic(self) -> int:
        """Publications per topic of the whole run, warm-up included."""
        return max(1, round((self.warmup + self.duration) * self.rate))
