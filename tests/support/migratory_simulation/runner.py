"""Run seeds in one process or several, and report the outcome: the whole of `make sim`."""

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
from itertools import islice
from pathlib import Path

from migratory_simulation.coverage import Coverage
from migratory_simulation.options import Options, Profile, draw_options
from migratory_simulation.shrink import only, shrink
from migratory_simulation.summary import Outcome, Summary
from migratory_simulation.world import Report, run_seed

TAIL = 60
"""Lines of a trace that are shown with a violation."""
CHUNK = 25
"""The most seeds that a worker runs at a time."""
SPARE = 3
"""Chunks for each worker that are submitted ahead."""
EVERY = 1000
"""Seeds between two lines of progress."""


@dataclass(frozen=True)
class Run:
    """The seeds to run, and how. `faults`: the numbers of the faults to keep from the plan of a single seed."""

    first: int
    seeds: int
    profile: Profile
    single: bool = False
    faults: tuple[int, ...] | None = None
    jobs: int = 1
    trace: Path | None = None
    json: Path | None = None
    budget: float | None = None
    planted: str | None = None
    keep_going: bool = False
    need_coverage: bool = True
    quiet: bool = False
    shrink: bool = True

    def options(self, seed: int) -> Options:
        """Return the options of a seed."""
        drawn = draw_options(seed, self.profile)
        return drawn if self.faults is None else only(drawn, self.faults)

    def rerun(self, seed: int, kept: Sequence[int] | None) -> str:
        """Return the command that repeats the run of a seed."""
        words = [f"PYTHONPATH=tests/support .venv/bin/python -m migratory_simulation run --seed {seed}"]
        words.append(f"--profile {draw_options(seed, self.profile).profile}")
        if kept is not None:
            words.append(f"--faults {','.join(map(str, kept)) or 'none'}")
        if self.planted is not None:
            words.append(f"--planted '{self.planted}'")
        return " ".join((*words, "--trace trace.txt"))


# ---- workers -------------------------------------------------------------------------------------------------------


def run_chunk(run: Run, first: int, count: int) -> tuple[list[Outcome], Coverage]:
    """Run consecutive seeds, up to the first violation unless the run continues after violations."""
    coverage, outcomes = Coverage(), []
    for seed in range(first, first + count):
        report = run_seed(seed, options=run.options(seed))
        coverage.update(report.coverage)
        outcomes.append(outcome_of(report))
        if report.violation and not run.keep_going:
            break
    return outcomes, coverage


def outcome_of(report: Report) -> Outcome:
    """Return the outcome of a report."""
    return Outcome(
        report.seed,
        report.violation,
        report.invariant,
        report.steps,
        report.events,
        report.coverage.faults(),
        report.seconds,
        report.recovery,
    )


