"""Many topics with one subscriber each: the published evaluation's ten million clients, in small. Every publication is
heard once, so nothing is shared: what it costs is a publication and a delivery together."""

from __future__ import annotations

from typing import Any

from benchmarks.bench import Bench
from benchmarks.contenders import Product, Work
from benchmarks.contest import Contest, latencies, micros
from benchmarks.figures import figure, headline, ratios
from benchmarks.stand import Stand

PAYLOAD = 512
"""Bytes, as in the published evaluation."""


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    count = sizes.many_topics
    # every topic once in a turn, more would take longer than it tells
    seconds = max(sizes.seconds, count / sizes.many_rate)
    work = Work(subscribers=count, topics=count, payload=PAYLOAD, rate=1.0 / seconds)
    spec = {"topics": {"maxTopics": 2 * count}, "limits": {"topicsPerClient": count}}
    peers = bench.peers()
    stands = {one.name: Stand(one, work) for one in (Product(spec=spec), *peers)}
    contest = Contest(bench, stands, [one.name for one in peers], seconds=seconds, per="publication and delivery")
    await contest.start(seconds)  # the topics are made here
    turns = await contest.rounds()
    each = micros(turns)
    contenders = {name: {"us": figure(each[name]), "p99_ms": figure(latencies(turns[name])[1])} for name in turns}
    best = min(contest.peers, key=lambda name: contenders[name]["us"].median, default=None)
    return {
        "topics": count,
        **headline(
            us_per_delivery=contenders["product"]["us"], p99_ms=contenders["product"]["p99_ms"],
            ratio_best_peer=None if best is None else ratios(each["product"], each[best]),
        ),
        "best_peer": best,
        "contenders": contenders,
        "missing_peers": bench.missing,
    }  # fmt: skip
