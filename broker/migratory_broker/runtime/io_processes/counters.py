"""What I/O processes count, taken together as if there were one edge. What died ones had counted stays counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection
from typing import Any

from migratory_broker.core.edge.config import EdgeConfig
from migratory_broker.core.edge.core import Edge
from migratory_broker.runtime.admin.metrics import EDGE_COUNTERS
from migratory_broker.runtime.io_processes.handle import IoProcessHandle

NOTHING = {key: 0 for key, value in Edge(EdgeConfig()).status().items() if type(value) is int}
"""What an edge without clients counts."""


class IoProcessCounters:
    def __init__(self) -> None:
        self._dead: Counter[str] = Counter()
        self._dead_closed: Counter[str] = Counter()
        self.deaths = 0

    def bury(self, life: IoProcessHandle, *, closing: bool) -> int:
        """It is dead. How many clients went with it; those count as closed, unless the broker itself is `closing`."""
        if not closing:
            self.deaths += 1
        if life.report is None:
            return 0
        edge = life.report.edge
        for key in EDGE_COUNTERS:
            self._dead[key] += edge[key]
        for key, value in life.report.server.items():
            if not key.endswith("waiting"):
                self._dead[key] += value
        self._dead_closed.update(edge["closed"])
        clients = int(edge["clients"])
        if clients and not closing:
            self._dead_closed["io_process"] += clients
        return clients

    def together(self, lives: Collection[IoProcessHandle]) -> dict[str, Any]:
        """All edges as one edge's status, without what the broker's process knows better."""
        edges = [life.report.edge for life in lives if life.report is not None]
        closed = Counter(self._dead_closed)
        for edge in edges:
            closed.update(edge["closed"])
        total = Counter({key: self._dead[key] for key in EDGE_COUNTERS})
        for edge in edges:
            total.update({key: value for key, value in edge.items() if type(value) in (int, float)})
        slow = sorted((one for edge in edges for one in edge["slow"]), key=lambda one: -one["queued_bytes"])
        return {
            **NOTHING,
            **total,
            "edge": "all",
            "draining": any(edge["draining"] for edge in edges),
            "closed": dict(sorted(closed.items())),
            "slow": slow[:20],
            "by_process": {str(life.process): life.held.connections for life in lives},
        }

    def handshakes(self, lives: Collection[IoProcessHandle]) -> dict[str, int]:
        counts = Counter({key: self._dead[key] for key in ("handshakes_too_slow", "requests_malformed")})
        counts["handshakes_waiting"] = 0
        for life in lives:
            if life.report is not None:
                counts.update(life.report.server)
        return counts
