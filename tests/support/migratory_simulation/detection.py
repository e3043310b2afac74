"""Search for a trial that detects each planted fault: `make planted`.

The search for one fault is a fixed order of trials: random plans by their seeds, and between them the directed
schedules (schedules.py), each with a few seeds. A fault's `hint` is tried first; one that no longer helps costs time,
not the verdict. A fault counts as detected when a trial breaks an invariant. A core that merely raises, with its own
assertions taken out, is noted and passed over. Each trial that detected a fault must pass without one.
"""

from __future__ import annotations

import signal
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from itertools import repeat
from typing import NamedTuple

from migratory_simulation import planted
from migratory_simulation.planted import PlantedFault

LIMIT = 200
"""Random plans that a fault may survive before it counts as not detected."""
ROUND = 6
"""Random plans before each round of the directed schedules."""
ROUNDS = 4
"""Rounds of the directed schedules, each with a seed of its own."""
TRIAL_LIMIT = 90
"""CPU seconds for one trial: a wrong version may also run for ever."""


class Trial(NamedTuple):
    """A run of a directed schedule, or ("") of the plan that its seed draws."""

    schedule: str
    seed: int

    def __str__(self) -> str:
        return f"{self.schedule or 'seed'} {self.seed}"

    @staticmethod
    def parse(text: str) -> Trial:
        """Return the trial that `str` wrote, such as "seed 17" or "tail cut 2"."""
        schedule, seed = text.rsplit(" ", 1)
        return Trial("" if schedule == "seed" else schedule, int(seed))


class Verdict(NamedTuple):
    """The outcome of a search: the number of trials, the one that detected the fault (None: no trial did), the
    invariant that it broke, and the violation or the reason as text."""

    trials: int
    by: Trial | None
    invariant: int
    message: str


# ---- one fault


def order(limit: int, names: Sequence[str]) -> Iterator[Trial]:
    """Yield the trials of a search: `limit` random plans, with seeds from 1. After every `ROUND` of them follow all
    schedules of these names, at most `ROUNDS` times, each time with another seed."""
    for seed in range(1, limit + 1):
        yield Trial("", seed)
        if seed % ROUND == 0 and seed // ROUND <= ROUNDS:
            yield from (Trial(name, seed // ROUND) for name in names)


def first_trials(count: int) -> list[Trial]:
    """Return the first `count` trials of a mixture for short searches: two random plans, then each schedule once, then
    more random plans."""
    from migratory_simulation import schedules

    trials = [Trial("", 1), Trial("", 2), *(Trial(name, 1) for name in schedules.ALL)]
    return [*trials, *(Trial("", seed) for seed in range(3, count + 1))][:count]


def search(trials: Iterable[Trial], least: int = 1) -> Verdict:
    """Run the trials against the code of this process until one breaks an invariant, numbered `least` or higher. Return
    the outcome. Each trial may take `TRIAL_LIMIT` seconds of CPU; one that takes longer fails as a core that raises."""
    # A planted fault must be in place before the cores are imported.
    from migratory_simulation import runner, schedules

    signal.signal(signal.SIGPROF, _expire)
    runner.few_collections()
    failed, number = "", 0
    for number, trial in enumerate(trials, 1):
        signal.setitimer(signal.ITIMER_PROF, TRIAL_LIMIT)
        report = schedules.run_trial(trial.schedule, trial.seed)
        signal.setitimer(signal.ITIMER_PROF, 0)
        if report.violation:
            line = report.violation.splitlines()[0]
            if report.invariant >= least:
                return Verdict(number, trial, report.invariant, line)
            failed = failed or f"; {trial}: {line}"
    return Verdict(number, None, 0, f"SURVIVED {number} trials{failed}")


def _expire(number: int, frame: object) -> None:
    raise TimeoutError(f"the trial did not end within {TRIAL_LIMIT} s of CPU time")


def attempt(fault: PlantedFault, limit: int, hints: bool) -> Verdict:
    """Plant the fault in this process, which has not imported the cores yet, and search for a trial that detects it:
    the fault's hint first, if `hints`, then the order of `order`. Return the outcome; an exception counts as not
    detected."""
    try:
        planted.plant(fault)
        from migratory_simulation import schedules

        hinted = [Trial.parse(fault.hint)] if fault.hint and hints else []
        others = (trial for trial in order(limit, tuple(schedules.ALL)) if trial not in hinted)
        return search([*hinted, *others])
    except Exception as error:  # noqa: BLE001 - an edit that no longer applies, or a core that cannot be imported
        return Verdict(0, None, 0, f"{type(error).__name__}: {error}")


def failing(trials: Sequence[Trial]) -> list[str]:
    """Run the trials without a fault, and return a line for each that breaks an invariant or in which a core fails."""
    from migratory_simulation import runner, schedules

    runner.few_collections()
    reports = ((trial, schedules.run_trial(trial.schedule, trial.seed)) for trial in trials)
    return [f"{trial}: {report.violation.splitlines()[0]}" for trial, report in reports if report.violation]


# ---- all faults


def run(faults: Sequence[PlantedFault], limit: int, jobs: int, *, hints: bool = True) -> int:
    """Search for a trial that detects each fault, and print a line for each fault. Return 0 when all were detected, by
    trials that pass without a fault, 1 otherwise.

    :param limit: the random plans that a fault may survive; directed schedules are tried besides.
    :param jobs: the number of faults that are searched for at the same time, each in a process of its own.
    :param hints: whether a fault's own `hint` is tried first.
    """
    width = max(len(fault.name) for fault in faults)
    broke: Counter[int] = Counter()
    used: dict[Trial, None] = {}
    began = time.monotonic()
    print(f"{'fault':<{width}}  broke  caught by (number of trials)")
    with planted.fresh_processes(jobs) as pool:
        for fault, verdict in zip(faults, pool.map(attempt, faults, repeat(limit), repeat(hints)), strict=True):
            if verdict.by is None:
                text = f"NOT CAUGHT  {verdict.message[:150]}"
            else:
                broke[verdict.invariant] += 1
                used[verdict.by] = None
                said = verdict.message.split(": ", 1)[-1][:100]
                text = f"{verdict.invariant:>5}  {f'{verdict.by} ({verdict.trials})':<28} {said}"
            print(f"{fault.name:<{width}}  {text}", flush=True)
        misleading = [line for lines in pool.map(failing, [list(used)[k::jobs] for k in range(jobs)]) for line in lines]
    by_invariant = ", ".join(f"{count} by {number}" for number, count in sorted(broke.items()))
    seconds = time.monotonic() - began
    print(f"{broke.total()} of {len(faults)} planted faults caught in {seconds:.0f} s; invariants: {by_invariant}")
    for line in misleading:
        print(f"FAILS WITHOUT A FAULT: {line}")
    return 0 if broke.total() == len(faults) and not misleading else 1
