"""Fixtures: a scripted broker, and a check that no task is left."""

from __future__ import annotations

from migratory_testing.oneclient import broker, nothing_is_left

__all__ = ["broker", "nothing_is_left"]
