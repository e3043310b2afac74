"""Fixtures for this folder: one broker for each test file (with its `SETTINGS`), and a bystander, a client on the
same broker that a test must not disturb."""

from __future__ import annotations

from migratory_testing.onebroker import broker, bystander, closed_at_the_end, zookeeper_member

__all__ = ["broker", "bystander", "closed_at_the_end", "zookeeper_member"]
