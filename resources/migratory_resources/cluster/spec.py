"""The models of the spec of a MigratoryCluster: its fields, their defaults and their bounds.

Only fields that have an effect everywhere are here. `kubernetes.py` adds those that have an effect only on Kubernetes.
Times are seconds and sizes are bytes once parsed.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from migratory_resources.cluster.identity import RuleSpec, TokensSpec, ZooKeeperUserSpec
from migratory_resources.cluster.tls import TlsSpec
from migratory_resources.fields import (
    ByteSize,
    DnsLabel,
    Duration,
    IpNetwork,
    OneOf,
    PatternText,
    ResourceModel,
    WholeNumber,
)
from migratory_resources.objectives import Objective

API_VERSION = "migratory.dev/v1alpha1"
KIND = "MigratoryCluster"

TOPIC_PATTERN = r"[^\x00-\x1f\x7f]{1,255}"
TOPIC_PATTERN_FORM = 'topic names, with * for any characters but / and ** for any characters, such as "ticks/**"'

_AUTHORITY = r"(\*\.)?([A-Za-z0-9_.-]+|\[[0-9a-fA-F:.]+\])(:[0-9]{1,5})?"
ORIGIN_PATTERN = rf"\*|[A-Za-z][A-Za-z0-9+.-]*://{_AUTHORITY}"
ORIGIN_FORM = 'an origin such as "https://app.example.com" or "https://*.example.org", or "*" for all'
HOST_PATTERN = rf"\*|{_AUTHORITY}"
HOST_FORM = 'a host such as "push.example.com", "push.example.com:8443" or "*.example.org", or "*" for all'

MAX_BROKERS = 99
"""Brokers of a cluster. Their ordinals have two digits, which the length of names allows for."""
MAX_NAME_LENGTH = 40
"""Characters of a cluster's name. Kubernetes adds "-broker-", an ordinal and a revision to it, within 63 characters."""


class ClusterMetadata(ResourceModel):
    """The part of `metadata` that a cluster file needs: the name."""

    name: Annotated[str, DnsLabel(MAX_NAME_LENGTH)] = Field(
        description="Name of the cluster; its brokers are NAME-broker-0, NAME-broker-1, ..."
    )


class DrainSpec(ResourceModel):
    """The settings of a broker's drain: `spec.brokers.drain`."""

    period: Annotated[float, Duration("0s", "10m")] = Field(
        default=30.0,
        description="Time over which a broker that shuts down asks its clients to leave, each at a random moment",
    )


class BrokersSpec(ResourceModel):
    """The broker processes: `spec.brokers`."""

    replicas: Annotated[int, WholeNumber(1, MAX_BROKERS)] = Field(
        default=3, description="Number of brokers; at least 2 x minCopies - 1"
    )
    io_processes: Annotated[int, WholeNumber(0, 64)] = Field(
        default=0,
        description="I/O processes of each broker, which serve the clients' connections; 0: the broker is one process",
    )
    weights: dict[str, Annotated[int, WholeNumber(0, 1000)]] = Field(
        default_factory=dict,
        description="Share of new clients by broker name; 100 when not given, 0 for a broker that gets none",
    )
    drain: DrainSpec = Field(default=DrainSpec(), description="How a broker that shuts down drains its clients")


class ZooKeeperSpec(ResourceModel):
    """The ZooKeeper ensemble: `spec.zookeeper`."""

    replicas: Annotated[int, OneOf((1, 3, 5))] = Field(default=3, description="Members of the ensemble")
    session_timeout: Annotated[float, Duration("1s", "1m")] = Field(
        default=4.0, description="Time after which ZooKeeper declares a silent broker dead"
    )


