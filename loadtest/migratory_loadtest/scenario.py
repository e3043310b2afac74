"""The parameters of a run, and the subscriptions, publishers and send times that follow from them.

Everything follows from the seed. As in the paper's evaluation each subscriber has one random topic, and every topic
gets `rate` publications per second. The topics' send times are spread over the period, so that the fan-outs of a second
do not coincide.
"""

from __future__ import annotations

import random
from math import inf
from typing import Literal

from msgspec import Struct

from migratory_loadtest.histogram import bucket_bounds
from migratory_loadtest.workload import MIN_PAYLOAD_BYTES

HIGHEST_PORT = 65535


def read_metrics_listen(text: str) -> tuple[str, int]:
    """Return host and port of `metrics_listen`, HOST:PORT with a port from 1 to 65535. Brackets around an IPv6 host are
    removed.

    :raises ValueError: the text has another form.
    """
    host, colon, port = text.rpartition(":")
    if not (colon and host and port.isdecimal() and 0 < int(port) <= HIGHEST_PORT):
        raise ValueError(f"metrics_listen: {text!r} is not HOST:PORT; an example is 0.0.0.0:9100")
    return host.strip("[]"), int(port)


class Scenario(Struct, frozen=True, kw_only=True):
    """The parameters of a run. Durations are in seconds, sizes in bytes.

    :raises ValueError: a value is not allowed; the message names the field, the value and the bounds.
    """

    servers: tuple[str, ...]
    subscribers: int = 1000
    topics: int = 100
    payload: int = 140
    rate: float = 1.0  # publications per topic and second
    duration: float = 30.0  # seconds that are measured
    warmup: float = 5.0  # before them: counted for loss, duplicates and order, not for latency
    seed: int = 1
    publishers: int = 10  # connections that publish; each has topics of its own, so at most one per topic
    qos: Literal[0, 1] = 1
    alone: bool = False  # subscribers or publishers are absent on purpose: the other half runs elsewhere
    workers: int = 0  # processes; 0: one per 4,000 subscribers, at least 2
    sources: int = 0  # loopback addresses to connect from; each has ports for 28,000 connections per broker
    groups: int = 100  # topic groups of the cluster, for the publish gap per group
    topic_prefix: str = "bench"
    wire: Literal["msgpack", "json"] = "msgpack"
    token: str | None = None
    cluster: str = ""  # label of exported metrics
    connects_per_second: float = 1000.0  # over all workers
    connect_timeout: float = 60.0  # for all clients to be connected, besides the time that `connects_per_second` takes
    resume_limit: float = 5.0  # for each client of a killed broker
    settle: float = 10.0  # after a mark: the window "during" the fault
    patience: float = 20.0  # after the last publication, for outstanding answers and deliveries
    thresholds: tuple[float, ...] = ()  # latency thresholds of objectives: exact bounds of the histogram
    metrics: bool = False  # each worker serves /metrics on a port of its own
    metrics_listen: str = ""  # host:port of worker 0, then the next ports; else free ports of 127.0.0.1
    scrape_interval: float = 1.0  # /metrics stays up for two intervals after the end, and for a late scrape

    def __post_init__(self) -> None:
        if not self.servers:
            raise ValueError("servers: the list is empty; give at least one URL")
        for url in self.servers:
            if not url.startswith(("ws://", "wss://")):
                raise ValueError(f"servers: {url!r} is not allowed; use a ws:// or wss:// URL")
        for name, low, high in (
            ("subscribers", 0, 1_000_000),
            ("topics", 1, 100_000),
            ("payload", MIN_PAYLOAD_BYTES, 16 * 1024 * 1024),
            ("publishers", 0, 100_000),
            ("workers", 0, 256),
            ("sources", 0, 200),
            ("groups", 1, 100_000),
        ):
            value = getattr(self, name)
            if not low <= value <= high:
                raise ValueError(f"{name}: {value} is not allowed; use {low} to {high}")
        for name in ("rate", "duration", "connects_per_second", "connect_timeout", "resume_limit", "scrape_interval"):
            if not 0 < getattr(self, name) < inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed; use a finite number above 0")
        bucket_bounds(self.thresholds)
        if self.metrics_listen:
            last = read_metrics_listen(self.metrics_listen)[1] + self.worker_count() - 1
            if last > HIGHEST_PORT:
                raise ValueError(
                    f"metrics_listen: the last worker's port would be {last}; the highest allowed is {HIGHEST_PORT}"
                )
        for name in ("warmup", "settle", "patience"):
            if not 0 <= getattr(self, name) < inf:
                raise ValueError(f"{name}: {getattr(self, name)} is not allowed; use a finite number, 0 or more")

    def worker_count(self) -> int:
        """Return the number of worker processes: `workers`, or if that is 0 one per 4,000 subscribers, at least 2."""
        return self.workers or max(2, -(-self.subscribers // 4000))

    def metrics_address(self, worker: int) -> tuple[str, int]:
        """Return host and port on which the worker of this number serves /metrics. Port 0 means any free port."""
        if not self.metrics_listen:
            return "127.0.0.1", 0
        host, port = read_metrics_listen(self.metrics_listen)
        return host, port + worker

    def source_addresses(self) -> list[str]:
        """Return the local addresses to connect from, `sources` of them from 127.0.0.2 on. Empty if that is 0: the
        kernel chooses."""
        return [f"127.0.0.{number}" for number in range(2, 2 + self.sources)]

    def publisher_count(self) -> int:
        """Return the number of publishers: `publishers`, but at most one per topic."""
        return min(self.publishers, self.topics)

    def topic_names(self) -> list[str]:
        """Return the names of all topics, by topic number from 0: PREFIX/NUMBER, all numbers with as many digits as the
        last one."""
        width = len(str(self.topics - 1))
        return [f"{self.topic_prefix}/{number:0{width}d}" for number in range(self.topics)]

    def choices(self) -> list[int]:
        """Return the topic number of each subscriber, chosen at random by the seed. A topic may have none."""
        rng = random.Random(f"{self.seed}/subscribers")
        return [rng.randrange(self.topics) for _ in range(self.subscribers)]

    def offsets(self) -> list[float]:
        """Return each topic's first send time in seconds: evenly spread over the period, in random order."""
        order = list(range(self.topics))
        random.Random(f"{self.seed}/offsets").shuffle(order)
        return [index / self.topics / self.rate for index in order]

    def sends_per_topic(self) -> int:
        """Return the number of publications per topic over the whole run, including the warm-up."""
        return max(1, round((self.warmup + self.duration) * self.rate))
