"""The outcome of many seeds: added up, as text, and as JSON."""

from __future__ import annotations

import json
import os
from pathlib import Path
from statistics import median
from typing import NamedTuple

from migratory_simulation.coverage import Coverage

LEAST_EVENTS = 300
"""The least median of events per seed for a mixture of seeds that tests enough."""
LEAST_FAULTS = 3
"""The least median of effective faults per seed."""


class Outcome(NamedTuple):
    """The outcome of one seed, as a worker process returns it."""

    seed: int
    violation: str
    invariant: int
    steps: int
    events: int
    faults: int
    seconds: float
    recovery: float


class Summary:
    """The sum of the outcomes so far. `spent` is in real seconds, `virtual` in simulated seconds."""

    def __init__(self) -> None:
        self.coverage = Coverage()
        self.events: list[int] = []
        self.faults: list[int] = []
        self.steps = 0
        self.virtual = 0.0
        self.slowest = 0.0
        self.violations: list[Outcome] = []
        self.spent = 0.0

    def add(self, outcomes: list[Outcome], coverage: Coverage) -> None:
        """Add the outcomes and the coverage of a chunk of seeds."""
        self.coverage.update(coverage)
        for outcome in outcomes:
            self.events.append(outcome.events)
            self.faults.append(outcome.faults)
            self.steps += outcome.steps
            self.virtual += outcome.seconds
            self.slowest = max(self.slowest, outcome.recovery)
            if outcome.violation:
                self.violations.append(outcome)

    @property
    def seeds(self) -> int:
        return len(self.events)

    @property
    def rate(self) -> float:
        """Return the simulated events per real second."""
        return sum(self.events) / max(self.spent, 1e-9)

    def thin(self) -> str:
        """Return an error when the seeds had too few events or faults, "" when they were dense enough."""
        if median(self.events) < LEAST_EVENTS or median(self.faults) < LEAST_FAULTS:
            return (
                f"a median of {median(self.events):.0f} events and {median(self.faults):.0f} faults a seed; "
                f"at least {LEAST_EVENTS} and {LEAST_FAULTS} are wanted"
            )
        return ""

    def report(self) -> str:
        """Return the table of counters and the density of the seeds."""
        if not self.seeds:
            return "no seeds"
        return "\n".join(
            (
                self.coverage.table(self.seeds),
                f"per seed: median {median(self.events):.0f} events ({min(self.events)} to {max(self.events)}), "
                f"median {median(self.faults):.0f} faults that took effect (up to {max(self.faults)}); "
                f"{self.steps} steps of brokers; slowest recovery {self.slowest:.1f} s",
            )
        )

    def line(self) -> str:
        """Return a summary of one line."""
        return (
            f"{self.seeds} seeds, {self.virtual / 3600:.1f} simulated hours, {self.rate:.0f} events per second, "
            f"violations: {len(self.violations)}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the summary as a JSON object."""
        return {
            "seeds": self.seeds,
            "simulated_hours": round(self.virtual / 3600, 3),
            "real_seconds": round(self.spent, 1),
            "events_per_second": round(self.rate),
            "events": sum(self.events),
            "steps": self.steps,
            "median_events": median(self.events) if self.events else 0,
            "median_faults": median(self.faults) if self.faults else 0,
            "slowest_recovery": round(self.slowest, 3),
            "violations": [
                {"seed": outcome.seed, "invariant": outcome.invariant, "text": outcome.violation}
                for outcome in self.violations
            ],
            "never_exercised": self.coverage.missing(),
            "exercised": dict(sorted(self.coverage.items())),
        }

    def write(self, path: Path, **more: object) -> None:
        """Write the summary atomically: a reader sees the old file or the whole new one."""
        beside = path.with_name(path.name + ".new")
        beside.write_text(json.dumps({**more, **self.as_json()}, indent=1) + "\n")
        os.replace(beside, path)
