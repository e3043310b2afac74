"""The MigratoryCluster resource: what a person may ask for, the defaults and the bounds.

A field is here when it works. Those that only Kubernetes gives a meaning, and those of later releases, are named in
`validation.py`, which says so to whoever uses them. Times are seconds and sizes bytes once parsed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from migratory_resources.fields import Duration, Model, Name, Size, Whole, Words
from migratory_resources.objectives import Objective

API_VERSION = "migratory.dev/v1alpha1"
KIND = "MigratoryCluster"

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
    weights: dict[str, Annotated[int, Whole(0, 1000)]] = Field(
        default_factory=dict, description="Share of new clients by broker name; 100 unless named, 0 takes none"
    )
    drain: Drain = Drain()


class ZooKeeper(Model):
    replicas: Annotated[int, Words((1, 3, 5))] = 3
    session_timeout: Annotated[float, Duration("1s", "1m")] = Field(
        default=4.0, description="How long a silent broker counts as alive"
    )


class Cache(Model):
    messages_per_topic: Annotated[int, Whole(1, 1_000_000)] = 300
    min_age: Annotated[float, Duration("1s", "1d")] = Field(
        default=60.0, description="Publications younger than that are kept beyond messagesPerTopic, within maxBytes"
    )
    max_age: Annotated[float, Duration("1s", "7d")] = 600.0
    max_bytes: Annotated[int, Size("1Mi", "1Ti")] = Field(default=256 * 2**20, description="Of all topics, per broker")


class Topics(Model):
    groups: Annotated[int, Whole(1, 10_000)] = Field(
        default=100, description="Topics in a group share a coordinator; fixed"
    )
    max_topics: Annotated[int, Whole(1, 10_000_000)] = 100_000
    cache: Cache = Cache()


class Limits(Model):
    """Per broker, or per client where the name says so."""

    connects_per_second: Annotated[int, Whole(1, 1_000_000)] = 5000
    max_payload: Annotated[int, Size("1Ki", "64Mi")] = 2**20
    queue_per_client: Annotated[int, Size("64Ki", "1Gi")] = 2**20
    queue_total: Annotated[int, Size("1Mi", "1Ti")] = 256 * 2**20
    subscriptions_per_client: Annotated[int, Whole(1, 1_000_000)] = 1000
    heartbeat: Annotated[float, Duration("1s", "5m")] = Field(
        default=15.0, description="A client is dead after two of them"
    )
    handshake: Annotated[float, Duration("1s", "5m")] = 10.0


class Delivery(Model):
    min_copies: Annotated[int, Whole(1, 5)] = Field(
        default=2, description="Brokers that hold a publication before it counts"
    )
    duplicate_window: Annotated[float, Duration("1s", "1d")] = 120.0
    on_history_loss: Annotated[Literal["reset", "halt"], Words(("reset", "halt"))] = "reset"


class Sla(Model):
    window: Annotated[float, Duration("1m", "30d")] = 1800.0
    objectives: list[Objective] = Field(default_factory=list, max_length=50)


class Spec(Model):
    brokers: Brokers = Brokers()
    zookeeper: ZooKeeper = ZooKeeper()
    topics: Topics = Topics()
    limits: Limits = Limits()
    delivery: Delivery = Delivery()
    sla: Sla = Sla()


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
