"""Minimise the faults of a failing seed by delta debugging.

A seed's plan is run with ever fewer of its faults as long as the same invariant breaks (Zeller and Hildebrandt,
"Simplifying and Isolating Failure-Inducing Input", 2002). The remaining faults are named by their numbers in the plan,
so that `run --seed N --faults 2,5` runs them again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import NamedTuple

from migratory_simulation.options import Options
from migratory_simulation.plans import Plan
from migratory_simulation.world import run_seed

TRIES = 200
"""The most runs spent on minimising one failure."""


class Shrunk(NamedTuple):
    """A minimised failure: the numbers of the remaining faults, the violation they lead to, and the runs it took."""

    kept: tuple[int, ...]
    violation: str
    tries: int


def minimise(items: Sequence[int], fails: Callable[[tuple[int, ...]], bool], tries: int = TRIES) -> tuple[int, ...]:
    """Return a subset of `items` that still fails, and that passes without any single one of its items. After `tries`
    calls of `fails` return the smallest failing one so far. All `items` together must fail."""
    current = tuple(items)
    parts = 2
    while current and tries > 0:
        size = max(1, len(current) // parts)
        for start in range(0, len(current), size):
            fewer = current[:start] + current[start + size :]
            tries -= 1
            if fails(fewer):
                current, parts = fewer, max(parts - 1, 2)
                break
            if tries <= 0:
                return current
        else:
            if size == 1:
                return current
            parts = min(parts * 2, len(current))
    return current


def only(options: Options, kept: Sequence[int]) -> Options:
    """Return the same options with only these faults of the plan. Raise ValueError for a number that the plan lacks."""
    drawn = options.plan.faults
    wrong = [index for index in kept if not 0 <= index < len(drawn)]
    if wrong:
        raise ValueError(
            f"seed {options.seed} draws {len(drawn)} faults, numbered from 0; there is no fault {wrong[0]}"
        )
    return replace(options, plan=Plan(options.plan.safe, tuple(drawn[index] for index in sorted(kept))))


def shrink(options: Options, tries: int = TRIES) -> Shrunk:
    """Minimise the plan of a failing run, with at most `tries` runs, and return the result. Raise ValueError when the
    run does not fail."""
    whole = run_seed(options.seed, options=options)
    if not whole.violation:
        raise ValueError(f"seed {options.seed} does not fail")
    count = 0
    last = whole.violation

    def fails(kept: tuple[int, ...]) -> bool:
        nonlocal count, last
        count += 1
        report = run_seed(options.seed, options=only(options, kept))
        if report.invariant != whole.invariant:
            return False
        last = report.violation
        return True

    kept = minimise(range(len(options.plan.faults)), fails, tries)
    return Shrunk(kept, last, count)
