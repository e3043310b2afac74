"""Arithmetic of the balance of clients, for `clients.py`: how many clients each broker should have, give away and
accept. No time, no state.

A *share* is a broker's part of all clients, by its weight. docs/decisions/0004-balance-of-clients.md says why these
rules come to rest: a broker gives clients only if it has more than HIGH times its share, and keeps AIM times its share.
A receiver accepts only up to its own share.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil
from typing import NamedTuple

HIGH = 1.1
"""Multiple of its share above which a broker gives clients away. Below the promised 1.15, so that numbers from the last
heartbeat do no harm; above the variation that clients coming and going cause by themselves."""

AIM = 1.05
"""Multiple of its share down to which a broker gives clients away. Each client that stays saves a move."""


class BrokerLoad(NamedTuple):
    """A broker's weight in the server list, and its number of clients."""

    weight: int
    clients: int


def shares(loads: Mapping[str, BrokerLoad]) -> dict[str, float]:
    """Return the number of clients that each broker should have, a fraction: all clients divided in proportion to the
    weights. 0 for all if all weights are 0."""
    total = sum(load.clients for load in loads.values())
    weights = sum(load.weight for load in loads.values())
    return {name: total * load.weight / weights if weights else 0.0 for name, load in loads.items()}


def surplus(clients: int, share: float) -> int:
    """Return the number of clients that a broker with `clients` clients gives away. If it has more than HIGH times its
    share, and more than its share rounded up, these are all above AIM times its share, but it keeps its share rounded
    up. Otherwise 0."""
    if clients <= max(HIGH * share, ceil(share)):
        return 0
    return clients - max(int(AIM * share), ceil(share))


def room(clients: int, share: float) -> int:
    """Return the number of clients that a broker may accept until it has its share, rounded up. 0 at or above that."""
    return max(0, ceil(share) - clients)


def requests(name: str, loads: Mapping[str, BrokerLoad], limit: int) -> list[tuple[str, int]]:
    """Return how many clients the broker `name` requests from each other broker, at most `limit` in all: (name, number)
    pairs, the largest surplus first. [] if it has no room, or no broker has a surplus.

    Brokers that have room divide the surplus in proportion to their rooms. Each requests from every giver in proportion
    to that giver's surplus.
    """
    wanted = shares(loads)
    surpluses = {other: surplus(load.clients, wanted[other]) for other, load in loads.items()}
    rooms = {other: room(load.clients, wanted[other]) for other, load in loads.items()}
    available, own_room = sum(surpluses.values()), rooms[name]
    if not available or not own_room:
        return []
    remaining = min(own_room, limit, ceil(available * own_room / sum(rooms.values())))
    result = []
    for other in sorted(surpluses, key=lambda other: (-surpluses[other], other)):  # the largest surplus first
        if remaining and surpluses[other]:
            count = min(surpluses[other], ceil(remaining * surpluses[other] / available))
            result.append((other, count))
            available -= surpluses[other]
            remaining -= count
    return result


def targets(leaving: int, loads: Mapping[str, BrokerLoad]) -> dict[str, int]:
    """Return for each broker in `loads` the number of `leaving` clients that it should receive, so that all come to
    their shares of all clients, rounded. Brokers that already have their share or more, or have weight 0, are left out.
    The numbers serve as weights: together they may be more than `leaving`."""
    weights = sum(load.weight for load in loads.values())
    total = leaving + sum(load.clients for load in loads.values())
    rooms = {
        name: round(total * load.weight / weights - load.clients) for name, load in loads.items() if load.weight > 0
    }
    return {name: count for name, count in rooms.items() if count > 0}


def least_moved(edges: Mapping[int, tuple[int, ...]], count: int) -> dict[int, int]:
    """Return how many clients each edge is to choose, `count` in all, so that together they are those that moved least;
    fewer if there are fewer clients. Edges that choose none are left out.

    `edges` has for each edge how many of its clients moved never, once, and so on.
    """
    chosen = dict.fromkeys(sorted(edges), 0)
    for moves in range(max(map(len, edges.values()), default=0)):
        for edge in chosen:
            available = edges[edge][moves] if moves < len(edges[edge]) else 0
            picked = min(available, count)
            chosen[edge] += picked
            count -= picked
    return {edge: picked for edge, picked in chosen.items() if picked}
