"""One function for each measurement: it takes the context and returns its part of the result.

A measurement counts its deliveries first: a loss, a repeat or a missing answer makes it fail (`MeasurementFailed`).
`ALL` is in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from benchmarks.benchmark import Benchmark
from benchmarks.measurements import attack, failover, fanout, latency, memory, options, publish, security, storm


class Measurement(NamedTuple):
    """A measurement and its title. With `by_default` False it is made on request only."""

    title: str
    measure: Callable[[Benchmark], Awaitable[dict[str, Any]]]
    by_default: bool = True


ALL: dict[str, Measurement] = {
    "fanout": Measurement("CPU per delivery, of product, peers and raw loops", fanout.measure),
    "memory": Measurement("memory of an idle subscribed client", memory.measure),
    "latency": Measurement("latency under load, of product and peers", latency.measure),
    "publish": Measurement("acknowledged publishing, two copies on three brokers", publish.measure),
    "topics": Measurement("many topics with one subscriber each", fanout.measure_many_topics),
    "batching": Measurement("CPU per message with and without batching", options.measure_batching),
    "io": Measurement("two I/O processes compared with one", options.measure_io_processes),
    "storm": Measurement("many clients reconnect at once", storm.measure),
    "failover": Measurement("one of three brokers is killed", failover.measure),
    "cycles": Measurement("memory over cycles of connecting and disconnecting", memory.measure_cycles),
    "tls": Measurement(
        "CPU per delivery and memory of an idle client with TLS", security.measure_tls, by_default=False
    ),
    "identity": Measurement("CPU of tokens and rules", security.measure_identity, by_default=False),
    "attack": Measurement("others' latency while a broker is attacked", attack.measure, by_default=False),
}
