"""How many clients each broker should have, who has too many, and who has room: arithmetic, without time or state.

A *share* is a broker's part of all clients, by its weight. docs/decisions/0004-balance-of-clients.md says why these
rules come to rest: a broker gives only above HIGH times its share, never below its share, and another takes only up to
its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

HIGH = 1.1
"""Times its share: a broker with more gives some away. Below the 1.15 that is promised, so that what is a heartbeat old
does no harm; above what clients that come and go make of it by themselves."""

AIM = 1.05
"""Times its share: what a broker keeps that gives. Each client that stays saves somebody a move."""


class BrokerLoad(NamedTuple):
    """A broker's clients, and the weight by which it should have some."""

    weight: int
    clients: int


def shares(crews: Mapping[str, BrokerLoad]) -> dict[str, float]:
    """How many clients each should have. None should, if all weights are 0."""
    total = sum(crew.clients for crew in crews.values())
    weights = sum(crew.weight for crew in crews.values())
    return {name: total * crew.weight / weights if weights else 0.0 for name, crew in crews.items()}


def surplus(clients: int, share: float) -> int:
    """What a broker with so many clients is to give. A part of a client can't move: shares are rounded up."""
    if clients <= max(HIGH * share, ceil(share)):
        return 0
    return clients - max(int(AIM * share), ceil(share))


def room(clients: int, share: float) -> int:
    """What a broker may take."""
    return max(0, ceil(share) - clients)


def calls(name: str, crews: Mapping[str, BrokerLoad], most: int) -> list[tuple[str, int]]:
    """What the broker `name` asks others for, `most` in all. Several that have room divide what there is to give: each
    asks for its part of it, from each giver in proportion to what that one gives."""
    wanted = shares(crews)
    gives = {other: surplus(crew.clients, wanted[other]) for other, crew in crews.items()}
    rooms = {other: room(crew.clients, wanted[other]) for other, crew in crews.items()}
    given, mine = sum(gives.values()), rooms[name]
    if not given or not mine:
        return []
    left = min(mine, most, ceil(given * mine / sum(rooms.values())))
    asked = []
    for other in sorted(gives, key=lambda other: (-gives[other], other)):  # those who give most, first
        if left and gives[other]:
            count = min(gives[other], ceil(left * gives[other] / given))
            asked.append((other, count))
            given -= gives[other]
            left -= count
    return asked


def targets(leaving: int, crews: Mapping[str, BrokerLoad]) -> dict[str, int]:
    """How `leaving` clients are to be spread over these brokers so that they come out even: weights by which each
    client picks one. Those that have their share already get none."""
    weights = sum(crew.weight for crew in crews.values())
    total = leaving + sum(crew.clients for crew in crews.values())
    rooms = {
        name: round(total * crew.weight / weights - crew.clients) for name, crew in crews.items() if crew.weight > 0
    }
    return {name: count for name, count in rooms.items() if count > 0}


def least_moved(edges: Mapping[int, tuple[int, ...]], count: int) -> dict[int, int]:
    """How many of `count` clients each edge is to choose, so that all together are those that moved least. `edges` has
    for each how many of its clients moved never, once, ..."""
    chosen = dict.fromkeys(sorted(edges), 0)
    for moves in range(max(map(len, edges.values()), default=0)):
        for edge in chosen:
            there = edges[edge][moves] if moves < len(edges[edge]) else 0
            some = min(there, count)
            chosen[edge] += some
            count -= some
    return {edge: some for edge, some in chosen.items() if some}
