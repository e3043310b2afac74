"""The page docs/reference/capacity.md, made from a result and a template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from benchmarks.capacity.cluster import ClusterCosts, copy_cost
from benchmarks.capacity.model import Costs, Point, PredictionError, check, fit
from benchmarks.capacity.simulation import FailoverResult, FanOutResult, failover, fan_out
from benchmarks.capacity.sizing import BrokerMachine, CapacityScenario, Sizing, size_clusters

TEMPLATE = Path(__file__).parent / "capacity.template.md"
SERVER = BrokerMachine()
SCENARIOS = (
    CapacityScenario(name="1 M clients, 100 topics, each once a second", clients=1_000_000, topics=100, rate=1.0,
                     payload=140),
    CapacityScenario(name="10 M clients, 1,000 topics, each once a second", clients=10_000_000, topics=1000, rate=1.0,
             payload=140),
    CapacityScenario(name="10 M clients, 1,000 topics, each once a minute", clients=10_000_000, topics=1000,
                     rate=1 / 60,
             payload=140),
    CapacityScenario(name="10 M clients, a topic each, once a minute, 512 bytes", clients=10_000_000, topics=10_000_000,
             rate=1 / 60, payload=512),
)  # fmt: skip
CONNECTS = 5000
"""Connects a second and broker: the default of limits.connectsPerSecond."""

MAX_ERROR = 0.15
"""Relative error at the held-out size, at most."""


class CapacityResult(msgspec.Struct, kw_only=True):
    """The measurements so far. `failed` has the reason of each measurement that failed."""

    machine: dict[str, Any]
    points: list[Point] = msgspec.field(default_factory=list)
    held_out: Point | None = None
    cluster: list[ClusterCosts] = msgspec.field(default_factory=list)
    failed: dict[str, str] = msgspec.field(default_factory=dict)

    @property
    def costs(self) -> Costs:
        """The fitted costs. Raises ValueError when too little is measured."""
        idle = [result.idle_cores for result in self.cluster if result.brokers == 1]
        if not idle:
            raise ValueError("a broker without clients has not been measured")
        return fit(self.points, idle[0])

    def checks(self) -> dict[str, PredictionError]:
        """Return the prediction errors of CPU and memory at the size that the fit does not use. Raise ValueError
        when it is not measured."""
        costs, point = self.costs, self.held_out
        if point is None:
            raise ValueError("the held-out size has not been measured")
        return {"CPU": check(point.cpu, costs.cpu(point)), "memory": check(point.memory, costs.memory(point))}


def table(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a Markdown table."""
    lines = ["| " + " | ".join(columns) + " |", "|" + " --- |" * len(columns)]
    return "\n".join([*lines, *("| " + " | ".join(row) + " |" for row in rows)])


def render(result: CapacityResult) -> str:
    """Return the page. Raise ValueError when too little is measured."""
    costs, copy = result.costs, copy_cost(result.cluster)
    sizings: dict[str, Sizing | str] = {}
    for scenario in SCENARIOS:
        try:
            sizings[scenario.name] = size_clusters(costs, copy, scenario, SERVER)
        except ValueError as reason:
            sizings[scenario.name] = str(reason)
    return TEMPLATE.read_text().format(
        machine=_machine(result.machine), costs=_costs(costs, copy), points=_points(result), checks=_checks(result),
        cluster=_cluster(result.cluster, copy), server=_server(), needs=_needs(sizings),
        fan_out=_fan_out(costs, sizings),
        failover=_failover(costs, sizings),
    )  # fmt: skip


def _machine(machine: Mapping[str, Any]) -> str:
    return f"{machine['cores']} cores of {machine['cpu']}, Linux {machine['kernel']}, Python {machine['python']}"


def _costs(costs: Costs, copy: float) -> str:
    rows = [
        ("broker without clients", f"{costs.idle * 100:.2f}% of a core", f"{costs.empty_bytes / 2**20:.1f} MiB"),
        ("client (heartbeats)", f"{costs.client * 1e6:.2f} us per second", f"{costs.client_bytes / 1024:.2f} KiB"),
        ("delivery", f"{costs.delivery * 1e6:.2f} us", f"{costs.wire_bytes:.0f} bytes on the wire (140 of payload)"),
        ("publication, at each broker", f"{costs.publication * 1e6:.0f} us", ""),
        ("publication, each further broker, over all brokers", f"{copy * 1e6:.0f} us", ""),
        ("topic", "", f"{costs.topic_bytes / 1024:.2f} KiB (with a few cached publications)"),
        (
            "accepting a client",
            f"{costs.connect * 1e6:.0f} us",
            f"{costs.kernel_bytes / 1024:.1f} KiB of kernel memory",
        ),
    ]
    return table(("item", "CPU", "memory"), rows)


