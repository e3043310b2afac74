"""The sums of the counters of all I/O processes, for `IoProcessPool`: as if there were one edge. Counters of dead
processes are included."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge
from migratory_broker.runtime.admin.metrics import EDGE_COUNTERS
from migratory_broker.runtime.clients.server import REFUSAL_REASONS
from migratory_broker.runtime.io_processes.handle import IoProcessHandle

EMPTY_STATUS = {key: 0 for key, value in Edge(EdgeConfig()).status().items() if type(value) is int}
"""The whole numbers of an edge's status, all zero."""


HANDSHAKE_COUNTS = (
    "handshakes_waiting", "handshake_bytes_waiting", "tls_handshakes_waiting", "handshakes_too_slow",
    "handshakes_evicted", "requests_malformed", "input_evicted",
    *(f"requests_refused_{reason}" for reason in REFUSAL_REASONS.values()),
)  # fmt: skip
"""The keys of `ClientService.handshake_counts`."""


class IoProcessCounters:
    """The sums of the counters of all I/O processes. `deaths` is the number of processes so far that died while the
    broker was not closing."""

    def __init__(self) -> None:
        self._dead: Counter[str] = Counter()
        self._dead_closed: Counter[str] = Counter()
        self.deaths = 0

    def record_death(self, process: IoProcessHandle, *, closing: bool) -> int:
        """Add the counters of a dead process to the sums, and return how many clients it had, by its last report; 0
        without a report. Unless the broker itself is `closing`, also count the death, and these clients as closed."""
        if not closing:
            self.deaths += 1
        if process.report is None:
            return 0
        edge = process.report.edge
        for key in EDGE_COUNTERS:
            self._dead[key] += edge[key]
        for key, value in process.report.server.items():
            if not key.endswith("waiting"):
                self._dead[key] += value
        self._dead_closed.update(edge["closed"])
        clients = int(edge["clients"])
        if clients and not closing:
            self._dead_closed["io_process"] += clients
        return clients

    def total(self, processes: Collection[IoProcessHandle]) -> dict[str, Any]:
        """Return the status of all edges as if they were one: sums of the numbers, those of dead processes included
        where they only rise, and the 20 clients with the longest queues. The caller adds admission and topics."""
        edges = [process.report.edge for process in processes if process.report is not None]
        closed = Counter(self._dead_closed)
        for edge in edges:
            closed.update(edge["closed"])
        sums = Counter({key: self._dead[key] for key in EDGE_COUNTERS})
        for edge in edges:
            sums.update({key: value for key, value in edge.items() if type(value) in (int, float)})
        slow = sorted((client for edge in edges for client in edge["slow"]), key=lambda client: -client["queued_bytes"])
        return {
            **EMPTY_STATUS,
            **sums,
            "edge": "all",
            "draining": any(edge["draining"] for edge in edges),
            "closed": dict(sorted(closed.items())),
            "slow": slow[:20],
            "by_process": {str(process.index): process.counts.connections for process in processes},
        }

    def handshake_counts(self, processes: Collection[IoProcessHandle]) -> dict[str, int]:
        """Return the sums of `ClientService.handshake_counts` over all processes, dead ones included. Numbers of
        waiting handshakes and their bytes are those of living processes."""
        counts = Counter({key: 0 if key.endswith("waiting") else self._dead[key] for key in HANDSHAKE_COUNTS})
        for process in processes:
            if process.report is not None:
                counts.update(process.report.server)
        return counts
