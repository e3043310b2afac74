"""Fixtures for this folder: one real broker for each test file, or three of them."""

from __future__ import annotations

from migratory_testing.onebroker import broker, closed_at_the_end, zookeeper_member

__all__ = ["broker", "closed_at_the_end", "zookeeper_member"]
