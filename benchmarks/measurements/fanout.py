"""CPU per delivery: the product beside the peers and the raw loops, on the same work, in rounds that take turns.

A single figure says little on a shared machine, so what counts is the median over the rounds of the ratio *within* each
round. The whole is the product's with its share of publications, heartbeats and timers; a second broker without
subscribers tells what the publications alone cost.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from benchmarks import machine
from benchmarks.bench import Bench
from benchmarks.contenders import C_LOOP, Product, Work
from benchmarks.contest import Contest
from benchmarks.contest import micros as micros_of
from benchmarks.figures import figure, headline, ratios
from benchmarks.processes import Broken
from benchmarks.stand import Stand, Turn

PRODUCT, ALONE = "product", "product, publications alone"
WARM = 1.0  # seconds of a turn that is not counted
CALLS = 2.0  # seconds in which system calls are counted
ATTACH = 15.0  # seconds that strace may take until it sees them


async def measure(bench: Bench) -> dict[str, Any]:
    sizes = bench.sizes
    work = Work(subscribers=sizes.subscribers, topics=sizes.topics, payload=sizes.payload, rate=sizes.rate)
    limits, peers = bench.limits(), bench.peers()
    stands = {one.name: Stand(one, work) for one in (*limits, Product(PRODUCT), *peers)}
    stands[ALONE] = Stand(Product(ALONE), work, heard=False)
    contest = Contest(bench, stands, [one.name for one in peers])
    await contest.start(WARM)
    turns = await contest.rounds()
    calls = {name: await _calls(stand) for name, stand in contest.stands.items() if stand.heard}
    return summary(turns, calls, C_LOOP if C_LOOP in stands else None, contest.peers, bench.missing)


async def _calls(stand: Stand) -> float | None:
    """System calls per delivery, everything that the server does in that time; None when they can't be counted."""
    if not machine.CallCounter.available():
        return None
    counter = machine.CallCounter(stand.contender.pids)
    counter.start()
    deadline = time.monotonic() + ATTACH
    while not counter.attached and time.monotonic() < deadline:  # noqa: ASYNC110 - strace does not tell
        await asyncio.sleep(0.1)
    if not counter.attached:
        counter.stop()
        return None
    try:
        turn, _ = await stand.turn(stand.work.rate / 2, CALLS, limit=60.0)
    except Broken:
        turn = None  # too slow under strace
    calls = counter.stop()
    if calls is None or turn is None:
        return None
    return round(sum(calls.values()) / turn.deliveries, 3)


def summary(
    turns: dict[str, list[Turn]], calls: dict[str, float | None], limit: str | None, peers: list[str],
    missing: list[str],
) -> dict[str, Any]:  # fmt: skip
    """`limit`: whom ratios are to, if it is here; another one would make them look better."""
    micros = micros_of(turns)
    least = None if limit is None else micros[limit]
    contenders: dict[str, dict[str, Any]] = {}
    for name, rows in turns.items():
        shared = [turn.deliveries or turns[PRODUCT][place].deliveries for place, turn in enumerate(rows)]
        contenders[name] = {
            "us": figure([(turn.user + turn.system) / n * 1e6 for turn, n in zip(rows, shared, strict=True)]),
            "user_us": figure([turn.user / n * 1e6 for turn, n in zip(rows, shared, strict=True)]),
            "system_us": figure([turn.system / n * 1e6 for turn, n in zip(rows, shared, strict=True)]),
            "syscalls": calls.get(name),
        }
        if rows[0].deliveries:
            contenders[name]["ratio_raw"] = None if least is None else ratios(micros[name], least)
            contenders[name]["receiver_us"] = figure([turn.receiver / turn.deliveries * 1e6 for turn in rows])
    product = turns[PRODUCT]
    without = [
        (whole.user + whole.system - part.user - part.system) / whole.deliveries * 1e6
        for whole, part in zip(product, turns[ALONE], strict=True)
    ]
    best = min(peers, key=lambda name: contenders[name]["us"].median, default=None)
    own = contenders[PRODUCT]
    return {
        **headline(
            us_per_delivery=own["us"], user_us=own["user_us"], system_us=own["system_us"],
            us_without_publication=figure(without), ratio_raw=own["ratio_raw"],
            ratio_raw_without_publication=None if least is None else ratios(without, least),
            ratio_best_peer=None if best is None else ratios(micros[PRODUCT], micros[best]),
        ),
        "syscalls_per_delivery": calls.get(PRODUCT),
        "limit": limit,
        "best_peer": best,
        "peers": {name: contenders[name]["us"].median for name in peers},
        "missing_peers": missing,
        "contenders": contenders,
    }  # fmt: skip