def _points(result: CapacityResult) -> str:
    costs = result.costs
    rows = []
    for point in [*result.points, *([result.held_out] if result.held_out else [])]:
        name = "**held out**: " if point is result.held_out else ""
        rows.append((
            f"{name}{point.clients:,}", f"{point.topics:,}", f"{point.publications:,.0f}", f"{point.deliveries:,.0f}",
            f"{point.cpu * 100:.1f}%", f"{costs.cpu(point) * 100:.1f}%", f"{point.memory / 2**20:.1f}",
            f"{costs.memory(point) / 2**20:.1f}",
        ))  # fmt: skip
    columns = ("clients", "topics", "publications/s", "deliveries/s", "CPU measured", "CPU predicted",
               "MiB measured", "MiB predicted")  # fmt: skip
    return table(columns, rows)


def _checks(result: CapacityResult) -> str:
    parts = [f"{name} {check.error * 100:.1f}%" for name, check in result.checks().items()]
    met = all(check.error <= MAX_ERROR for check in result.checks().values())
    return f"{' and '.join(parts)} (target {MAX_ERROR * 100:.0f}%: {'reached' if met else 'MISSED'})"


def _cluster(result: Sequence[ClusterCosts], copy: float) -> str:
    rows = [
        (f"{row.brokers}", f"{row.publication_us:.0f} us", f"{row.idle_cores * 100:.1f}%", f"{row.zookeeper_per_s:.1f}",
         f"{row.zookeeper_cores * 100:.2f}%")
        for row in result
    ]  # fmt: skip
    columns = ("brokers", "CPU of a publication, all brokers", "idle CPU of all brokers",
               "packets/s to ZooKeeper while idle", "ZooKeeper's CPU")  # fmt: skip
    return table(columns, rows)


def _server() -> str:
    return (
        f"{SERVER.cores} cores, {SERVER.memory_gib:.0f} GiB and {SERVER.gbit:.0f} Gbit/s for each broker, "
        f"filled to {SERVER.busy * 100:.0f}% at most"
    )


def _needs(sizings: Mapping[str, Sizing | str]) -> str:
    rows = []
    for name, sizing in sizings.items():
        if isinstance(sizing, str):
            rows.append((name, sizing, *[""] * 8))
            continue
        rows.append((
            name, f"{sizing.clusters}", f"{sizing.brokers}", f"{sizing.processes}",
            f"{sizing.cores:.1f} ({sizing.logic:.2f})",
            f"{sizing.user_gib:.1f} + {sizing.kernel_gib:.1f}", f"{sizing.gbit:.2f} + {sizing.replication_gbit:.3f}",
            f"{sizing.descriptors:,}", f"{sizing.cores * sizing.all_brokers:.0f}", sizing.limited_by,
        ))  # fmt: skip
    columns = ("", "clusters", "brokers per cluster", "I/O processes", "cores (logic)", "GiB user + kernel",
               "Gbit/s clients + brokers", "descriptors per process", "cores of all brokers",
               "largest part of a broker's CPU")  # fmt: skip
    return table(columns, rows)


def _fan_out(costs: Costs, sizings: Mapping[str, Sizing | str]) -> str:
    rows = []
    for scenario in SCENARIOS:
        sizing = sizings[scenario.name]
        if isinstance(sizing, str):
            continue
        topics = max(1, scenario.topics // sizing.clusters)
        for staggered in (True, False):
            result: FanOutResult = fan_out(
                subscribers=scenario.clients // sizing.all_brokers, processes=sizing.processes, topics=topics,
                rate=scenario.rate, delivery=costs.delivery, publication=0.0, staggered=staggered,
                seconds=max(10.0, 2 / scenario.rate),
            )  # fmt: skip
            rows.append((
                scenario.name, "evenly over the period" if staggered else "all at once", f"{result.median:,.1f}",
                f"{result.p99:,.1f}", f"{result.largest:,.1f}", f"{result.busy * 100:.0f}%",
            ))  # fmt: skip
    columns = ("", "topics publish", "median ms", "P99 ms", "largest ms", "I/O process utilisation")
    return table(columns, rows)


def _failover(costs: Costs, sizings: Mapping[str, Sizing | str]) -> str:
    rows = []
    for scenario in SCENARIOS:
        sizing = sizings[scenario.name]
        if isinstance(sizing, str):
            continue
        idle = (
            1 - (sizing.cores - sizing.logic) / sizing.processes
        )  # share of an I/O process that deliveries and heartbeats leave
        for limit, limit_text in ((CONNECTS, f"{CONNECTS:,} (the default)"), (4 * CONNECTS, f"{4 * CONNECTS:,}")):
            result: FailoverResult = failover(
                clients=scenario.clients // sizing.all_brokers, brokers=sizing.brokers - 1, processes=sizing.processes,
                connect=costs.connect / idle, connects_per_second=limit,
            )  # fmt: skip
            arrivals = " ".join(f"{sum(result.arrivals[ten : ten + 100]):,}" for ten in range(0, 600, 100))
            rows.append((
                scenario.name, f"{result.clients:,}", limit_text, f"{result.median:.1f}", f"{result.p99:.1f}",
                f"{result.largest:.1f}", f"{result.given_up:,}", arrivals,
            ))  # fmt: skip
    columns = ("", "clients of the failed broker", "connectsPerSecond", "median s", "P99 s", "largest s",
               "attempts given up", "attempts in six periods of 10 s")  # fmt: skip
    return table(columns, rows)
