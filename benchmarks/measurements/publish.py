"""Acknowledged publishing with two copies of three brokers, beside JetStream with three replicas in memory: as fast as
it goes with many publications on their way, and one at a time.

Nothing is pinned: six servers, publisher and kernel share all cores, as they would in each contender's own deployment.
JetStream's publishers have its leader's connection first; the product's topics are spread over all coordinators.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from msgspec import Struct

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.contenders import Contender, JetStream, Product, Work
from benchmarks.figures import Figure, figure, headline, ratios
from benchmarks.processes import Broken
from benchmarks.rounds import interleaved

PRODUCT, PEER = "product", "jetstream"


class Run(Struct):
    """`times` in seconds, of single publications."""

    per_s: float
    cpu_us: float  # of all the servers' processes, per publication
    times: list[float]
    publisher_us: float


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    work = Work(subscribers=0, topics=sizes.topics, payload=sizes.payload, rate=0.0)
    contenders: dict[str, Contender] = {PRODUCT: Product(brokers=3)}
    if "nats" not in bench.missing:
        contenders[PEER] = JetStream()
    for name, contender in contenders.items():
        bench.say(f"starting three servers of: {name}")
        bench.stack.push_async_callback(contender.stop)

    async def dropped(name: str, reason: Broken) -> None:
        if name != PEER:
            raise reason
        bench.drop(name, reason)
        await contenders.pop(PEER).stop()

    for name, contender in list(contenders.items()):
        try:
            await contender.start(work, None)
            await contender.publishes(work, None)
            await contender.pipeline(sizes.window, 0.5)  # warm
        except Broken as reason:
            await dropped(name, reason)
    found: dict[str, dict[str, list[Run]]] = {}
    for mode, window in (("pipelined", sizes.window), ("single", 1)):
        found[mode] = await interleaved(
            sizes.rounds, {name: _turn(one, window, sizes.publish_seconds) for name, one in contenders.items()},
            lambda number, runs, mode=mode: bench.say(  # type: ignore[misc]
                f"round {number} of {sizes.rounds}, {mode}: "
                + ", ".join(f"{name} {run.per_s:,.0f}/s, {run.cpu_us:.0f} us CPU each" for name, run in runs.items())
            ),
            dropped,
        )  # fmt: skip
    whole = {mode: {name: rows for name, rows in runs.items() if name in contenders} for mode, runs in found.items()}
    return summary(whole["pipelined"], whole["single"], [] if PEER in contenders else [PEER])


def _turn(contender: Contender, window: int, seconds: float) -> Callable[[], Awaitable[Run]]:
    async def turn() -> Run:
        before = machine.cpu(contender.pids)
        done = await contender.pipeline(window, seconds)
        spent = machine.cpu(contender.pids) - before
        if not done.answered:
            raise Broken(f"{contender.name} acknowledged nothing")
        each = done.answered
        return Run(
            done.answered / done.seconds, spent.total / each * 1e6, done.times, (done.user + done.system) / each * 1e6
        )

    return turn


def summary(pipelined: dict[str, list[Run]], single: dict[str, list[Run]], missing: list[str]) -> dict[str, Any]:
    def times(name: str, fraction: float) -> list[float]:
        return [
            sorted(run.times)[min(len(run.times) - 1, int(fraction * len(run.times)))] * 1e3 for run in single[name]
        ]

    contenders = {
        name: {
            "pipelined_per_s": figure([run.per_s for run in pipelined[name]], 1),
            "pipelined_cpu_us": figure([run.cpu_us for run in pipelined[name]], 2),
            "single_ms": figure(times(name, 0.5)),
            "single_p99_ms": figure(times(name, 0.99)),
            "single_cpu_us": figure([run.cpu_us for run in single[name]], 2),
            "publisher_us": figure([run.publisher_us for run in pipelined[name]], 2),
        }
        for name in pipelined
    }
    own = contenders[PRODUCT]
    beside: dict[str, Figure | None] = {"ratio_jetstream": None, "single_ratio_jetstream": None}
    if PEER in pipelined:
        beside = {
            "ratio_jetstream": ratios(*([run.per_s for run in pipelined[name]] for name in (PRODUCT, PEER))),
            "single_ratio_jetstream": ratios(times(PRODUCT, 0.5), times(PEER, 0.5)),
            "cpu_ratio_jetstream": ratios(*([run.cpu_us for run in pipelined[name]] for name in (PRODUCT, PEER))),
        }
    return {
        **headline(pipelined_per_s=own["pipelined_per_s"], pipelined_cpu_us=own["pipelined_cpu_us"], **beside),
        "single_ms": own["single_ms"],
        "single_p99_ms": own["single_p99_ms"],
        "single_cpu_us": own["single_cpu_us"],
        "contenders": contenders,
        "missing_peers": missing,
    }
