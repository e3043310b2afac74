"""CPU per message with batching (100 ms), beside the same without: many messages a second to each client.

Per message, as one delivery then holds several. The broker with batching is the product's own option; a tree whose
cluster file does not know it has no figure here.
"""

from __future__ import annotations

from typing import Any

from benchmarks.bench import Bench, Missing
from benchmarks.contenders import Product, Unsupported, Work
from benchmarks.contest import Contest, latencies, micros
from benchmarks.figures import figure, headline, ratios
from benchmarks.stand import Stand

INTERVAL = "100ms"
SPEC = {"delivery": {"batching": {"maxDelay": INTERVAL}}}
WITH, WITHOUT = "batched", "unbatched"


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    work = Work(subscribers=sizes.batching_subscribers, topics=1, payload=sizes.payload, rate=sizes.batching_rate)
    stands = {WITHOUT: Stand(Product(WITHOUT), work), WITH: Stand(Product(WITH, spec=SPEC), work)}
    contest = Contest(bench, stands, per="message")
    try:
        await contest.start(1.0)
    except Unsupported as reason:
        raise Missing(f"this product's cluster file has no delivery.batching: {reason}") from reason
    turns = await contest.rounds()
    each = micros(turns)
    return {
        "interval": INTERVAL,
        **headline(
            ratio_unbatched=ratios(each[WITH], each[WITHOUT]), us_per_message=figure(each[WITH]),
            us_unbatched=figure(each[WITHOUT]),
        ),
        "median_ms": {name: figure(latencies(rows)[0]) for name, rows in turns.items()},
    }  # fmt: skip
