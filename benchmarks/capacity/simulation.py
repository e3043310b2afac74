"""Fan-out and failover of clusters that don't fit onto one machine, as queues with the model's costs. Pure: the seed
determines all random numbers.

Fan-out: each of a broker's I/O processes holds an equal share of the clients. A publication that reaches a broker
occupies each process for its own subscribers, one delivery after the other, after its earlier work. Topics are
staggered evenly, or all publish at once.

Failover: the clients of one broker reconnect as the product's clients do: after a random wait of up to `FIRST_RETRY` to
a random other broker, and after `HANDSHAKE` seconds without an answer again, with a wait that doubles. A broker accepts
a limited number of connections a second. The others wait in the kernel's backlog or, when that is full, until their own
kernel retries. The broker handles connects one after another, each with the measured cost, on its I/O processes.
"""

from __future__ import annotations

import heapq
from random import Random

import numpy as np
import numpy.typing as npt
from msgspec import Struct, structs

FloatArray = npt.NDArray[np.float64]
FIRST_RETRY, MAX_RETRY = 1.0, 30.0
"""Seconds. The client's first wait is a random part of `FIRST_RETRY`; the bound doubles up to `MAX_RETRY`."""

MAX_SIMULATED = 5_000
"""Clients that are simulated one by one. Of more clients, each simulated one represents several."""

HANDSHAKE = 10.0
"""Seconds that a client waits for its receipt before it tries another broker."""

BURST = 0.25
"""Seconds of its connection rate that a broker may accept at once."""

BACKLOG = 4096
"""Connections that wait in a broker's kernel until they are accepted."""


class FanOutResult(Struct, frozen=True, kw_only=True):
    """Milliseconds from a publication to its deliveries, by the broker's own work."""

    median: float
    p99: float
    largest: float
    busy: float  # share of time in which an I/O process is busy


def fan_out(
    *, subscribers: int, processes: int, topics: int, rate: float, delivery: float, publication: float,
    staggered: bool = True, seconds: float = 10.0,
) -> FanOutResult:  # fmt: skip
    """Simulate the fan-out of one broker, whose `subscribers` are divided evenly over `topics` and `processes`. Costs
    are seconds. One process represents all, because they do the same at the same time."""
    each = subscribers / processes / topics  # deliveries of a publication in one process
    # Topics with less than one delivery for each process are merged.
    merged = max(1, round(1 / each)) if each < 1 else 1
    streams = max(1, topics // merged)
    deliveries = max(1, round(subscribers / processes / streams))
    service = deliveries * delivery + publication * merged
    offsets = np.arange(streams) / streams / rate if staggered else np.zeros(streams)
    arrivals = np.sort((offsets[:, None] + np.arange(max(1, round(seconds * rate)))[None, :] / rate).ravel())
    ends = queue(arrivals, service)
    begins = ends - service - arrivals
    # Within a fan-out the k-th subscriber waits for those before it; nine subscribers represent all.
    shares = (np.arange(9) + 0.5) / 9
    waits = (begins[:, None] + publication * merged + shares[None, :] * deliveries * delivery).ravel() * 1e3
    return FanOutResult(
        median=float(np.median(waits)), p99=float(np.quantile(waits, 0.99)), largest=float(waits.max()),
        busy=service * streams * rate,
    )  # fmt: skip


def queue(arrivals: FloatArray, service: float) -> FloatArray:
    """Return the time at which each arrival is done, first come, first served, each taking `service` seconds."""
    order = np.arange(len(arrivals))
    ends: FloatArray = np.maximum.accumulate(arrivals - order * service) + (order + 1) * service
    return ends


class FailoverResult(Struct, frozen=True, kw_only=True):
    """Seconds from the lost link to the receipt, the attempts that were `given_up`, and in `arrivals` all attempts for
    each tenth of a second."""

    clients: int
    median: float
    p99: float
    largest: float
    given_up: int
    arrivals: list[int]


def failover(
    *, clients: int, brokers: int, processes: int, connect: float, connects_per_second: float, backlog: float = BACKLOG,
    seed: int = 1,
) -> FailoverResult:  # fmt: skip
    """Simulate the failover of the `clients` of a failed broker to the other `brokers`. `connect` is the CPU seconds to
    accept one client."""
    each = -(-clients // MAX_SIMULATED)
    result = _simulate(
        clients // each, brokers, connect / processes * each, connects_per_second / each, backlog / each, Random(seed)
    )
    return structs.replace(
        result, clients=clients, given_up=result.given_up * each, arrivals=[count * each for count in result.arrivals]
    )


def _simulate(
    clients: int, brokers: int, connect: float, connects_per_second: float, backlog: float, random: Random
) -> FailoverResult:
    # (time, client, attempt, its broker, its start); a new attempt has broker -1
    events = [(random.random() * FIRST_RETRY, number, 1, -1, 0.0) for number in range(clients)]
    heapq.heapify(events)
    free = [0.0] * brokers  # when a broker's processes have handled all earlier connects
    due = [0.0] * brokers  # when the next is accepted, apart from the burst
    resumed = np.zeros(clients)
    given_up, arrivals = 0, [0]
    while events:
        now, number, attempt, broker, began = heapq.heappop(events)
        if broker < 0:
            broker, began = random.randrange(brokers), now
            while len(arrivals) <= int(now * 10):
                arrivals.append(0)
            arrivals[int(now * 10)] += 1
        accepted = max(now, due[broker] - BURST)
        until = began + HANDSHAKE
        if (accepted - now) * connects_per_second > backlog:
            again = began + 2 * (now - began) + 1  # the client's kernel retries after 1, 3, 7 seconds
            if again < until:
                heapq.heappush(events, (again, number, attempt, broker, began))
                continue
        else:
            due[broker] = max(due[broker], now) + 1 / connects_per_second  # even when the client gives up meanwhile
            ready = max(accepted, free[broker]) + connect
            if ready <= until:
                free[broker] = resumed[number] = ready
                continue
        given_up += 1
        wait = random.random() * min(MAX_RETRY, FIRST_RETRY * 2.0**attempt)
        heapq.heappush(events, (until + wait, number, attempt + 1, -1, 0.0))
    return FailoverResult(
        clients=clients, median=float(np.median(resumed)), p99=float(np.quantile(resumed, 0.99)),
        largest=float(resumed.max()),
        given_up=given_up, arrivals=arrivals,
    )  # fmt: skip
