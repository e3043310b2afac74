"""Where a process of the cluster runs: on this machine's loopback address, unless somebody says otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from migratory_local.ports import HOST


@dataclass(frozen=True)
class Place:
    """:param address: where it listens, and how others reach it.
    :param enter: the words before its command that bring it there, such as those that enter a network namespace. They
        must become the command (exec), for signals go to what they started.
    """

    address: str = HOST
    enter: tuple[str, ...] = ()


HERE = Place()
