"""The cost model: a broker's CPU and memory as sums over its clients, publications, deliveries and topics.

    cpu (seconds per second) = idle + client x clients + publication x publications/s + delivery x deliveries/s
    memory (bytes)           = empty + client x clients + topic x topics

Both are fitted to several sizes by least squares of the *relative* error, so that small sizes count as much as large
ones, without negative costs, and are checked against a size that the fit does not use. `idle` is measured separately:
it is small at any size, and a fit attributes part of the clients' heartbeats to it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from msgspec import Struct


class Point(Struct, frozen=True, kw_only=True):
    """The measurement of a broker at one size. Rates are per second, `cpu` in cores, `memory` in bytes. `connect` is
    the CPU in seconds to accept one client, `wire` the bytes of a delivery, `kernel` the kernel's bytes for both ends
    of a connection."""

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
    """The fitted costs. CPU in cores (`idle`), seconds (`connect`, `publication`, `delivery`) and seconds per second
    (`client`); memory in bytes. `kernel_bytes` is for the broker's end of a connection."""

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
        """Return the predicted CPU in cores."""
        return (
            self.idle
            + self.client * point.clients
            + self.publication * point.publications
            + self.delivery * point.deliveries
        )

    def memory(self, point: Point) -> float:
        """Return the predicted memory in bytes."""
        return self.empty_bytes + self.client_bytes * point.clients + self.topic_bytes * point.topics


def relative_fit(rows: Sequence[Sequence[float]], values: Sequence[float], known: float = 0.0) -> list[float]:
    """Return the non-negative coefficients with the least relative error of `known + rows @ coefficients`.

    Try every subset of coefficients that may be above zero, which are few. Raise ValueError for fewer values than
    coefficients, or a value that is not above 0."""
    table, target = np.asarray(rows, dtype=float), np.asarray(values, dtype=float)
    if len(target) < table.shape[1] or not np.all(target > 0):
        raise ValueError("a fit needs as many values as coefficients, each above 0")
    weighted, targets = table / target[:, None], 1 - known / target
    count = table.shape[1]
    best, best_error = np.zeros(count), np.inf
    for chosen in range(1, 2**count):
        columns = [column for column in range(count) if chosen >> column & 1]
        solution = np.linalg.lstsq(weighted[:, columns], targets, rcond=None)[0]
        if np.any(solution < 0):
            continue
        error = float(np.sum((weighted[:, columns] @ solution - targets) ** 2))
        if error < best_error - 1e-12:
            best_error = error
            best = np.zeros(count)
            best[columns] = solution
    return [float(value) for value in best]


def fit(points: Sequence[Point], idle: float) -> Costs:
    """Return the costs that fit the measured points best. `idle` is the CPU of a broker without clients, in cores.
    Raise ValueError for fewer than five sizes."""
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


class PredictionError(Struct, frozen=True):
    """A prediction compared with a measurement. `error` is |predicted / measured - 1|."""

    measured: float
    predicted: float
    error: float


def check(measured: float, predicted: float) -> PredictionError:
    """Return the relative error of a prediction."""
    return PredictionError(measured, predicted, abs(predicted / measured - 1))
