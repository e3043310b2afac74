"""Rounds that take turns: each measures everything once, in an order that rotates, so that what the machine does
besides is shared out evenly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

Result = TypeVar("Result")


async def interleaved(
    rounds: int, turns: Mapping[str, Callable[[], Awaitable[Result]]], told: Callable[[int, dict[str, Result]], None]
) -> dict[str, list[Result]]:
    """By name, one result for each round. `told` gets each round's number, from 1, and results."""
    names = list(turns)
    found: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            found[name].append(await turns[name]())
        told(number + 1, {name: found[name][-1] for name in names})
    return found