def few_collections() -> None:
    """Make garbage collections rare. A world is cyclic garbage after its seed; frequent collections would cost a
    fifth of the run."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(100_000, 50, 1000)


def chunks(run: Run) -> Iterator[tuple[int, int]]:
    """Yield the first seed and the number of seeds of each chunk."""
    size = max(1, min(CHUNK, run.seeds // run.jobs))
    for first in range(run.first, run.first + run.seeds, size):
        yield first, min(size, run.first + run.seeds - first)


def outcomes_of(run: Run) -> Iterator[tuple[list[Outcome], Coverage]]:
    """Yield the outcomes of the chunks in the order of their seeds, whichever worker ran them."""
    if run.jobs == 1:
        few_collections()
        for first, count in chunks(run):
            yield run_chunk(run, first, count)
        return
    # Forked workers keep a planted fault, which was applied when the cores were imported.
    context = multiprocessing.get_context("fork")
    with ProcessPoolExecutor(run.jobs, context, few_collections) as pool:
        todo = chunks(run)
        waiting = deque(pool.submit(run_chunk, run, *chunk) for chunk in islice(todo, run.jobs * SPARE))
        try:
            while waiting:
                done = waiting.popleft().result()
                if (chunk := next(todo, None)) is not None:
                    waiting.append(pool.submit(run_chunk, run, *chunk))
                yield done
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


# ---- the run -------------------------------------------------------------------------------------------------------


def run(run: Run) -> int:
    """Run the seeds. Return 0 when all invariants held and everything was exercised, 1 for a violation, 3 when a
    required counter is zero."""
    began = time.monotonic()
    total = Summary()
    if run.single:
        report = traced(run, run.first)
        total.add([outcome_of(report)], report.coverage)
    else:
        for outcomes, coverage in outcomes_of(run):
            before = total.seeds
            total.add(outcomes, coverage)
            for outcome in outcomes:
                if outcome.violation and run.keep_going:  # now, not only after all other seeds
                    print(f"seed {outcome.seed}: {outcome.violation.splitlines()[0]}", file=sys.stderr, flush=True)
            total.spent = time.monotonic() - began
            progress(run, total, before)
            if (total.violations and not run.keep_going) or (run.budget is not None and total.spent > run.budget):
                break
    total.spent = time.monotonic() - began
    for outcome in total.violations:
        if run.quiet or run.keep_going:
            print(f"seed {outcome.seed}: {outcome.violation.splitlines()[0]}", flush=True)
    if total.violations and not (run.quiet or run.keep_going or run.single):
        traced(run, total.violations[0].seed)
    if run.json is not None:
        total.write(run.json, first=run.first, profile=run.profile, finished=total.seeds == run.seeds)
    if not run.quiet:
        print(total.report())
    missing = total.coverage.missing() if run.need_coverage else []
    thin = total.thin() if run.need_coverage else ""
    if missing:
        print(f"never exercised: {', '.join(missing)}", file=sys.stderr)
    if thin:
        print(thin, file=sys.stderr)
    sys.stderr.flush()
    print(total.line(), flush=True)
    if total.violations:
        return 1
    return 3 if missing or thin else 0


def progress(run: Run, total: Summary, before: int) -> None:
    """Print a line every thousand seeds."""
    if total.seeds // EVERY == before // EVERY:
        return
    if not run.quiet:
        print(f"{time.strftime('%H:%M:%S')} {total.line()}", flush=True)
    if run.json is not None:
        total.write(run.json, first=run.first, profile=run.profile, finished=False)


def traced(run: Run, seed: int) -> Report:
    """Run a seed with its trace. Show and minimise a violation."""
    lines: deque[str] = deque(maxlen=TAIL)
    options = run.options(seed)
    with (run.trace or Path(os.devnull)).open("w") as file:

        def sink(line: str) -> None:
            file.write(line + "\n")
            lines.append(line)

        report = run_seed(seed, sink, options)
    if report.violation:
        show(run, report, options, lines)
    return report


def show(run: Run, report: Report, options: Options, lines: deque[str]) -> None:
    """Print a violation, the plan, the end of the trace, and the command that repeats the run."""
    print(f"\nVIOLATION seed {report.seed} after {report.seconds:.3f} virtual seconds, {report.steps} steps")
    print(report.violation)
    print(
        f"\ncluster: {len(options.brokers)} brokers, minCopies {options.min_copies}, {options.groups} groups, topics "
        f"{', '.join(options.topics)}; plan ({'safe' if options.plan.safe else 'wild'}):"
    )
    numbers = run.faults or range(len(options.plan.faults))
    for number, (moment, fault) in zip(numbers, options.plan.faults, strict=True):
        print(f"  {number:3} {moment:8.3f} {fault}")
    print(f"\nthe last {len(lines)} lines of the trace:")
    for line in lines:
        print(" ", line)
    print(f"\nrerun it: {run.rerun(report.seed, run.faults)}")
    if run.shrink and run.faults is None:
        shrunk = shrink(options)
        print(
            f"\n{len(shrunk.kept)} of its {len(options.plan.faults)} faults are enough ({shrunk.tries} runs tried): "
            f"{shrunk.violation.splitlines()[0]}"
        )
        for number in shrunk.kept:
            moment, fault = options.plan.faults[number]
            print(f"  {number:3} {moment:8.3f} {fault}")
        print(f"rerun that: {run.rerun(report.seed, shrunk.kept)}")
    print(flush=True)
