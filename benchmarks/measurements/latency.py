"""Latency under load: at 25, 50 and 75% of the highest rate of the best peer, for product and peers alike.

Publishers are an open loop, latency counts from the due time of a publication, and topics are staggered over the
period. A peer that loses a publication or closes a connection at a load has no figure there, and the result says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from benchmarks.benchmark import Benchmark, NotMeasurable
from benchmarks.comparison import interleaved
from benchmarks.processes import MeasurementFailed
from benchmarks.rig import Rig
from benchmarks.stats import ratios, round_stats
from benchmarks.systems import PEERS, Product, System, Workload

FIRST_RATE, RATE_STEP = 20_000.0, 1.35
"""Deliveries per second at the start of the search for saturation, and the factor of its steps."""

MAX_P99_MS = 500.0
"""Milliseconds of P99 above which a server does not sustain a rate."""

MIN_SHARE = 1 / 8
"""Share of the first rate below which the search ends: the server then sustains no rate."""

LOADS = (25, 50, 75)
"""Loads in percent of the best peer's saturation."""


class LatencyResult(Struct):
    """Latencies of one system in one round, in milliseconds; None when the system failed, for the reason `problem`."""

    p50: float | None = None
    p99: float | None = None
    problem: str = ""


class RestartableRig:
    """A rig that is built again after its system has failed."""

    def __init__(self, bench: Benchmark, make: Callable[[], System], work: Workload) -> None:
        self._make = make
        self._work = work
        self._rig: Rig | None = None
        bench.stack.push_async_callback(self.stop)

    async def run_round(self, deliveries: float, seconds: float) -> LatencyResult:
        rate = deliveries / self._work.subscribers
        try:
            if self._rig is None:
                self._rig = Rig(self._make(), self._work)
                await self._rig.start()
            _, totals = await self._rig.run_round(rate, max(seconds, 1.0 / rate), limit=15.0)
        except MeasurementFailed as reason:
            await self.stop()
            return LatencyResult(problem=str(reason).splitlines()[0])
        assert totals is not None
        return LatencyResult(totals.latency.median, totals.latency.p99)

    async def stop(self) -> None:
        rig, self._rig = self._rig, None
        if rig is not None:
            await rig.stop()


async def measure(bench: Benchmark) -> dict[str, Any]:
    """Find the peers' saturation, then measure the latency of all systems at each load.

    Raise NotMeasurable without an installed peer, MeasurementFailed when no peer sustains any rate.
    """
    sizes = bench.sizes
    work = Workload(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    installed = [name for name in PEERS if name not in bench.missing]
    if not installed:
        raise NotMeasurable("no peer is installed, whose saturation defines the loads; run `make bench-peers`")
    rigs = {name: RestartableRig(bench, PEERS[name], work) for name in installed}
    saturation = {name: await _saturation(bench, name, rig) for name, rig in rigs.items()}
    best = max(saturation.values())
    if not best:
        raise MeasurementFailed(
            "no peer keeps up with even the lowest rate, so there is nothing to take 25, 50 and 75% of"
        )
    for name in unsaturated(saturation, sizes.highest):
        bench.say(f"{name}: sustains {saturation[name]:,.0f} deliveries/s or more; the search ends there")
    rigs = {"product": RestartableRig(bench, Product, work), **rigs}
    loads = {}
    for load in LOADS:
        deliveries = best * load / 100
        bench.say(f"{load}% of {best:,.0f} deliveries/s")
        rows = await interleaved(
            sizes.rounds, {name: _part(rig, deliveries, sizes.latency_seconds) for name, rig in rigs.items()},
            lambda number, results: bench.say(
                f"round {number} of {sizes.rounds}, P99 ms: " + ", ".join(f"{n} {s.p99}" for n, s in results.items())
            ),
        )  # fmt: skip
        loads[str(load)] = {"deliveries_per_s": round(deliveries), **summary(rows)}
    return {
        "saturation_per_s": saturation,
        "not_saturated": unsaturated(saturation, sizes.highest),
        "loads": loads,
        "worst_p99_ratio": worst(loads),
        "missing_peers": bench.missing,
    }


def _part(rig: RestartableRig, deliveries: float, seconds: float) -> Callable[[], Awaitable[LatencyResult]]:
    return lambda: rig.run_round(deliveries, seconds)


async def _saturation(bench: Benchmark, name: str, rig: RestartableRig) -> float:
    """Return the highest deliveries per second that a system sustains: upwards from the first rate, or downwards when
    that is too high already. 0 when it sustains none."""
    first = min(FIRST_RATE, bench.sizes.highest / 2)
    rate, sustained = first, 0.0
    while MIN_SHARE * first <= rate <= bench.sizes.highest:
        measured = await rig.run_round(rate, bench.sizes.latency_seconds)
        if measured.p99 is None or measured.p99 > MAX_P99_MS:
            bench.say(
                f"{name}: does not sustain {rate:,.0f} deliveries/s ({measured.problem or f'P99 {measured.p99} ms'})"
            )
            if sustained:
                break
            rate /= 2
            continue
        sustained = rate
        if rate < first:
            break
        rate *= RATE_STEP
    bench.say(f"{name}: sustains {sustained:,.0f} deliveries/s")
    return sustained


def unsaturated(saturation: Mapping[str, float], highest: float) -> list[str]:
    """Return the systems that sustained the highest rate of the search, so that their saturation is unknown."""
    return [name for name, rate in saturation.items() if rate * RATE_STEP > highest]


def worst(loads: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Return the worst ratio of all loads, or None when the product failed at one. A load at which every peer failed
    has no ratio."""
    if any(load["contenders"]["product"]["problems"] for load in loads.values()):
        return None
    return max(
        (load["p99_ratio_best_peer"].median for load in loads.values() if load["p99_ratio_best_peer"]), default=None
    )


def summary(rows: dict[str, list[LatencyResult]]) -> dict[str, Any]:
    """Return the result of one load. The best peer is the one with the lowest median P99 of those that did not fail."""
    systems: dict[str, Any] = {}
    complete: dict[str, list[float]] = {}
    for name, results in rows.items():
        p50 = [result.p50 for result in results if result.p50 is not None]
        p99 = [result.p99 for result in results if result.p99 is not None]
        systems[name] = {
            "p50_ms": round_stats(p50) if p50 else None,
            "p99_ms": round_stats(p99) if p99 else None,
            "problems": sorted({result.problem for result in results if result.problem}),
        }
        if len(p99) == len(results):
            complete[name] = p99
    peers = [name for name in complete if name != "product"]
    best = min(peers, key=lambda name: systems[name]["p99_ms"].median, default=None)
    ratio = ratios(complete["product"], complete[best]) if best is not None and "product" in complete else None
    return {"contenders": systems, "best_peer": best, "p99_ratio_best_peer": ratio}
