"""Many topics with one subscriber each: the published evaluation's ten million clients, in small. Every publication is
heard once, so nothing is shared: what it costs is a publication and a delivery together."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.bench import Bench
from benchmarks.contenders import Product, Work
from benchmarks.figures import figure, ratios
from benchmarks.rounds import interleaved
from benchmarks.stand import Stand, Turn

PAYLOAD = 512
"""Bytes, as in the published evaluation."""


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    count = sizes.many_topics
    # every topic once in a turn, more would take longer than it tells
    seconds = max(sizes.seconds, count / sizes.many_rate)
    work = Work(subscribers=count, topics=count, payload=PAYLOAD, rate=1.0 / seconds)
    spec = {"topics": {"maxTopics": 2 * count}, "limits": {"topicsPerClient": count}}
    stands = [Stand(one, work) for one in (Product(spec=spec), *bench.peers())]
    for stand in stands:
        bench.say(f"connecting {count:,} subscribers, each with a topic of its own, to: {stand.name}")
        await bench.kept(stand).start()
        await stand.turn(work.rate, seconds)  # the topics are made here
    latencies: dict[str, list[float]] = {stand.name: [] for stand in stands}
    rows = await interleaved(
        sizes.rounds, {stand.name: _turn(stand, seconds, latencies[stand.name]) for stand in stands},
        lambda number, turns: bench.say(
            f"round {number} of {sizes.rounds}, us per publication and delivery: "
            + ", ".join(f"{name} {turn.micros:.1f}" for name, turn in turns.items())
        ),
    )  # fmt: skip
    micros = {name: [turn.micros for turn in turns] for name, turns in rows.items()}
    peers = [name for name in micros if name != "product"]
    contenders = {name: {"us": figure(micros[name]), "p99_ms": figure(latencies[name])} for name in micros}
    best = min(peers, key=lambda name: contenders[name]["us"].median, default=None)
    return {
        "topics": count,
        "us_per_delivery": contenders["product"]["us"],
        "p99_ms": contenders["product"]["p99_ms"],
        "ratio_best_peer": None if best is None else ratios(micros["product"], micros[best]),
        "best_peer": best,
        "contenders": contenders,
        "missing_peers": bench.missing,
    }


def _turn(stand: Stand, seconds: float, latencies: list[float]) -> Callable[[], Awaitable[Turn]]:
    async def turn() -> Turn:
        found, totals = await stand.turn(stand.work.rate, seconds)
        assert totals is not None
        assert totals.latency.p99 is not None
        latencies.append(totals.latency.p99)
        return found

    return turn
