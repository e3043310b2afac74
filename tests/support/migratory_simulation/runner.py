"""Runs seeds one after the other and says what came out: the whole of `make sim`."""

from __future__ import annotations

import sys
import time
from collections import deque
from pathlib import Path

from migratory_simulation.coverage import Coverage
from migratory_simulation.options import draw_options
from migratory_simulation.world import Report, run_seed

TAIL = 60  # lines of a trace that are shown with a violation


def rerun_line(seed: int, planted: str | None) -> str:
    extra = "" if planted is None else f" --planted '{planted}'"
    command = f".venv/bin/python -m migratory_simulation run --seed {seed}{extra} --trace trace.txt"
    return f"PYTHONPATH=tests/support {command}"


def show_violation(report: Report, planted: str | None, lines: deque[str]) -> None:
    print(f"\nVIOLATION seed {report.seed} after {report.seconds:.3f} virtual seconds, {report.steps} steps")
    print(report.violation)
    options = draw_options(report.seed)
    print(
        f"\ncluster: {len(options.brokers)} brokers, minCopies {options.min_copies}, {options.groups} groups, topics "
        f"{', '.join(options.topics)}; plan ({'safe' if options.plan.safe else 'wild'}):"
    )
    for moment, fault in options.plan.faults:
        print(f"  {moment:8.3f} {fault}")
    print(f"\nthe last {len(lines)} lines of the trace:")
    for line in lines:
        print(" ", line)
    print(f"\nrerun it: {rerun_line(report.seed, planted)}\n", flush=True)


def run(
    *,
    first: int,
    seeds: int,
    single: bool,
    trace: Path | None,
    budget: float | None,
    planted: str | None,
    keep_going: bool,
    need_coverage: bool,
    quiet: bool,
) -> int:
    """0: every invariant held and everything was exercised; 1: a violation; 3: something was never exercised."""
    began = time.monotonic()
    total, events, steps, virtual, slowest, violations, done = Coverage(), 0, 0, 0.0, 0.0, 0, 0
    for seed in range(first, first + seeds):
        if budget is not None and time.monotonic() - began > budget:
            break
        report = _traced(seed, trace, planted) if single else run_seed(seed)
        done += 1
        total.update(report.coverage)
        events += report.events
        steps += report.steps
        virtual += report.seconds
        slowest = max(slowest, report.recovery)
        if report.violation:
            violations += 1
            if quiet or keep_going:
                print(f"seed {seed}: {report.violation.splitlines()[0]}", flush=True)
            elif not single:
                _traced(seed, trace, planted)
            if not keep_going:
                break
    spent = time.monotonic() - began
    if not quiet:
        print(total.table(done))
    print(
        f"{done} seeds, {steps} steps of brokers, {events} events, {virtual:.0f} virtual seconds in {spent:.1f} s "
        f"({events / max(spent, 1e-9):.0f} events/s); slowest recovery {slowest:.1f} s; violations: {violations}"
    )
    if violations:
        return 1
    missing = total.missing()
    if need_coverage and missing:
        print(f"never exercised: {', '.join(missing)}", file=sys.stderr)
        return 3
    return 0


def _traced(seed: int, trace: Path | None, planted: str | None) -> Report:
    """Run a seed with its trace; a violation is shown with the end of it."""
    lines: deque[str] = deque(maxlen=TAIL)
    if trace is None:
        report = run_seed(seed, lines.append)
    else:
        with trace.open("w") as file:

            def sink(line: str) -> None:
                file.write(line + "\n")
                lines.append(line)

            report = run_seed(seed, sink)
    if report.violation:
        show_violation(report, planted, lines)
    return report
