"""Search for a trial that detects each planted fault: `make planted`.

The search for one fault is a fixed order of trials: random plans by their seeds, and between them the directed
schedules (schedules.py), each with a few seeds. A fault's `hint` is tried first; one that no longer helps costs time,
not the verdict. A fault counts as detected when a trial breaks an invariant. A core that merely raises, with its own
assertions taken out, is noted and passed over.
"""

from __future__ import annotations

import argparse
import gc
import json
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from migratory_simulation import planted
from migratory_simulation.patches import patched, unknown_names
from migratory_simulation.planted import PlantedFault

LIMIT = 200
"""Random plans that a fault may survive before it counts as not detected."""
ROUND = 6
"""Random plans before each round of the directed schedules."""
ROUNDS = 4
"""Rounds of the directed schedules, each with a seed of its own."""
TRIAL_LIMIT = 90
"""Seconds for one trial: a wrong version may also run for ever."""


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


@dataclass(frozen=True)
class Verdict:
    """The outcome of a search: the trial that detected the fault (None: no trial did) and the invariant it broke."""

    trials: int
    by: Trial | None
    invariant: int
    message: str
    seconds: float = 0.0


# ---- one fault


def order(limit: int, names: Sequence[str]) -> Iterator[Trial]:
    """Yield the trials of a search: `limit` random plans, with all schedules behind each of the first rounds."""
    for seed in range(1, limit + 1):
        yield Trial("", seed)
        if seed % ROUND == 0 and seed // ROUND <= ROUNDS:
            yield from (Trial(name, seed // ROUND) for name in names)


def first_trials(count: int) -> Iterator[Trial]:
    """Yield a mixture for short searches: two random plans, each schedule once, then more random plans."""
    from migratory_simulation import schedules

    trials = [Trial("", 1), Trial("", 2), *(Trial(name, 1) for name in schedules.ALL)]
    yield from (trials + [Trial("", seed) for seed in range(3, count + 1)])[:count]


def search(hints: Sequence[Trial], limit: int) -> Verdict:
    """Try the hints, then the trials in order, against the code of this process, until one breaks an invariant."""
    # A planted fault must be in place before the cores are imported.
    from migratory_simulation import schedules

    signal.signal(signal.SIGALRM, _expire)
    gc.freeze()  # a world is cyclic garbage after its run: frequent collections cost more than they free
    gc.set_threshold(100_000, 50, 1000)
    failed = ""
    trials = [*hints, *(trial for trial in order(limit, tuple(schedules.ALL)) if trial not in hints)]
    for number, trial in enumerate(trials, 1):
        signal.alarm(TRIAL_LIMIT)
        report = schedules.run_trial(trial.schedule, trial.seed)
        signal.alarm(0)
        if report.invariant > 0:
            return Verdict(number, trial, report.invariant, report.violation.splitlines()[0])
        if report.violation and not failed:
            failed = f"; {trial}: {report.violation.splitlines()[0]}"
    return Verdict(len(trials), None, 0, f"SURVIVED {len(trials)} trials{failed}")


def _expire(number: int, frame: object) -> None:
    raise TimeoutError(f"the trial did not end within {TRIAL_LIMIT} s")


def _search_in_process(fault: PlantedFault, hints: Sequence[Trial], limit: int) -> Verdict:
    """Plant the fault and search in a process of its own."""
    began = time.monotonic()
    words = [word for hint in hints for word in ("--hint", str(hint))]
    done = planted.run_command("detect", fault.name, "--limit", str(limit), *words)
    seconds = time.monotonic() - began
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).strip().splitlines()
        return Verdict(0, None, 0, lines[-1] if lines else f"ended with status {done.returncode}", seconds)
    trials, by, invariant, message = json.loads(done.stdout.splitlines()[-1])
    return Verdict(trials, by and Trial.parse(by), invariant, message, seconds)


# ---- all faults


def stale(faults: Sequence[PlantedFault]) -> list[str]:
    """Return an error for each edit that does not apply any more, or that uses names the product no longer has."""
    texts = []
    for fault in faults:
        errors = []
        for edit in fault.edits:
            try:
                edit.applied()
            except ValueError as error:
                errors.append(str(error))
        texts += [f"{fault.name}: {error}" for error in errors]
        if not errors:
            texts += [f"{fault.name}: nothing defines {name!r}" for name in sorted(unknown_names(fault.edits))]
    return texts


def run(faults: Sequence[PlantedFault], limit: int, jobs: int, hints: bool = True) -> int:
    """Search for every fault and print a line for each. Return 0 when all were detected, 1 otherwise."""
    texts = stale(faults)
    if texts or not faults:
        print("\n\n".join(f"STALE {text}" for text in texts) or "no such fault", file=sys.stderr)
        return 1
    width = max(len(fault.name) for fault in faults)
    broke: Counter[int] = Counter()

    def attempt(fault: PlantedFault) -> Verdict:
        return _search_in_process(fault, [Trial.parse(fault.hint)] if fault.hint and hints else [], limit)

    began = time.monotonic()
    print(f"{'fault':<{width}}  broke  caught by (number of trials)")
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for fault, verdict in zip(faults, pool.map(attempt, faults), strict=True):
            if verdict.by is None:
                text = f"NOT CAUGHT ({verdict.seconds:.1f} s)  {verdict.message[:150]}"
            else:
                broke[verdict.invariant] += 1
                said = verdict.message.split(": ", 1)[-1][:100]
                text = f"{verdict.invariant:>5}  {f'{verdict.by} ({verdict.trials})':<28} {said}"
            print(f"{fault.name:<{width}}  {text}", flush=True)
    by_invariant = ", ".join(f"{count} by {number}" for number, count in sorted(broke.items()))
    seconds = time.monotonic() - began
    print(f"{broke.total()} of {len(faults)} planted faults caught in {seconds:.0f} s; invariants: {by_invariant}")
    return 0 if broke.total() == len(faults) else 1


def run_unit_tests(faults: Sequence[PlantedFault], jobs: int, cache: Path) -> int:
    """Run, for each fault, the unit tests that execute a line of it; print which fails first. Return 0."""
    from migratory_mutation.covering import Covering, fails

    covering = Covering(cache)

    def attempt(fault: PlantedFault) -> tuple[int, str]:
        tests = sorted({test for edit in fault.edits for test in covering.tests(edit.file, edit.lines())})
        return len(tests), fails(patched(fault.edits), tests)

    width = max(len(fault.name) for fault in faults)
    passed = 0
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for fault, (tests, failed) in zip(faults, pool.map(attempt, faults), strict=True):
            passed += not failed
            print(f"{fault.name:<{width}}  {tests:>4} tests  {failed or 'passes'}", flush=True)
    print(f"{passed} of {len(faults)} planted faults pass the unit tests")
    return 0


# ---- the command line


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plant = commands.add_parser("planted", help="show that every planted fault is caught, and by which invariant")
    plant.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"random plans for each ({LIMIT})")
    plant.add_argument("--only", action="append", default=[], metavar="NAME", help="these faults only (repeatable)")
    plant.add_argument("--area", action="append", default=[], metavar="AREA", help="the faults of this file only")
    plant.add_argument("--jobs", type=int, default=1, metavar="N", help="faults tried at the same time (1)")
    plant.add_argument("--no-hints", action="store_true", help="search without the faults' hints")
    plant.add_argument("--unit", action="store_true", help="run the unit tests instead of the simulation")
    cache = Path(gettempdir()) / "migratory-mutation"
    plant.add_argument("--cache", type=Path, default=cache, metavar="DIR", help="of --unit: the map of lines to tests")
    plant.set_defaults(act=_planted)
    one = commands.add_parser("detect", help="search for one planted fault in this process; prints JSON")
    one.add_argument("fault")
    one.add_argument("--hint", action="append", default=[], metavar="TRIAL", help='such as "seed 17"')
    one.add_argument("--limit", type=int, default=LIMIT)
    one.set_defaults(act=_detect)


def selected(only: Sequence[str], area: Sequence[str]) -> list[PlantedFault]:
    """Return the faults of these names, or of these areas, or all."""
    if only:
        return [planted.named(name) for name in only]
    return [fault for fault in planted.load() if not area or fault.area in area]


def _planted(arguments: argparse.Namespace) -> int:
    faults = selected(arguments.only, arguments.area)
    if arguments.unit:
        return run_unit_tests(faults, arguments.jobs, arguments.cache)
    return run(faults, arguments.limit, arguments.jobs, not arguments.no_hints)


def _detect(arguments: argparse.Namespace) -> int:
    planted.plant(planted.named(arguments.fault))
    verdict = search([Trial.parse(text) for text in arguments.hint], arguments.limit)
    by = None if verdict.by is None else str(verdict.by)
    print(json.dumps([verdict.trials, by, verdict.invariant, verdict.message]))
    return 0