class CacheSpec(ResourceModel):
    """The bounds of the cache, the recent publications that each broker holds in memory: `spec.topics.cache`."""

    messages_per_topic: Annotated[int, WholeNumber(1, 1_000_000)] = Field(
        default=300, description="Newest publications that are cached for each topic"
    )
    min_age: Annotated[float, Duration("1s", "1d")] = Field(
        default=60.0,
        description="Publications younger than this stay cached beyond messagesPerTopic, within maxBytes",
    )
    max_age: Annotated[float, Duration("1s", "7d")] = Field(
        default=600.0, description="Publications older than this are dropped; minAge or more"
    )
    max_bytes: Annotated[int, ByteSize("1Mi", "1Ti")] = Field(
        default=256 * 2**20, description="Size of the cache of all topics, per broker"
    )


class TopicsSpec(ResourceModel):
    """Topics, topic groups and the cache: `spec.topics`."""

    groups: Annotated[int, WholeNumber(1, 10_000)] = Field(
        default=100, description="Topic groups; the topics of a group share a coordinator; immutable"
    )
    max_topics: Annotated[int, WholeNumber(1, 10_000_000)] = Field(
        default=100_000, description="Topics that may exist; creating another one is refused"
    )
    idle_timeout: Annotated[float, Duration("0s", "365d")] = Field(
        default=86_400.0, description="Time without a publication after which an empty topic is removed; 0s: never"
    )
    cache: CacheSpec = Field(
        default=CacheSpec(), description="The publications that a client can recover after a reconnect"
    )


class RatesSpec(ResourceModel):
    """Rates of each connection or of each identity: `spec.limits.clients`, `spec.limits.identities`. A client over a
    rate is not read until the rate allows it, and is told when that is."""

    publications_per_second: Annotated[int, WholeNumber(0, 10_000_000)] = Field(
        default=0, description="Publications per second, of both QoS, to a broker; 0: no limit"
    )
    bytes_per_second: Annotated[int, ByteSize("0", "1Ti")] = Field(
        default=0, description="Bytes of publications' payloads per second to a broker; 0: no limit"
    )
    subscriptions_per_second: Annotated[int, WholeNumber(0, 10_000_000)] = Field(
        default=0, description="Topics of subscribe requests per second to a broker; 0: no limit"
    )


class AddressLimitsSpec(RatesSpec):
    """Limits of each address of clients, rates and connections: `spec.limits.addresses`. 0 is no limit, and `exempt`
    networks have none of them."""

    connections: Annotated[int, WholeNumber(0, 1_000_000)] = Field(
        default=0, description="Connections of one address to a broker at a time; 0: no limit"
    )
    connects_per_second: Annotated[int, WholeNumber(0, 1_000_000)] = Field(
        default=0, description="New connections of one address to a broker per second; 0: no limit"
    )
    exempt: list[Annotated[str, IpNetwork()]] = Field(
        default_factory=list,
        max_length=50,
        description="Networks without these limits, such as those of proxies, behind which many clients share an "
        "address",
    )


class LimitsSpec(ResourceModel):
    """Limits that protect a broker, per broker or, if the name says so, per client: `spec.limits`."""

    connects_per_second: Annotated[int, WholeNumber(1, 1_000_000)] = Field(
        default=5000, description="New connections that a broker accepts per second"
    )
    max_payload: Annotated[int, ByteSize("1Ki", "64Mi")] = Field(
        default=2**20, description="Size of one publication's payload"
    )
    queue_per_client: Annotated[int, ByteSize("64Ki", "1Gi")] = Field(
        default=2**20, description="Bytes that may be queued for a slow client; maxPayload or more"
    )
    queue_total: Annotated[int, ByteSize("1Mi", "1Ti")] = Field(
        default=256 * 2**20,
        description="Bytes that may be queued for all clients of a broker; queuePerClient or more",
    )
    input_total: Annotated[int, ByteSize("1Mi", "1Ti")] = Field(
        default=256 * 2**20,
        description="Memory for what all clients of a broker sent and it has not handled; above it the largest holders "
        "are closed. Handshakes may take half as much besides, and TLS handshakes as much",
    )
    subscriptions_total: Annotated[int, ByteSize("1Mi", "1Ti")] = Field(
        default=512 * 2**20,
        description="Memory for the subscriptions of all clients of a broker and the permissions in their tokens; "
        "above it more are refused",
    )
    subscriptions_per_client: Annotated[int, WholeNumber(1, 1_000_000)] = Field(
        default=1000, description="Topics to which one client may subscribe"
    )
    topics_per_client: Annotated[int, WholeNumber(1, 10_000_000)] = Field(
        default=10_000, description="Topics that one connection may create by publishing to them"
    )
    heartbeat: Annotated[float, Duration("1s", "5m")] = Field(
        default=15.0, description="Interval of heartbeats; a client that misses two is dead"
    )
    handshake: Annotated[float, Duration("1s", "5m")] = Field(
        default=10.0, description="Time limit from the accepted connection to the client's first message"
    )
    clients: RatesSpec = Field(
        default=RatesSpec(), description="Rates of each connection of a client; changed without a restart"
    )
    identities: RatesSpec = Field(
        default=RatesSpec(),
        description="Rates of all connections with the same subject in their tokens; changed without a restart",
    )
    addresses: AddressLimitsSpec = Field(
        default=AddressLimitsSpec(),
        description="Limits of each client address, those of connections before a handshake; changed without a restart",
    )


