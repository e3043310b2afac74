"""The sum of the reports of many seeds, and what they did not exercise enough."""

from __future__ import annotations

import time
from statistics import median

from migratory_compiled import activate

from migratory_simulation.coverage import Coverage
from migratory_simulation.world import Report

LEAST_EVENTS = 300
"""The least median of events per seed that counts as enough."""
LEAST_FAULTS = 3
"""The least median of effective faults per seed that counts as enough."""


class Summary:
    """The sum of the reports so far. `seconds` and `slowest` are virtual; `began` is the real moment of the start."""

    def __init__(self) -> None:
        self.began = time.monotonic()
        self.coverage = Coverage()
        self.events: list[int] = []
        self.faults: list[int] = []
        self.steps = 0
        self.seconds = 0.0
        self.slowest = 0.0
        self.violations = 0

    def add(self, report: Report) -> None:
        """Add the report of a seed."""
        self.coverage.update(report.coverage)
        self.events.append(report.events)
        self.faults.append(report.coverage.faults())
        self.steps += report.steps
        self.seconds += report.seconds
        self.slowest = max(self.slowest, report.recovery)
        self.violations += bool(report.violation)

    @property
    def seeds(self) -> int:
        return len(self.events)

    def shortages(self) -> list[str]:
        """Return an error text when something was never exercised, and one when the seeds had too few events or
        faults; [] when all is well."""
        errors = []
        if missing := self.coverage.missing():
            errors.append(f"never exercised: {', '.join(missing)}")
        if median(self.events) < LEAST_EVENTS or median(self.faults) < LEAST_FAULTS:
            errors.append(
                f"a median of {median(self.events):.0f} events and {median(self.faults):.0f} faults a seed; "
                f"at least {LEAST_EVENTS} and {LEAST_FAULTS} are wanted"
            )
        return errors

    def report(self) -> str:
        """Return the table of counters and the density of the seeds."""
        return (
            f"{self.coverage.table(self.seeds)}\n"
            f"per seed: median {median(self.events):.0f} events ({min(self.events)} to {max(self.events)}), "
            f"median {median(self.faults):.0f} faults that took effect (up to {max(self.faults)}); "
            f"{self.steps} steps of brokers; slowest recovery {self.slowest:.1f} s"
        )

    def line(self) -> str:
        """Return a summary of one line."""
        rate = sum(self.events) / max(time.monotonic() - self.began, 1e-9)
        return (
            f"{self.seeds} seeds of {activate()} cores, {self.seconds / 3600:.1f} simulated hours, "
            f"{rate:.0f} events per second, violations: {self.violations}"
        )
