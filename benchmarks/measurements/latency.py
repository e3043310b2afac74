"""Latency under load: 25, 50 and 75% of what the best peer carries, for product and peers alike.

Publishers are an open loop, latency counts from when a publication was due, topics are staggered over the period. A
peer that loses something or closes a connection at a load has no figure there, and the result says so.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from msgspec import Struct

from benchmarks.bench import Bench, Missing
from benchmarks.contenders import PEERS, Contender, Product, Work
from benchmarks.figures import figure, ratios
from benchmarks.processes import Broken
from benchmarks.rounds import interleaved
from benchmarks.stand import Stand

FIRST, STEP = 20_000.0, 1.35  # deliveries per second of the search for saturation
SATURATED = 500.0  # milliseconds of P99 from which a server does not keep up
FEWEST = 1 / 8  # of the first step: whoever does not keep up even with that carries nothing
LOADS = (25, 50, 75)  # percent of the best peer's saturation


class Seen(Struct):
    """Milliseconds; None where the contender failed, and why."""

    p50: float | None = None
    p99: float | None = None
    problem: str = ""


class Place:
    """A stand that is built anew when the contender fails on it."""

    def __init__(self, bench: Bench, make: Callable[[], Contender], work: Work) -> None:
        self._make = make
        self._work = work
        self._stand: Stand | None = None
        bench.stack.push_async_callback(self.stop)

    async def turn(self, deliveries: float, seconds: float) -> Seen:
        rate = deliveries / self._work.subscribers
        try:
            if self._stand is None:
                self._stand = Stand(self._make(), self._work)
                await self._stand.start()
            _, totals = await self._stand.turn(rate, max(seconds, 1.0 / rate), limit=15.0)
        except Broken as reason:
            await self.stop()
            return Seen(problem=str(reason).splitlines()[0])
        assert totals is not None
        return Seen(totals.latency.median, totals.latency.p99)

    async def stop(self) -> None:
        stand, self._stand = self._stand, None
        if stand is not None:
            await stand.stop()


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    work = Work(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    present = [name for name in PEERS if name not in bench.missing]
    if not present:
        raise Missing("no peer is here, whose saturation is the measure: `make bench-peers` gets them")
    places = {name: Place(bench, PEERS[name], work) for name in present}
    saturation = {name: await _saturation(bench, name, place) for name, place in places.items()}
    best = max(saturation.values())
    if not best:
        raise Broken("no peer keeps up with even the lowest rate, so there is nothing to take 25, 50 and 75% of")
    for name in unsaturated(saturation, sizes.highest):
        bench.say(f"{name}: carries {saturation[name]:,.0f} deliveries/s or more: the search ends there")
    places = {"product": Place(bench, Product, work), **places}
    loads = {}
    for load in LOADS:
        deliveries = best * load / 100
        bench.say(f"{load}% of {best:,.0f} deliveries/s")
        rows = await interleaved(
            sizes.rounds, {name: _turn(place, deliveries, sizes.latency_seconds) for name, place in places.items()},
            lambda number, seen: bench.say(
                f"round {number} of {sizes.rounds}, P99 ms: " + ", ".join(f"{n} {s.p99}" for n, s in seen.items())
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


def _turn(place: Place, deliveries: float, seconds: float) -> Callable[[], Awaitable[Seen]]:
    return lambda: place.turn(deliveries, seconds)


async def _saturation(bench: Bench, name: str, place: Place) -> float:
    """Deliveries per second of the last step at which it kept up: upwards from the first, or downwards when that is too
    much already. 0 when it never did."""
    first = min(FIRST, bench.sizes.highest / 2)
    rate, kept = first, 0.0
    while FEWEST * first <= rate <= bench.sizes.highest:
        seen = await place.turn(rate, bench.sizes.latency_seconds)
        if seen.p99 is None or seen.p99 > SATURATED:
            bench.say(
                f"{name}: does not keep up with {rate:,.0f} deliveries/s ({seen.problem or f'P99 {seen.p99} ms'})"
            )
            if kept:
                break
            rate /= 2
            continue
        kept = rate
        if rate < first:
            break
        rate *= STEP
    bench.say(f"{name}: carries {kept:,.0f} deliveries/s")
    return kept


def unsaturated(saturation: Mapping[str, float], highest: float) -> list[str]:
    """Those for whom the search ended before they did not keep up: loads are shares of less than they carry."""
    return [name for name, kept in saturation.items() if kept * STEP > highest]


def worst(loads: Mapping[str, Mapping[str, Any]]) -> float | None:
    """Of all loads; None when the product failed at any. A load at which every peer failed has no ratio."""
    if any(one["contenders"]["product"]["problems"] for one in loads.values()):
        return None
    return max(
        (one["p99_ratio_best_peer"].median for one in loads.values() if one["p99_ratio_best_peer"]), default=None
    )


def summary(rows: dict[str, list[Seen]]) -> dict[str, Any]:
    """The best peer is the one with the lowest median of P99, of those that did not fail."""
    contenders: dict[str, Any] = {}
    whole: dict[str, list[float]] = {}
    for name, seen in rows.items():
        p50 = [one.p50 for one in seen if one.p50 is not None]
        p99 = [one.p99 for one in seen if one.p99 is not None]
        contenders[name] = {
            "p50_ms": figure(p50) if p50 else None,
            "p99_ms": figure(p99) if p99 else None,
            "problems": sorted({one.problem for one in seen if one.problem}),
        }
        if len(p99) == len(seen):
            whole[name] = p99
    peers = [name for name in whole if name != "product"]
    best = min(peers, key=lambda name: contenders[name]["p99_ms"].median, default=None)
    ratio = ratios(whole["product"], whole[best]) if best is not None and "product" in whole else None
    return {"contenders": contenders, "best_peer": best, "p99_ratio_best_peer": ratio}
