"""Sizing: the brokers, cores, memory and bandwidth that a number of clients needs, by the fitted costs. Pure.

Every publication reaches every broker of a cluster, so each broker pays its cost, in the one process that holds the
logic. Deliveries and clients are divided among brokers and their I/O processes. So more brokers help with clients and
deliveries, but not with publications. When publications fill the logic's core, the topics must be divided among several
clusters.

Costs were measured over loopback, where the kernel does the receiver's work within a send. On a server a network card's
driver takes its place, which is not measured here.
"""

from __future__ import annotations

import math

from msgspec import Struct

from benchmarks.capacity.model import Costs, Point

PACKET_OVERHEAD = 66
"""Bytes around a delivery that travels alone: Ethernet 14, IPv4 20, TCP with timestamps 32."""
MEASURED_PAYLOAD = 140
"""Bytes of the payload at which `Costs.wire_bytes` was measured."""
MIN_BROKERS, MAX_BROKERS = 3, 99
"""The smallest and the largest number of brokers of a cluster."""


class BrokerMachine(Struct, frozen=True, kw_only=True):
    """The machine of one broker. `busy` is the share of its cores, memory and bandwidth that may be used; the rest
    is for the clients of a failed broker."""

    cores: int = 16
    memory_gib: float = 64.0
    gbit: float = 10.0
    busy: float = 0.6


class CapacityScenario(Struct, frozen=True, kw_only=True):
    """A number of clients with one topic each. `rate` is publications per second and topic, `payload` bytes."""

    name: str
    clients: int
    topics: int
    rate: float
    payload: int


class Sizing(Struct, frozen=True, kw_only=True):
    """The resources of one broker, unless a field says otherwise."""

    clusters: int  # among which the topics are divided
    brokers: int  # of each cluster
    limited_by: str
    cores: float
    logic: float  # of those: the logic's process, cores
    user_gib: float
    kernel_gib: float
    gbit: float
    replication_gbit: float
    processes: int  # I/O processes
    descriptors: int  # of each I/O process

    @property
    def all_brokers(self) -> int:
        """Brokers of all clusters."""
        return self.clusters * self.brokers


def size_clusters(costs: Costs, copy: float, scenario: CapacityScenario, server: BrokerMachine) -> Sizing:
    """Return the sizing with the fewest clusters, and then the fewest brokers. `copy` is the CPU seconds, over all
    brokers, that one more broker adds to a publication. Raise ValueError when `MAX_BROKERS` are not enough."""
    publications = scenario.topics * scenario.rate
    # with the copies of a large cluster; a small one makes fewer
    clusters = max(1, math.ceil(publications * (costs.publication + copy) / server.busy))
    for brokers in range(MIN_BROKERS, MAX_BROKERS + 1):
        sizing = _size_cluster(costs, copy, scenario, server, clusters, brokers)
        usage = {
            "cores": sizing.cores / server.cores,
            "memory": (sizing.user_gib + sizing.kernel_gib) / server.memory_gib,
            "bandwidth": (sizing.gbit + sizing.replication_gbit) / server.gbit,
        }
        if max(usage.values()) <= server.busy:
            return sizing
    raise ValueError(f"{scenario.name}: {MAX_BROKERS} brokers are not enough")


def _size_cluster(
    costs: Costs, copy: float, scenario: CapacityScenario, server: BrokerMachine, clusters: int, brokers: int
) -> Sizing:  # fmt: skip
    clients = scenario.clients / clusters / brokers
    topics = scenario.topics / clusters
    publications, deliveries = topics * scenario.rate, clients * scenario.rate
    own = Point(clients=round(clients), topics=round(topics), publications=publications, deliveries=deliveries)
    copies = copy * publications / brokers * (brokers - 1)
    logic = costs.publication * publications + copies
    cores = costs.cpu(own) + copies
    wire = costs.wire_bytes + scenario.payload - MEASURED_PAYLOAD + PACKET_OVERHEAD
    parts = {
        "deliveries": costs.delivery * deliveries, "publications": logic, "heartbeats": costs.client * clients,
        "idle": costs.idle,
    }  # fmt: skip
    processes = max(1, math.ceil((cores - logic) / server.busy))
    return Sizing(
        clusters=clusters,
        brokers=brokers,
        limited_by="minimum of a cluster" if brokers == MIN_BROKERS else max(parts, key=lambda name: parts[name]),
        cores=cores,
        logic=logic,
        # each I/O process is a Python interpreter of its own
        user_gib=(costs.memory(own) + costs.empty_bytes * processes) / 2**30,
        kernel_gib=clients * costs.kernel_bytes / 2**30,
        gbit=deliveries * wire * 8 / 1e9,
        replication_gbit=publications / brokers * (brokers - 1) * (scenario.payload + PACKET_OVERHEAD) * 8 / 1e9,
        processes=processes,
        descriptors=math.ceil(clients / processes),
    )
