"""Fan-out and failover of clusters that don't fit onto one machine, as queues with the model's costs. Pure: what is
random follows from the seed.

Fan-out: a broker's I/O processes each hold an equal share of the clients; a publication that reaches a broker keeps
each of them busy for its own subscribers, one delivery after the other, behind what it is busy with already. Topics are
staggered evenly, or all speak at once (the herd that a careless publisher makes).

Failover: one broker's clients come back as the product's clients do: a random wait up to `FIRST`, a random other
broker, and when that has not answered for `HANDSHAKE` seconds a wait that doubles. A broker accepts so many a second;
the others wait in the kernel's backlog, and when that is full, until their own kernel asks again. It takes connects one
after another, each with the measured cost, on its I/O processes.
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
"""Clients that are followed one by one; of more, each rigs for several."""
HANDSHAKE = 10.0
"""Seconds that a client waits for its receipt before it tries elsewhere."""
BURST = 0.25
"""Seconds' worth of connects that a broker accepts at once."""
BACKLOG = 4096
"""Connections that wait in a broker's kernel until they are accepted."""


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
    """`subscribers` of one broker, evenly over `topics` and `processes`; costs in seconds. One process rigs for all:
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
    # within a fan-out the k-th subscriber waits for those before it; nine of them rig for all
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
    """Seconds from the lost link to the receipt; attempts that were `given_up`; `arrivals`: attempts per tenth of a
    second, at all."""

    clients: int
    median: float
    p99: float
    largest: float
    given_up: int
    arrivals: list[int]


def failover(
    *, clients: int, brokers: int, processes: int, connect: float, connects_per_second: float, backlog: float = BACKLOG,
    seed: int = 1,
) -> Failover:  # fmt: skip
    """`clients` of the broker that died; `brokers` are left; `connect` is the CPU of taking one, in seconds."""
    each = -(-clients // FOLLOWED)
    found = _followed(
        clients // each, brokers, connect / processes * each, connects_per_second / each, backlog / each, Random(seed)
    )
    return structs.replace(
        found, clients=clients, given_up=found.given_up * each, arrivals=[count * each for count in found.arrivals]
    )


def _followed(
    clients: int, brokers: int, connect: float, connects_per_second: float, backlog: float, chance: Random
) -> Failover:
    # (time, client, attempt, its broker, when it began); a new attempt has no broker yet
    events = [(chance.random() * FIRST, number, 1, -1, 0.0) for number in range(clients)]
    heapq.heapify(events)
    free = [0.0] * brokers  # when a broker's processes have taken what came before
    due = [0.0] * brokers  # when the next is accepted, but for the burst
    took = np.zeros(clients)
    given_up, arrivals = 0, [0]
    while events:
        now, number, attempt, broker, began = heapq.heappop(events)
        if broker < 0:
            broker, began = chance.randrange(brokers), now
            while len(arrivals) <= int(now * 10):
                arrivals.append(0)
            arrivals[int(now * 10)] += 1
        accepted = max(now, due[broker] - BURST)
        until = began + HANDSHAKE
        if (accepted - now) * connects_per_second > backlog:
            again = began + 2 * (now - began) + 1  # the client's kernel asks again behind 1, 3, 7 seconds
            if again < until:
                heapq.heappush(events, (again, number, attempt, broker, began))
                continue
        else:
            due[broker] = max(due[broker], now) + 1 / connects_per_second  # also for one that will not have waited
            ready = max(accepted, free[broker]) + connect
            if ready <= until:
                free[broker] = took[number] = ready
                continue
        given_up += 1
        wait = chance.random() * min(LONGEST, FIRST * 2.0**attempt)
        heapq.heappush(events, (until + wait, number, attempt + 1, -1, 0.0))
    return Failover(
        clients=clients, median=float(np.median(took)), p99=float(np.quantile(took, 0.99)), largest=float(took.max()),
        given_up=given_up, arrivals=arrivals,
    )  # fmt: skip
