"""Run seeds in several processes and report the outcome: the whole of `make sim`. A violation is repeated with a trace
and minimised."""

from __future__ import annotations

import gc
import multiprocessing
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from migratory_simulation.options import Options, Profile, draw_options, profile_of
from migratory_simulation.shrink import only, shrink
from migratory_simulation.summary import Summary
from migratory_simulation.world import Report, run_seed

TAIL = 60
"""Lines of a trace that are shown with a violation."""
CHUNK = 25
"""The most seeds that a worker runs at a time."""
EVERY = 1000
"""Seeds between two lines of progress."""


@dataclass(frozen=True)
class Batch:
    """The seeds to run, and how. `faults`: the numbers of the faults to keep from the plans; all by default."""

    seeds: range
    profile: Profile
    jobs: int = 1
    planted: str | None = None
    faults: tuple[int, ...] | None = None

    def options(self, seed: int) -> Options:
        """Return the options of a seed, with only the chosen faults. Raise ValueError for a number that the plan
        lacks."""
        drawn = draw_options(seed, self.profile)
        return drawn if self.faults is None else only(drawn, self.faults)

    def run_seed(self, seed: int) -> Report:
        """Run a seed without a trace, and return its report."""
        return run_seed(seed, options=self.options(seed))

    def rerun(self, seed: int, kept: Sequence[int] | None) -> str:
        """Return the shell command that repeats the run of a seed, with only the faults `kept` (None: all), and writes
        its trace."""
        words = [f"PYTHONPATH=tests/support .venv/bin/python -m migratory_simulation run --seed {seed}"]
        words.append(f"--profile {self.profile if self.profile == 'losses' else profile_of(seed, self.profile)}")
        if kept is not None:
            words.append(f"--faults {','.join(map(str, kept)) or 'none'}")
        if self.planted is not None:
            words.append(f"--planted '{self.planted}'")
        return " ".join((*words, "--trace trace.txt"))


def few_collections() -> None:
    """Make garbage collections of this process rare. A world is cyclic garbage after its seed; frequent collections
    would cost a fifth of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def reports(batch: Batch) -> Iterator[Report]:
    """Yield the reports in the order of the seeds, which `Batch.jobs` processes run."""
    # Forked workers keep a planted fault, which was applied when the cores were imported.
    context = multiprocessing.get_context("fork")
    chunk = max(1, min(CHUNK, len(batch.seeds) // batch.jobs))
    with ProcessPoolExecutor(batch.jobs, context, few_collections) as pool:
        yield from pool.map(batch.run_seed, batch.seeds, chunksize=chunk)


def run(batch: Batch, *, keep_going: bool, need_coverage: bool) -> int:
    """Run the seeds up to the first violation, or with `keep_going` all of them, and print the outcome. Return 0 when
    all invariants held and everything was exercised, 1 for a violation, 3 when too little was exercised and
    `need_coverage` is true."""
    total = Summary()
    for report in reports(batch):
        total.add(report)
        if report.violation:
            print(f"seed {report.seed}: {report.violation.splitlines()[0]}", flush=True)
            if not keep_going:
                run_traced(batch, report.seed)
                break
        if total.seeds % EVERY == 0:
            print(f"{time.strftime('%H:%M:%S')} {total.line()}", flush=True)
    print(total.report())
    shortages = total.shortages() if need_coverage else []
    for shortage in shortages:
        print(shortage, file=sys.stderr, flush=True)
    print(total.line(), flush=True)
    return 1 if total.violations else 3 if shortages else 0


def run_one(batch: Batch, seed: int, trace: Path | None) -> int:
    """Run one seed with its trace, which is also written to the file `trace` if given, and print the outcome. Return 0
    when all invariants held, 1 for a violation."""
    total = Summary()
    total.add(run_traced(batch, seed, trace))
    print(total.report())
    print(total.line(), flush=True)
    return 1 if total.violations else 0


def run_traced(batch: Batch, seed: int, trace: Path | None = None) -> Report:
    """Run a seed with its trace, which is also written to the file `trace` if given, and return its report. Print and
    minimise a violation."""
    lines: deque[str] = deque(maxlen=TAIL)
    options = batch.options(seed)
    with (trace or Path(os.devnull)).open("w") as file:

        def sink(line: str) -> None:
            file.write(line + "\n")
            lines.append(line)

        report = run_seed(seed, sink, options)
    if report.violation:
        show(batch, report, options, lines)
    return report


def show(batch: Batch, report: Report, options: Options, lines: deque[str]) -> None:
    """Print a violation, the plan, the end of the trace, and the commands that repeat the run and its minimal form.
    Unless the faults were chosen by the user, search for that form first, which runs the seed many times."""
    print(f"\nVIOLATION seed {report.seed} after {report.seconds:.3f} virtual seconds, {report.steps} steps")
    print(report.violation)
    print(
        f"\ncluster: {len(options.brokers)} brokers, minCopies {options.min_copies}, {options.groups} groups, topics "
        f"{', '.join(options.topics)}; plan ({'safe' if options.plan.safe else 'wild'}):"
    )
    drawn = draw_options(report.seed, batch.profile).plan.faults
    show_faults(drawn, batch.faults or range(len(drawn)))
    print(f"\nthe last {len(lines)} lines of the trace:")
    for line in lines:
        print(" ", line)
    print(f"\nrerun it: {batch.rerun(report.seed, batch.faults)}")
    if batch.faults is None:
        shrunk = shrink(options)
        print(
            f"\n{len(shrunk.kept)} of its {len(drawn)} faults are enough ({shrunk.tries} runs tried): "
            f"{shrunk.violation.splitlines()[0]}"
        )
        show_faults(drawn, shrunk.kept)
        print(f"rerun that: {batch.rerun(report.seed, shrunk.kept)}")
    print(flush=True)


def show_faults(drawn: Sequence[tuple[float, object]], numbers: Sequence[int]) -> None:
    """Print the faults of these numbers in a plan."""
    for number in numbers:
        moment, fault = drawn[number]
        print(f"  {number:3} {moment:8.3f} {fault}")
