"""Tries planted faults until an invariant is broken: `make planted`.

The search for one fault is a fixed order of trials: drawn plans by their seeds, and between them the directed
schedules (schedules.py), each with a few seeds. Where that takes long, tests/planted/found.toml names a trial to begin
with; it is found anew by `--find`, and a hint that no longer helps costs time, not the verdict. A fault counts as
caught by the invariant that it breaks. A core that merely fails (an exception, with its own assertions taken out) is
noted and passed over.
"""

from __future__ import annotations

import argparse
import gc
import json
import os
import signal
import subprocess
import sys
import time
import tomllib
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from tempfile import gettempdir
from typing import NamedTuple

from migratory_simulation import planted, planted_unit
from migratory_simulation.planted import PLANTED, ROOT, PlantedFault

FOUND = PLANTED / "found.toml"
LIMIT = 200  # trials that a fault may survive
ROUND = 6  # drawn plans before the schedules have their turn
ROUNDS = 4  # turns of the schedules
TRIAL_LIMIT = 90  # seconds for one trial: a wrong version may also run for ever
HEAD = """# Written by `python -m migratory_simulation planted --find`: for each planted fault a trial that catches it,
# to begin with; the invariant that it breaks there; and how many trials the search takes without that hint at most
# (0: the trial is beyond the search, by its seed).
"""


class Trial(NamedTuple):
    """A run: of a directed schedule, or ("") of the plan that its seed draws."""

    schedule: str
    seed: int

    def __str__(self) -> str:
        return f"{self.schedule or 'seed'} {self.seed}"

    @staticmethod
    def parse(text: str) -> Trial:
        schedule, seed = text.rsplit(" ", 1)
        return Trial("" if schedule == "seed" else schedule, int(seed))


@dataclass(frozen=True)
class Verdict:
    """`trials` tried until it was caught (`by`), all of them when `by` is None. `broke` is the invariant."""

    fault: PlantedFault
    trials: int
    by: Trial | None
    broke: int
    said: str
    seconds: float = 0.0


class Found(NamedTuple):
    """What was kept of a search. `unaided`: trials without the hint, at most; 0 where that is not known."""

    trial: Trial
    broke: int
    unaided: int


# ---- one fault ---------------------------------------------------------------------------------------------------


