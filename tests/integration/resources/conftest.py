"""One broker for each file (with its `SETTINGS`), and a bystander client that must not be disturbed."""

from __future__ import annotations

from migratory_testing.onebroker import broker, bystander, closed_at_the_end, zookeeper_member

__all__ = ["broker", "bystander", "closed_at_the_end", "zookeeper_member"]
