"""CPU per message with batching (100 ms), beside the same without: many messages a second to each client.

Per message, as one delivery then holds several. The broker with batching is the product's own option; a tree whose
cluster file does not know it has no figure here.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

from benchmarks.bench import Bench, Missing
from benchmarks.contenders import Product, Unsupported, Work
from benchmarks.figures import figure, ratios
from benchmarks.rounds import interleaved
from benchmarks.stand import Stand, Turn

INTERVAL = "100ms"
SPEC = {"delivery": {"batching": {"maxDelay": INTERVAL}}}
WITH, WITHOUT = "batched", "unbatched"


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    work = Work(subscribers=sizes.batching_subscribers, topics=1, payload=sizes.payload, rate=sizes.batching_rate)
    stands = {WITHOUT: Stand(Product(WITHOUT), work), WITH: Stand(Product(WITH, spec=SPEC), work)}
    for stand in stands.values():
        try:
            await bench.kept(stand).start()
        except Unsupported as reason:
            raise Missing(f"this product's cluster file has no delivery.batching: {reason}") from reason
        await stand.turn(work.rate, 1.0)
    delays: dict[str, list[float]] = {name: [] for name in stands}
    rows = await interleaved(
        sizes.rounds, {name: _turn(stand, sizes.seconds, delays[name]) for name, stand in stands.items()},
        lambda number, turns: bench.say(
            f"round {number} of {sizes.rounds}, us per message: "
            + ", ".join(f"{name} {turn.micros:.2f}" for name, turn in turns.items())
        ),
    )  # fmt: skip
    micros = {name: [turn.micros for turn in turns] for name, turns in rows.items()}
    return {
        "interval": INTERVAL,
        "ratio_unbatched": ratios(micros[WITH], micros[WITHOUT]),
        "us_per_message": figure(micros[WITH]),
        "us_unbatched": figure(micros[WITHOUT]),
        "median_ms": {name: figure(values) for name, values in delays.items()},
    }


def _turn(stand: Stand, seconds: float, delays: list[float]) -> Callable[[], Awaitable[Turn]]:
    async def turn() -> Turn:
        found, totals = await stand.turn(stand.work.rate, seconds)
        assert totals is not None
        assert totals.latency.median is not None
        delays.append(totals.latency.median)
        return found

    return turn
