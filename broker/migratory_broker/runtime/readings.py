"""The numbers that the cores keep, by their names in docs/metrics.md."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from migratory_broker.runtime.metrics import Value

_LOGIC = {
    "topics": "migratory_topics",
    "cache_bytes": "migratory_cache_bytes",
    "committed": "migratory_committed_total",
    "roles": "migratory_groups",
    "replication_lag": "migratory_replication_lag",
    "fenced": "migratory_fenced",
    "member": "migratory_member",
    "waiting_groups": "migratory_waiting_groups",
    "cache_short": "migratory_cache_short",
}
_EDGE = {
    "clients": "migratory_clients",
    "subscriptions": "migratory_subscriptions",
    "queue_bytes": "migratory_queue_bytes",
    "published": "migratory_published_total",
    "delivered": "migratory_delivered_total",
    "sent_bytes": "migratory_sent_bytes_total",
}

EDGE_COUNTERS = tuple(key for key, name in _EDGE.items() if name.endswith("_total"))
"""What only rises: what an edge counted stays counted when it is gone."""


def readings(logic: Mapping[str, Any], edge: Mapping[str, Any] | None, memory: int = 0) -> dict[str, Value]:
    """From both cores' `status()`, that of all edges together; before there is an edge it has no clients. `memory` in
    bytes."""
    values: dict[str, Value] = {"migratory_memory_bytes": float(memory)}
    if edge is not None:
        values["migratory_io_process_clients"] = edge.get("by_process", {})
    for source, names in ((logic, _LOGIC), (edge if edge is not None else dict.fromkeys(_EDGE, 0), _EDGE)):
        for key, name in names.items():
            value = source[key]
            values[name] = (
                {label: float(count) for label, count in value.items()} if isinstance(value, Mapping) else float(value)
            )
    return values