class BatchingSpec(ResourceModel):
    """Batching, several publications in one write to a client: less CPU time, at the price of a delay.
    `spec.delivery.batching`."""

    max_delay: Annotated[float, Duration("0s", "5s")] = Field(
        default=0.0, description="Longest time that a publication is delayed to be batched; 0s: no batching"
    )
    max_bytes: Annotated[int, ByteSize("1Ki", "1Mi")] = Field(
        default=16 * 2**10, description="Size at which a client's batch is written before maxDelay"
    )


class ConflationSpec(ResourceModel):
    """Conflation of the topics that a pattern matches: an entry of `spec.delivery.conflation`. Subscribers of these
    topics need the latest value and not every publication."""

    topics: Annotated[str, PatternText(TOPIC_PATTERN, 255, TOPIC_PATTERN_FORM)] = Field(
        description="Pattern of topic names: * matches any characters but /, ** matches any characters"
    )
    interval: Annotated[float, Duration("10ms", "1m")] = Field(
        description="Interval of which only the latest QoS 0 publication is delivered"
    )


class DeliverySpec(ResourceModel):
    """The settings of replication, and of delivery to clients: `spec.delivery`."""

    min_copies: Annotated[int, WholeNumber(1, 5)] = Field(
        default=2, description="Brokers that must hold a publication before it is acknowledged"
    )
    duplicate_window: Annotated[float, Duration("1s", "1d")] = Field(
        default=120.0, description="Time within which a publication that is sent again is recognised as a duplicate"
    )
    on_history_loss: Annotated[Literal["reset", "halt"], OneOf(("reset", "halt"))] = Field(
        default="reset",
        description="When so many brokers were replaced at once that a topic group's history is lost: start a new "
        "history and tell the clients (reset), or wait for an operator (halt)",
    )
    batching: BatchingSpec = Field(
        default=BatchingSpec(), description="Batching of several publications in one write to a client"
    )
    conflation: list[ConflationSpec] = Field(
        default_factory=list,
        max_length=50,
        description="Topics whose subscribers get the latest publication of each interval; the first match applies",
    )
    compression: bool = Field(
        default=False,
        description="Compress messages for clients that offer it; each message is compressed once for all of them",
    )


class AdministrationSpec(ResourceModel):
    """The hashes of the tokens with which brokers' status pages and server lists may be read, by everybody if there are
    none: `spec.security.administration`."""

    tokens: list[Annotated[str, PatternText(r"[0-9a-f]{64}", 64, "64 hexadecimal digits in lower case")]] = Field(
        default_factory=list,
        max_length=20,
        description="SHA-256 of each token with which /v1/status and /v1/servers may be read, as "
        "`printf %s TOKEN | sha256sum` prints it; everybody may by default",
    )


