"""One module for each measurement, with one function: `measure(bench)` returns what goes into the result.

A measurement checks that it is right before it is a figure: deliveries are counted, and what is lost, repeated or not
answered makes it fail (`Broken`). `ALL` is in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from benchmarks.bench import Bench
from benchmarks.measurements import (
    batching,
    cycles,
    failover,
    fanout,
    ioprocesses,
    latency,
    memory,
    publish,
    storm,
    topics,
)


class Measurement(NamedTuple):
    title: str
    measure: Callable[[Bench], Awaitable[dict[str, Any]]]


ALL: dict[str, Measurement] = {
    "fanout": Measurement("CPU per delivery, beside the peers and the raw loops", fanout.measure),
    "memory": Measurement("memory of an idle subscribed client", memory.measure),
    "latency": Measurement("latency under load, beside the peers", latency.measure),
    "publish": Measurement("acknowledged publishing, two copies of three brokers", publish.measure),
    "topics": Measurement("many topics with one subscriber each", topics.measure),
    "batching": Measurement("CPU per message with batching, beside without", batching.measure),
    "io": Measurement("two I/O processes beside one", ioprocesses.measure),
    "storm": Measurement("many clients that come back at once", storm.measure),
    "failover": Measurement("one of three brokers killed", failover.measure),
    "cycles": Measurement("memory over cycles of connecting and disconnecting", cycles.measure),
}
