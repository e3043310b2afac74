"""A broker that does what a test says, and no task left behind."""

from __future__ import annotations

from migratory_testing.oneclient import broker, nothing_is_left

__all__ = ["broker", "nothing_is_left"]
