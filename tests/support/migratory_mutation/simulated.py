"""One mutant against the simulation, in a process of its own: `sources` and `seeds` as JSON on standard input.

Prints what was violated first, or nothing. The cores' own assertions count here: they are part of what runs.
"""

from __future__ import annotations

import json
import sys

from migratory_simulation import planted


def main() -> int:
    given = json.load(sys.stdin)
    planted.install_sources(given["sources"])
    # Only now: the mutant must be there before the cores are imported.
    from migratory_simulation import detection, schedules

    for trial in detection.first_trials(given["seeds"]):
        report = schedules.run_trial(trial.schedule, trial.seed)
        if report.violation:
            print(f"{trial}: {report.violation.splitlines()[0]}")
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
