"""Fan-out and failover of clusters that don't fit onto one machine, as queues with the model's costs. Pure: what is
random follows from the seed.

Fan-out: a broker's I/O processes each hold an equal share of the clients; a publication that reaches a broker keeps
each of them busy for its own subscribers, one delivery after the other, behind what it is busy with already. Topics are
staggered evenly, or all speak at once (the herd that a careless publisher makes).

Failover: one broker's clients come back as the product's clients do: a random wait up to `FIRST`, a random other
broker, and when that refuses (its limit of connects per second, or a queue of its own) a wait that doubles. A broker
takes connects one after another, each with the measured cost, on its I/O processes.
"""

from __future__ import annotations

import heapq
from random import Random

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

FloatArray = npt.NDArray[np.float64]
FIRST, LONGEST = 1.0, 30.0
"""Seconds: the client's first retry comes after a random part of it, later ones of twice as much, up to the longest."""
FOLLOWED = 5_000
"""Clients that are followed one by one; of more, each stands for several."""
HANDSHAKE = 10.0
"""Seconds that a client waits for its receipt before it tries elsewhere."""


class Latencies(Struct, frozen=True, kw_only=True):
    """Milliseconds from the publication to a delivery, as the broker's own work makes them."""

    median: float
    p99: float
    largest: float
    busy: float  # how full an I/O process is


def fan_out(
    *, subscribers: int, processes: int, topics: int, rate: float, delivery: float, publication: float,
    staggered: bool = True, seconds: float = 10.0,
) -> Latencies:  # fmt: skip
    """`subscribers` of one broker, evenly over `topics` and `processes`; costs in seconds. One process stands for all:
    they do the same at the same time."""
    each = subscribers / processes / topics  # deliveries of a publication in one process
    # at most so many topics are followed: with less than one delivery each, several topics make one
    merged = max(1, round(1 / each)) if each < 1 else 1
    streams = max(1, topics // merged)
    deliveries = max(1, round(subscribers / processes / streams))
    service = deliveries * delivery + publication * merged
    offsets = np.arange(streams) / streams / rate if staggered else np.zeros(streams)
    arrivals = np.sort((offsets[:, None] + np.arange(max(1, round(seconds * rate)))[None, :] / rate).ravel())
    ends = queue(arrivals, service)
    begins = ends - service - arrivals
    # within a fan-out the k-th subscriber waits for those before it; nine of them stand for all
    shares = (np.arange(9) + 0.5) / 9
    waits = (begins[:, None] + publication * merged + shares[None, :] * deliveries * delivery).ravel() * 1e3
    return Latencies(
        median=float(np.median(waits)), p99=float(np.quantile(waits, 0.99)), largest=float(waits.max()),
        busy=service * streams * rate,
    )  # fmt: skip


def queue(arrivals: FloatArray, service: float) -> FloatArray:
    """When each is done: first come, first served, each taking `service`."""
    order = np.arange(len(arrivals))
    found: FloatArray = np.maximum.accumulate(arrivals - order * service) + (order + 1) * service
    return found


class Failover(Struct, frozen=True, kw_only=True):
    """Seconds from the lost link to the receipt; `refused` attempts; `arrivals` per tenth of a second, at all."""

    clients: int
    median: float
    p99: float
    largest: float
    refused: int
    arrivals: list[int]


def failover(
    *, clients: int, brokers: int, processes: int, connect: float, connects_per_second: float, seed: int = 1
) -> Failover:  # fmt: skip
    """`clients` of the broker that died; `brokers` are left; `connect` is the CPU of taking one, in seconds."""
    each = -(-clients // FOLLOWED)
    found = _followed(clients // each, brokers, connect / processes * each, connects_per_second / each, Random(seed))
    return structs.replace(
        found, clients=clients, refused=found.refused * each, arrivals=[count * each for count in found.arrivals]
    )


def _followed(clients: int, brokers: int, connect: float, connects_per_second: float, chance: Random) -> Failover:
    # (time, client, attempt): ties are broken by the client's number
    events = [(chance.random() * FIRST, number, 1) for number in range(clients)]
    heapq.heapify(events)
    free = [0.0] * brokers  # when a broker's processes have taken what came before
    tokens = [connects_per_second] * brokers  # of one second's worth
    filled = [0.0] * brokers
    took = np.zeros(clients)
    refused, arrivals = 0, [0]
    while events:
        now, number, attempt = heapq.heappop(events)
        while len(arrivals) <= int(now * 10):
            arrivals.append(0)
        arrivals[int(now * 10)] += 1
        broker = chance.randrange(brokers)
        tokens[broker] = min(connects_per_second, tokens[broker] + (now - filled[broker]) * connects_per_second)
        filled[broker] = now
        waits = max(0.0, free[broker] - now)
        if tokens[broker] < 1 or waits > HANDSHAKE:
            refused += 1
            wait = chance.random() * min(LONGEST, FIRST * 2.0**attempt)
            heapq.heappush(events, (now + wait, number, attempt + 1))
            continue
        tokens[broker] -= 1
        free[broker] = now + waits + connect
        took[number] = free[broker]
    return Failover(
        clients=clients, median=float(np.median(took)), p99=float(np.quantile(took, 0.99)), largest=float(took.max()),
        refused=refused, arrivals=arrivals,
    )  # fmt: skip
