"""The MigratoryCluster resource: what a person may ask for, the defaults and the bounds.

A field is here when it works. Those that only Kubernetes gives a meaning, and those of later releases, are named in
`validation.py`, which says so to whoever uses them. Times are seconds and sizes bytes once parsed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from migratory_resources.fields import Duration, Model, Name, Size, Text, Whole, Words
from migratory_resources.objectives import Objective

API_VERSION = "migratory.dev/v1alpha1"
KIND = "MigratoryCluster"

TOPICS = r"[^\x00-\x1f\x7f]{1,255}"
TOPICS_FORM = 'names of topics, with * for any characters but / and ** for any at all, such as "ticks/**"'

LONGEST_NAME = 40
"""Kubernetes adds "-broker-", an ordinal and a revision to it, within 63 characters."""


class Metadata(Model):
    name: Annotated[str, Name(LONGEST_NAME)] = Field(description="Name of the cluster; brokers are NAME-broker-0, ...")


class Drain(Model):
    period: Annotated[float, Duration("0s", "10m")] = Field(
        default=30.0, description="Over which a broker that ends asks its clients to leave, each at a random moment"
    )


class Brokers(Model):
    replicas: Annotated[int, Whole(1, 99)] = Field(default=3, description="2 x minCopies - 1 or more")
    io_processes: Annotated[int, Whole(0, 64)] = Field(
        default=0, description="Of each broker, for clients' connections; 0: its one process has them"
    )
    weights: dict[str, Annotated[int, Whole(0, 1000)]] = Field(
        default_factory=dict, description="Share of new clients by broker name; 100 unless named, 0 takes none"
    )
    drain: Drain = Field(default=Drain(), description="How a broker that ends lets its clients go")


class ZooKeeper(Model):
    replicas: Annotated[int, Words((1, 3, 5))] = Field(default=3, description="Members of the ensemble; fixed")
    session_timeout: Annotated[float, Duration("1s", "1m")] = Field(
        default=4.0, description="How long a silent broker counts as alive"
    )


class Cache(Model):
    messages_per_topic: Annotated[int, Whole(1, 1_000_000)] = Field(
        default=300, description="The newest publications of every topic that are kept"
    )
    min_age: Annotated[float, Duration("1s", "1d")] = Field(
        default=60.0, description="Publications younger than that are kept beyond messagesPerTopic, within maxBytes"
    )
    max_age: Annotated[float, Duration("1s", "7d")] = Field(
        default=600.0, description="Publications older than that are dropped; minAge or more"
    )
    max_bytes: Annotated[int, Size("1Mi", "1Ti")] = Field(default=256 * 2**20, description="Of all topics, per broker")


class Topics(Model):
    groups: Annotated[int, Whole(1, 10_000)] = Field(
        default=100, description="Topics in a group share a coordinator; fixed"
    )
    max_topics: Annotated[int, Whole(1, 10_000_000)] = Field(
        default=100_000, description="Topics that may exist; one more is refused"
    )
    cache: Cache = Field(default=Cache(), description="What a client that comes back can recover")


class Limits(Model):
    """Per broker, or per client where the name says so."""

    connects_per_second: Annotated[int, Whole(1, 1_000_000)] = Field(
        default=5000, description="New connections that a broker takes in a second"
    )
    max_payload: Annotated[int, Size("1Ki", "64Mi")] = Field(default=2**20, description="Of one publication")
    queue_per_client: Annotated[int, Size("64Ki", "1Gi")] = Field(
        default=2**20, description="That may wait for a slow client; maxPayload or more"
    )
    queue_total: Annotated[int, Size("1Mi", "1Ti")] = Field(
        default=256 * 2**20, description="That may wait for all clients of a broker; queuePerClient or more"
    )
    subscriptions_per_client: Annotated[int, Whole(1, 1_000_000)] = Field(
        default=1000, description="Topics that one client may be subscribed to"
    )
    topics_per_client: Annotated[int, Whole(1, 10_000_000)] = Field(
        default=10_000, description="Topics that one connection may make by publishing to them first"
    )
    heartbeat: Annotated[float, Duration("1s", "5m")] = Field(
        default=15.0, description="A client is dead after two of them"
    )
    handshake: Annotated[float, Duration("1s", "5m")] = Field(
        default=10.0, description="From the accepted connection to the client's first message"
    )


class Batching(Model):
    """Several publications in one write: a fraction of the processor's time, for a delay."""

    max_delay: Annotated[float, Duration("0s", "5s")] = Field(
        default=0.0, description="That a publication waits for others to the same client at most; 0s: none waits"
    )
    max_bytes: Annotated[int, Size("1Ki", "1Mi")] = Field(
        default=16 * 2**10, description="So many that wait for one client leave before their time"
    )


class Conflation(Model):
    """Topics of which subscribers want to know how things stand, not every step on the way."""

    topics: Annotated[str, Text(TOPICS, 255, TOPICS_FORM)] = Field(
        description="Which: * stands for any characters but /, ** for any at all"
    )
    interval: Annotated[float, Duration("10ms", "1m")] = Field(
        description="Of QoS 0 publications within it only the latest is sent on"
    )


class Delivery(Model):
    min_copies: Annotated[int, Whole(1, 5)] = Field(
        default=2, description="Brokers that hold a publication before it counts"
    )
    duplicate_window: Annotated[float, Duration("1s", "1d")] = Field(
        default=120.0, description="In which a publication that is sent again is known as the same"
    )
    on_history_loss: Annotated[Literal["reset", "halt"], Words(("reset", "halt"))] = Field(
        default="reset",
        description="When so many brokers were replaced at once that a history is gone: begin a new one and tell the "
        "clients (reset), or wait for a person (halt)",
    )
    batching: Batching = Field(default=Batching(), description="Several publications in one write to a client")
    conflation: list[Conflation] = Field(
        default_factory=list,
        max_length=50,
        description="Topics whose subscribers get the latest publication of each interval; the first that fits counts",
    )
    compression: bool = Field(
        default=False, description="Take clients' offers to compress messages; each is compressed once for all of them"
    )


class Sla(Model):
    window: Annotated[float, Duration("1m", "30d")] = Field(default=1800.0, description="What a report looks back on")
    objectives: list[Objective] = Field(
        default_factory=list, max_length=50, description="What reports judge; a usual set when there are none"
    )


class Spec(Model):
    brokers: Brokers = Field(default=Brokers(), description="The processes that take clients")
    zookeeper: ZooKeeper = Field(default=ZooKeeper(), description="Where brokers agree on who coordinates what")
    topics: Topics = Field(default=Topics(), description="Topics, their groups and what is kept of them")
    limits: Limits = Field(default=Limits(), description="Per broker, or per client where the name says so")
    delivery: Delivery = Field(default=Delivery(), description="What a publication's acknowledgement promises")
    sla: Sla = Field(default=Sla(), description="What reports measure the cluster by")


class MigratoryCluster(Model):
    api_version: Annotated[str, Words((API_VERSION,))]
    kind: Annotated[str, Words((KIND,))]
    metadata: Metadata
    spec: Spec = Spec()

    @property
    def name(self) -> str:
        return self.metadata.name

    @property
    def broker_names(self) -> list[str]:
        return [f"{self.name}-broker-{ordinal}" for ordinal in range(self.spec.brokers.replicas)]