def order(limit: int, names: Sequence[str]) -> Iterator[Trial]:
    """The search without hints: `limit` drawn plans, with all schedules behind each of the first rounds."""
    for seed in range(1, limit + 1):
        yield Trial("", seed)
        if seed % ROUND == 0 and seed // ROUND <= ROUNDS:
            yield from (Trial(name, seed // ROUND) for name in names)


def first_trials(count: int) -> Iterator[Trial]:
    """A mixture for those that can afford but a few: two drawn plans, then each schedule, then drawn plans again."""
    from migratory_simulation import schedules

    trials = [Trial("", 1), Trial("", 2), *(Trial(name, 1) for name in schedules.ALL)]
    yield from (trials + [Trial("", seed) for seed in range(3, count + 1)])[:count]


def hunt(fault: PlantedFault, hints: Sequence[Trial], limit: int) -> Verdict:
    """Plant it into this process and try. Nothing of the product may have been imported before."""
    planted.plant(fault)
    signal.signal(signal.SIGALRM, _too_long)
    return judge(fault, hints, limit)


def judge(fault: PlantedFault, hints: Sequence[Trial], limit: int) -> Verdict:
    """Try, with whatever is planted in this process."""
    # Only now: a planted fault must be there before the cores are imported.
    from migratory_simulation import schedules

    gc.freeze()  # a world is cyclic garbage when its run is over: to look for some all the time costs more
    gc.set_threshold(100_000, 50, 1000)
    failed = ""
    tried = 0
    seen = set(hints)
    for trial in (*hints, *(trial for trial in order(limit, tuple(schedules.ALL)) if trial not in seen)):
        tried += 1
        signal.alarm(TRIAL_LIMIT)
        report = schedules.run_trial(trial.schedule, trial.seed)
        signal.alarm(0)
        if report.invariant > 0:
            return Verdict(fault, tried, trial, report.invariant, report.violation.splitlines()[0])
        if report.violation and not failed:
            failed = f"; {trial}: {report.violation.splitlines()[0]}"
    return Verdict(fault, tried, None, 0, f"SURVIVED {tried} trials{failed}")


def _too_long(number: int, frame: object) -> None:
    raise TimeoutError(f"no end after {TRIAL_LIMIT} s")


def _apart(fault: PlantedFault, hints: Sequence[Trial], limit: int) -> Verdict:
    """`hunt` in a process of its own."""
    began = time.monotonic()
    environment = dict(os.environ)
    paths = [str(ROOT / "tests" / "support"), *filter(None, [environment.get("PYTHONPATH", "")])]
    environment["PYTHONPATH"] = os.pathsep.join(paths)
    command = [sys.executable, "-m", "migratory_simulation", "hunt", fault.name, "--limit", str(limit)]
    for hint in hints:
        command += ["--hint", str(hint)]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    spent = time.monotonic() - began
    if done.returncode != 0:
        return Verdict(fault, 0, None, 0, (done.stderr or done.stdout).strip().splitlines()[-1], spent)
    said = json.loads(done.stdout.splitlines()[-1])
    by = None if said["by"] is None else Trial.parse(said["by"])
    return Verdict(fault, said["trials"], by, said["broke"], said["said"], spent)


# ---- what was kept -----------------------------------------------------------------------------------------------


def load_found(path: Path = FOUND) -> dict[str, Found]:
    if not path.exists():
        return {}
    data = tomllib.loads(path.read_text())
    return {
        entry["fault"]: Found(Trial.parse(entry["trial"]), entry["breaks"], entry["unaided"])
        for entry in data.get("found", [])
    }


def save_found(found: dict[str, Found], path: Path = FOUND) -> None:
    """In the order of the faults; what is kept of a fault that is gone goes."""
    blocks = [
        f"[[found]]\nfault = {json.dumps(fault.name)}\ntrial = {json.dumps(str(entry.trial))}\n"
        f"breaks = {entry.broke}\nunaided = {entry.unaided}\n"
        for fault in planted.load()
        if (entry := found.get(fault.name)) is not None
    ]
    path.write_text("\n".join([HEAD, *blocks]))


# ---- all faults --------------------------------------------------------------------------------------------------


def stale(faults: Sequence[PlantedFault]) -> list[str]:
    """Edits that do not apply any more: the code has moved on, and the data must follow."""
    texts = []
    for fault in faults:
        for edit in fault.edits:
            try:
                edit.applied()
            except ValueError as error:
                texts.append(f"{fault.name}: {error}")
    return texts


def show(faults: Sequence[PlantedFault], limit: int, jobs: int, find: bool) -> int:
    """Try every fault; print a line for each as it is known. 0 when all were caught, 1 otherwise. `find`: without
    hints, and keep what was found."""
    texts = stale(faults)
    if texts or not faults:
        print("\n\n".join(f"STALE {text}" for text in texts) or "no such fault", file=sys.stderr)
        return 1
    kept = load_found()
    width = max(len(fault.name) for fault in faults)
    broke: Counter[int] = Counter()
    survived = 0

    def attempt(fault: PlantedFault) -> Verdict:
        hints = [kept[fault.name].trial] if fault.name in kept and not find else []
        return _apart(fault, hints, limit)

    began = time.monotonic()
    print(f"{'fault':<{width}}  broke  caught by (in so many trials)")
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for verdict in pool.map(attempt, faults):
            name, by = verdict.fault.name, verdict.by
            if by is None:
                survived += 1
                print(f"{name:<{width}}  NOT CAUGHT ({verdict.seconds:.1f} s)  {verdict.said[:150]}", flush=True)
                continue
            broke[verdict.broke] += 1
            if find:
                kept[name] = Found(by, verdict.broke, verdict.trials)
                save_found(kept)
            how = f"{by} ({verdict.trials})"
            unaided = f"unaided {kept[name].unaided if name in kept and kept[name].unaided else '?'}"
            text = verdict.said.split(": ", 1)[-1][:100]
            print(f"{name:<{width}}  {verdict.broke:>5}  {how:<28} {unaided:<12} {text}", flush=True)
    by_invariant = ", ".join(f"{count} by {number}" for number, count in sorted(broke.items()))
    spent = time.monotonic() - began
    print(
        f"{len(faults) - survived} of {len(faults)} planted faults caught in {spent:.0f} s; invariants: {by_invariant}"
    )
    return 1 if survived else 0


# ---- the command line --------------------------------------------------------------------------------------------


def add_arguments(commands: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    plant = commands.add_parser("planted", help="show that every planted fault is caught, and by which invariant")
    plant.add_argument("--limit", type=int, default=LIMIT, metavar="N", help=f"drawn plans for each ({LIMIT})")
    plant.add_argument("--only", action="append", default=[], metavar="NAME", help="these faults alone (repeatable)")
    plant.add_argument("--area", action="append", default=[], metavar="AREA", help="these files of faults alone")
    plant.add_argument("--jobs", type=int, default=1, metavar="N", help="faults tried at the same time (1)")
    plant.add_argument("--find", action="store_true", help="search without hints and keep what is found")
    plant.add_argument("--new", action="store_true", help="only faults of which nothing was kept yet")
    plant.add_argument("--unit", action="store_true", help="run the unit tests instead, and keep what they say")
    cache = Path(gettempdir()) / "migratory-mutation"
    plant.add_argument("--cache", type=Path, default=cache, metavar="DIR", help="of --unit: the map of lines to tests")
    plant.set_defaults(act=_planted)
    one = commands.add_parser("hunt", help="one planted fault in this process; prints JSON")
    one.add_argument("fault")
    one.add_argument("--hint", action="append", default=[], metavar="TRIAL", help='such as "seed 17"')
    one.add_argument("--limit", type=int, default=LIMIT)
    one.set_defaults(act=_hunt)


def selected(only: Sequence[str], area: Sequence[str]) -> list[PlantedFault]:
    if only:
        return [planted.named(name) for name in only]
    return [fault for fault in planted.load() if not area or fault.area in area]


def _planted(arguments: argparse.Namespace) -> int:
    faults = selected(arguments.only, arguments.area)
    if arguments.new and arguments.unit:
        results = planted_unit.load()
        faults = [f for f in faults if f.name not in results or results[f.name].digest != f.digest]
    elif arguments.new:
        kept = load_found()
        faults = [fault for fault in faults if fault.name not in kept]
    if arguments.unit:
        return planted_unit.show(faults, arguments.jobs, arguments.cache)
    return show(faults, arguments.limit, arguments.jobs, arguments.find)


def _hunt(arguments: argparse.Namespace) -> int:
    hints = [Trial.parse(text) for text in arguments.hint]
    verdict = hunt(planted.named(arguments.fault), hints, arguments.limit)
    by = None if verdict.by is None else str(verdict.by)
    print(json.dumps({"trials": verdict.trials, "by": by, "broke": verdict.broke, "said": verdict.said}))
    return 0