class SecuritySpec(ResourceModel):
    """Which clients and web pages may connect, what they may do, and the certificates and the ZooKeeper user of the
    brokers: `spec.security`."""

    origins: list[Annotated[str, PatternText(ORIGIN_PATTERN, 300, ORIGIN_FORM)]] = Field(
        default_factory=list,
        max_length=50,
        description="Origins of the web pages that may connect; none by default. Programs send no Origin header and "
        "may always connect",
    )
    hosts: list[Annotated[str, PatternText(HOST_PATTERN, 300, HOST_FORM)]] = Field(
        default_factory=list,
        max_length=50,
        description="Host headers that are served; by default all on Kubernetes, and loopback names on one machine",
    )
    tokens: TokensSpec | None = Field(
        default=None, description="Tokens that clients need; without tokens and rules every client may do everything"
    )
    rules: list[RuleSpec] = Field(
        default_factory=list,
        max_length=200,
        description="What clients may do; with tokens or rules, whatever no rule and no token allows is denied",
    )
    anonymous: bool = Field(
        default=False,
        description="With tokens or rules: clients without a token may connect, and what rules allow them",
    )
    tls: TlsSpec = Field(default=TlsSpec(), description="Certificates of the brokers; no TLS without them")
    administration: AdministrationSpec = Field(
        default=AdministrationSpec(), description="Tokens for the brokers' status pages"
    )
    zookeeper: ZooKeeperUserSpec | None = Field(
        default=None, description="User and password of the brokers in ZooKeeper; without them its nodes are open"
    )


class ConsoleSpec(ResourceModel):
    """The console, a page that shows the cluster: `spec.console`. Without `enabled`, brokers serve it on one machine
    only."""

    enabled: bool | None = Field(
        default=None,
        description="Serve the page /console to those who reach the clients' port; by default only on one machine. "
        "With tokens or rules it needs a token of spec.security.administration",
    )


class SlaSpec(ResourceModel):
    """The objectives that reports judge, and the length of the time that a report judges: `spec.sla`."""

    window: Annotated[float, Duration("1m", "30d")] = Field(
        default=1800.0, description="Length of the time that a report judges"
    )
    objectives: list[Objective] = Field(
        default_factory=list, max_length=50, description="Objectives that reports judge; a default set when empty"
    )


class ClusterSpec(ResourceModel):
    """All settings of a cluster: `spec`."""

    brokers: BrokersSpec = Field(default=BrokersSpec(), description="The broker processes")
    zookeeper: ZooKeeperSpec = Field(
        default=ZooKeeperSpec(), description="The ZooKeeper ensemble through which brokers elect coordinators"
    )
    topics: TopicsSpec = Field(default=TopicsSpec(), description="Topics, topic groups and the cache")
    limits: LimitsSpec = Field(
        default=LimitsSpec(), description="Limits per broker, or per client where the name says so"
    )
    delivery: DeliverySpec = Field(
        default=DeliverySpec(), description="Guarantees of an acknowledged publication, and how it is delivered"
    )
    security: SecuritySpec = Field(
        default=SecuritySpec(), description="Which clients and web pages may connect, and what they may do"
    )
    console: ConsoleSpec = Field(default=ConsoleSpec(), description="The page that shows the cluster")
    sla: SlaSpec = Field(default=SlaSpec(), description="Objectives by which reports judge the cluster")


class MigratoryCluster(ResourceModel):
    """A MigratoryCluster resource as a cluster file describes it. It has no status, and of its metadata only the
    name."""

    api_version: Annotated[str, OneOf((API_VERSION,))]
    kind: Annotated[str, OneOf((KIND,))]
    metadata: ClusterMetadata
    spec: ClusterSpec = ClusterSpec()

    @property
    def name(self) -> str:
        """The name of the cluster."""
        return self.metadata.name

    @property
    def broker_names(self) -> list[str]:
        """The names of the brokers, NAME-broker-0 and following, in the order of their ordinals."""
        return [f"{self.name}-broker-{ordinal}" for ordinal in range(self.spec.brokers.replicas)]
