"""The configuration of a ZooKeeper ensemble, as its members report it; pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class EnsembleConfig:
    """The configuration of the ZooKeeper ensemble as a member reports it."""

    version: int
    """Grows with each reconfiguration; 0 before the first one."""
    members: frozenset[int]
    """Ids of the voting members: a pod's ordinal + 1."""
