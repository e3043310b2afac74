"""The answers of ZooKeeper members about themselves and their ensemble, to the four-letter commands `srvr` and `conf`;
pure."""

from __future__ import annotations

import re
from dataclasses import dataclass

_MODE = re.compile(r"^Mode: (\w+)", re.MULTILINE)
_VERSION = re.compile(r"^version=([0-9a-f]{1,16})$", re.MULTILINE)
_VOTER = re.compile(r"^server\.([0-9]{1,9})=\S+:participant(?:;\S+)?$", re.MULTILINE)


@dataclass(frozen=True)
class EnsembleConfig:
    """The configuration of the ZooKeeper ensemble as a member reports it."""

    version: int
    """Grows with each reconfiguration; 0 before the first one."""
    members: frozenset[int]
    """Ids of the voting members: a pod's ordinal + 1."""


def parse_mode(answer: str) -> str:
    """Return the mode (leader, follower or standalone) in an answer to `srvr`, "" for none."""
    mode = _MODE.search(answer)
    return mode[1] if mode else ""


def parse_config(answer: str) -> EnsembleConfig | None:
    """Return the configuration in an answer to `conf`; None if it has no version or no voting members."""
    version, voters = _VERSION.search(answer), _VOTER.findall(answer)
    return EnsembleConfig(int(version[1], 16), frozenset(map(int, voters))) if version and voters else None
