"""What so many clients need, by the fitted costs: brokers, cores, memory, bandwidth.

Every publication reaches every broker of a cluster, so what a publication costs is paid once for each broker, in the
one process that holds the logic; deliveries and clients are shared out among brokers and their I/O processes. More
brokers help with clients and deliveries, then, and not with publications: where these fill the logic's core, the topics
have to be spread over several clusters.

Costs were measured over loopback, where a machine's kernel does the receiver's work within a send; on a server a
network card's driver takes its place, which is not measured here.
"""

from __future__ import annotations

import math

from msgspec import Struct

from benchmarks.capacity.model import Costs, Point

OVERHEAD = 66
"""Bytes around a delivery that travels alone: Ethernet 14, IPv4 20, TCP with timestamps 32."""
MEASURED_PAYLOAD = 140
"""Bytes, at which `Costs.wire_bytes` was measured."""
LEAST, MOST = 3, 99
"""Brokers of a cluster."""


class Server(Struct, frozen=True, kw_only=True):
    """One machine for one broker. `busy`: how full it may be; the rest is for the clients of a broker that died."""

    cores: int = 16
    memory_gib: float = 64.0
    gbit: float = 10.0
    busy: float = 0.6


class CapacityScenario(Struct, frozen=True, kw_only=True):
    """Every client has one topic. `rate`: publications per second of each topic. `payload` in bytes."""

    name: str
    clients: int
    topics: int
    rate: float
    payload: int


class Sizing(Struct, frozen=True, kw_only=True):
    """Of one broker, unless it says otherwise."""

    clusters: int  # that the topics have to be spread over
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
        return self.clusters * self.brokers


def needs(costs: Costs, copy: float, scenario: CapacityScenario, server: Server) -> Sizing:
    """The fewest clusters, then the fewest brokers. `copy`: CPU seconds, over all brokers, that one more broker adds to
    a publication. Raises ValueError when not even 99 brokers do."""
    publications = scenario.topics * scenario.rate
    # with the copies that many brokers make; a few make less
    clusters = max(1, math.ceil(publications * (costs.publication + copy) / server.busy))
    for brokers in range(LEAST, MOST + 1):
        found = _of(costs, copy, scenario, server, clusters, brokers)
        full = {
            "cores": found.cores / server.cores,
            "memory": (found.user_gib + found.kernel_gib) / server.memory_gib,
            "bandwidth": (found.gbit + found.replication_gbit) / server.gbit,
        }
        if max(full.values()) <= server.busy:
            return found
    raise ValueError(f"{scenario.name}: {MOST} brokers do not do")


def _of(
    costs: Costs, copy: float, scenario: CapacityScenario, server: Server, clusters: int, brokers: int
) -> Sizing:  # fmt: skip
    clients = scenario.clients / clusters / brokers
    topics = scenario.topics / clusters
    publications, deliveries = topics * scenario.rate, clients * scenario.rate
    own = Point(clients=round(clients), topics=round(topics), publications=publications, deliveries=deliveries)
    copies = copy * publications / brokers * (brokers - 1)
    logic = costs.publication * publications + copies
    cores = costs.cpu(own) + copies
    wire = costs.wire_bytes + scenario.payload - MEASURED_PAYLOAD + OVERHEAD
    parts = {
        "deliveries": costs.delivery * deliveries, "publications": logic, "heartbeats": costs.client * clients,
        "idle": costs.idle,
    }  # fmt: skip
    processes = max(1, math.ceil((cores - logic) / server.busy))
    return Sizing(
        clusters=clusters,
        brokers=brokers,
        limited_by="the fewest that a cluster has" if brokers == LEAST else max(parts, key=lambda name: parts[name]),
        cores=cores,
        logic=logic,
        # each I/O process is a Python of its own, beside the logic's
        user_gib=(costs.memory(own) + costs.empty_bytes * processes) / 2**30,
        kernel_gib=clients * costs.kernel_bytes / 2**30,
        gbit=deliveries * wire * 8 / 1e9,
        replication_gbit=publications / brokers * (brokers - 1) * (scenario.payload + OVERHEAD) * 8 / 1e9,
        processes=processes,
        descriptors=math.ceil(clients / processes),
    )
