"""Rounds that take turns: each measures everything once, in an order that rotates, so that what the machine does
besides is shared out evenly."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import TypeVar

from benchmarks.processes import Broken

Result = TypeVar("Result")


async def interleaved(
    rounds: int, turns: Mapping[str, Callable[[], Awaitable[Result]]], told: Callable[[int, dict[str, Result]], None],
    dropped: Callable[[str, Broken], Awaitable[None]] | None = None,
) -> dict[str, list[Result]]:  # fmt: skip
    """By name, one result for each round. `told` gets each round's number, from 1, and results. A turn that fails ends
    them all, or, with `dropped`, which may raise the reason again, is left out of the rounds and of what is found."""
    names = list(turns)
    found: dict[str, list[Result]] = {name: [] for name in names}
    for number in range(rounds):
        for place in range(len(names)):
            name = names[(place + number) % len(names)]
            if name not in found:
                continue
            try:
                found[name].append(await turns[name]())
            except Broken as reason:
                if dropped is None:
                    raise
                await dropped(name, reason)
                del found[name]
        told(number + 1, {name: values[-1] for name, values in found.items()})
    return found
