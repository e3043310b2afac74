"""The cost model: a broker's CPU and memory as sums over what it holds and does.

    cpu (seconds per second) = idle + client x clients + publication x publications/s + delivery x deliveries/s
    memory (bytes)           = empty + client x clients + topic x topics

Both are fitted to several sizes by least squares of the *relative* error, so that small sizes count as much as large
ones, with no cost below zero; and checked against a size that the fit has not seen. `idle` is small beside what any
size takes, and was seen to swallow what the heartbeats of thousands of clients cost: it is measured by itself.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct


class Point(Struct, frozen=True, kw_only=True):
    """One size, and what a broker took there. Rates are per second, `cpu` in cores, `memory` in bytes; `connect` is the
    CPU in seconds of taking one client; `wire` the bytes of one delivery that a subscriber reads; `kernel` the kernel's
    memory for a connection, both ends."""

    clients: int
    topics: int
    publications: float
    deliveries: float
    cpu: float = 0.0
    memory: float = 0.0
    connect: float = 0.0
    wire: float = 0.0
    kernel: float = 0.0


class Costs(Struct, frozen=True, kw_only=True):
    """CPU in cores (`idle`), seconds (`connect`, `publication`, `delivery`), seconds per second (`client`); bytes.
    `kernel_bytes`: of the broker's end of a connection."""

    idle: float
    client: float
    publication: float
    delivery: float
    connect: float
    empty_bytes: float
    client_bytes: float
    topic_bytes: float
    wire_bytes: float
    kernel_bytes: float

    def cpu(self, point: Point) -> float:
        return (
            self.idle
            + self.client * point.clients
            + self.publication * point.publications
            + self.delivery * point.deliveries
        )

    def memory(self, point: Point) -> float:
        return self.empty_bytes + self.client_bytes * point.clients + self.topic_bytes * point.topics


def relative_fit(rows: Sequence[Sequence[float]], values: Sequence[float], known: float = 0.0) -> list[float]:
    """Non-negative coefficients that make the relative errors of `known + rows @ coefficients` least.

    Every set of coefficients that may be zero is tried: there are a handful. Raises ValueError for fewer values than
    coefficients, or a value that is not above 0.
    """
    table, target = np.asarray(rows, dtype=float), np.asarray(values, dtype=float)
    if len(target) < table.shape[1] or not np.all(target > 0):
        raise ValueError("a fit needs as many values as coefficients, each above 0")
    weighted, wanted = table / target[:, None], 1 - known / target
    count = table.shape[1]
    best, least = np.zeros(count), np.inf
    for chosen in range(1, 2**count):
        columns = [column for column in range(count) if chosen >> column & 1]
        found = np.linalg.lstsq(weighted[:, columns], wanted, rcond=None)[0]
        if np.any(found < 0):
            continue
        error = float(np.sum((weighted[:, columns] @ found - wanted) ** 2))
        if error < least - 1e-12:
            least = error
            best = np.zeros(count)
            best[columns] = found
    return [float(value) for value in best]


def fit(points: Sequence[Point], idle: float) -> Costs:
    """`idle`: cores that a broker without clients takes. Raises ValueError for fewer than five sizes."""
    if len(points) < 5:
        raise ValueError(f"{len(points)} sizes are too few for a fit; five or more are needed")
    client, publication, delivery = relative_fit(
        [(point.clients, point.publications, point.deliveries) for point in points], [p.cpu for p in points], idle
    )
    empty, client_bytes, topic_bytes = relative_fit(
        [(1.0, point.clients, point.topics) for point in points], [point.memory for point in points]
    )
    return Costs(
        idle=idle, client=client, publication=publication, delivery=delivery,
        connect=float(np.median([point.connect for point in points])),
        empty_bytes=empty, client_bytes=client_bytes, topic_bytes=topic_bytes,
        wire_bytes=float(np.median([point.wire for point in points])),
        kernel_bytes=float(np.median([point.kernel for point in points])) / 2,
    )  # fmt: skip


class Check(Struct, frozen=True):
    """`error` is relative: |predicted / measured - 1|."""

    measured: float
    predicted: float
    error: float


def check(measured: float, predicted: float) -> Check:
    return Check(measured, predicted, abs(predicted / measured - 1))
