"""One function for each measurement: it takes the context and returns its part of the result.

A measurement counts its deliveries first: a loss, a repeat or a missing answer makes it fail (`MeasurementFailed`).
`ALL` is in the order in which they run.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

from benchmarks.benchmark import Benchmark
from benchmarks.measurements import (
    attack,
    failover,
    fanout,
    latency,
    memory,
    options,
    publish,
    security,
    storm,
    takeover,
)


class Measurement(NamedTuple):
    """A measurement and its title. With `by_default` False it is made on request only. `sizes` are the fields of
    `Sizes` on which only this measurement depends, or others that name them too. A field that no measurement names
    counts for all of them."""

    title: str
    measure: Callable[[Benchmark], Awaitable[dict[str, Any]]]
    sizes: tuple[str, ...] = ()
    by_default: bool = True


ALL: dict[str, Measurement] = {
    "fanout": Measurement("CPU per delivery, of product, peers and raw loops", fanout.measure),
    "memory": Measurement(
        "memory of an idle subscribed client", memory.measure, ("memory_clients", "peer_clients")
    ),
    "latency": Measurement(
        "latency under load, of product and peers", latency.measure, ("latency_seconds", "highest")
    ),
    "publish": Measurement(
        "acknowledged publishing, two copies on three brokers", publish.measure, ("publish_seconds", "window")
    ),
    "topics": Measurement(
        "many topics with one subscriber each", fanout.measure_many_topics, ("many_topics", "many_rate")
    ),
    "batching": Measurement(
        "CPU per message with and without batching", options.measure_batching,
        ("batching_subscribers", "batching_rate"),
    ),
    "io": Measurement("two I/O processes compared with one", options.measure_io_processes),
    "storm": Measurement(
        "many clients reconnect at once", storm.measure, ("storm_clients", "storm_live", "storm_seconds")
    ),
    "failover": Measurement(
        "one of three brokers is killed", failover.measure,
        ("failover_clients", "failover_deliveries", "failover_seconds"),
    ),
    "takeover": Measurement(
        "a coordinator is killed or stopped, again and again", takeover.measure,
        ("takeover_clients", "takeover_faults", "takeover_groups"), by_default=False,
    ),
    "cycles": Measurement(
        "memory over cycles of connecting and disconnecting", memory.measure_cycles, ("cycle_clients", "cycles")
    ),
    "tls": Measurement(
        "CPU per delivery and memory of an idle client with TLS", security.measure_tls, ("peer_clients",),
        by_default=False,
    ),
    "identity": Measurement("CPU of tokens and rules", security.measure_identity, by_default=False),
    "attack": Measurement(
        "others' latency while a broker is attacked", attack.measure,
        (
            "attack_live", "attack_clients", "attack_connects", "attack_frames", "attack_messages", "attack_seconds",
            "attack_address_connections",
        ), by_default=False,
    ),
}  # fmt: skip
