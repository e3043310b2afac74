"""Acknowledged publishing with two copies on three brokers, compared with JetStream with three replicas in memory:
with many pending publications, and one at a time.

Nothing is pinned: six servers, publisher and kernel share all cores, as they would in each system's own deployment.
JetStream's publishers connect to its leader first. The product's topics are spread over all coordinators.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from benchmarks import machine
from benchmarks.benchmark import Benchmark
from benchmarks.comparison import interleaved
from benchmarks.processes import MeasurementFailed
from benchmarks.stats import RoundStats, ratios, round_stats, with_medians
from benchmarks.systems import JetStream, Product, System, Workload

PRODUCT, PEER = "product", "jetstream"


class PublishResult(Struct):
    """The publishing of one system in one round. `times` are the seconds from each publication to its answer;
    empty when many publications are pending at once."""

    per_s: float
    cpu_us: float  # of all the servers' processes, per publication
    times: list[float]
    publisher_us: float


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Measure rate, CPU and time of acknowledged publications of the product and JetStream."""
    sizes = bench.sizes
    work = Workload(subscribers=0, topics=sizes.topics, payload=sizes.payload, rate=0.0)
    systems: dict[str, System] = {PRODUCT: Product(brokers=3)}
    if "nats" not in bench.missing:
        systems[PEER] = JetStream()
    for name, system in systems.items():
        bench.say(f"starting three servers of: {name}")
        bench.stack.push_async_callback(system.stop)

    async def drop(name: str, reason: MeasurementFailed) -> None:
        if name != PEER:
            raise reason
        bench.drop(name, reason)
        await systems.pop(PEER).stop()

    for name, system in list(systems.items()):
        try:
            await system.start(work, None)
            await system.start_publisher(work, None)
            await system.publish_closed_loop(sizes.window, 0.5)  # not counted
        except MeasurementFailed as reason:
            await drop(name, reason)
    runs: dict[str, dict[str, list[PublishResult]]] = {}
    for mode, window in (("pipelined", sizes.window), ("single", 1)):
        runs[mode] = await interleaved(
            sizes.rounds, {name: _part(system, window, sizes.publish_seconds) for name, system in systems.items()},
            lambda number, runs, mode=mode: bench.say(  # type: ignore[misc]
                f"round {number} of {sizes.rounds}, {mode}: "
                + ", ".join(f"{name} {run.per_s:,.0f}/s, {run.cpu_us:.0f} us CPU each" for name, run in runs.items())
            ),
            drop,
        )  # fmt: skip
    complete = {mode: {name: rows for name, rows in runs.items() if name in systems} for mode, runs in runs.items()}
    return summary(complete["pipelined"], complete["single"], [] if PEER in systems else [PEER])


def _part(system: System, window: int, seconds: float) -> Callable[[], Awaitable[PublishResult]]:
    async def part() -> PublishResult:
        before = machine.cpu(system.pids)
        done = await system.publish_closed_loop(window, seconds)
        spent = machine.cpu(system.pids) - before
        if not done.answered:
            raise MeasurementFailed(f"{system.name} acknowledged nothing")
        each = done.answered
        return PublishResult(
            done.answered / done.seconds, spent.total / each * 1e6, done.times, (done.user + done.system) / each * 1e6
        )

    return part


def summary(
    pipelined: dict[str, list[PublishResult]], single: dict[str, list[PublishResult]], missing: list[str]
) -> dict[str, Any]:
    def times(name: str, fraction: float) -> list[float]:
        return [
            sorted(run.times)[min(len(run.times) - 1, int(fraction * len(run.times)))] * 1e3 for run in single[name]
        ]

    systems = {
        name: {
            "pipelined_per_s": round_stats([run.per_s for run in pipelined[name]], 1),
            "pipelined_cpu_us": round_stats([run.cpu_us for run in pipelined[name]], 2),
            "single_ms": round_stats(times(name, 0.5)),
            "single_p99_ms": round_stats(times(name, 0.99)),
            "single_cpu_us": round_stats([run.cpu_us for run in single[name]], 2),
            "publisher_us": round_stats([run.publisher_us for run in pipelined[name]], 2),
        }
        for name in pipelined
    }
    own = systems[PRODUCT]
    comparison: dict[str, RoundStats | None] = {"ratio_jetstream": None, "single_ratio_jetstream": None}
    if PEER in pipelined:
        comparison = {
            "ratio_jetstream": ratios(*([run.per_s for run in pipelined[name]] for name in (PRODUCT, PEER))),
            "single_ratio_jetstream": ratios(times(PRODUCT, 0.5), times(PEER, 0.5)),
            "cpu_ratio_jetstream": ratios(*([run.cpu_us for run in pipelined[name]] for name in (PRODUCT, PEER))),
        }
    return {
        **with_medians(pipelined_per_s=own["pipelined_per_s"], pipelined_cpu_us=own["pipelined_cpu_us"], **comparison),
        "single_ms": own["single_ms"],
        "single_p99_ms": own["single_p99_ms"],
        "single_cpu_us": own["single_cpu_us"],
        "contenders": systems,
        "missing_peers": missing,
    }
