"""One mutant in a process of its own: JSON on standard input, with `sources` and either `tests` or `seeds`.

With `tests`, the exit status is pytest's. With `seeds`, that many trials of the simulation run, and the first violation
is printed; the cores' own assertions count, as they are part of what runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

from migratory_simulation import planted
from migratory_simulation.patches import ROOT

TIME_LIMIT = 600.0
"""Seconds for one mutant: a wrong loop may never end."""


def start(**payload: Any) -> subprocess.CompletedProcess[str]:
    """Run a trial. Raise subprocess.TimeoutExpired when it does not end."""
    return subprocess.run(
        [sys.executable, "-m", "migratory_mutation.trial"],
        input=json.dumps(payload),
        cwd=ROOT,
        env=planted.environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=TIME_LIMIT,
    )


def main() -> int:
    payload = json.load(sys.stdin)
    planted.install_sources(payload["sources"])
    # The mutant must be in place before the cores are imported.
    if "tests" in payload:
        import pytest

        options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:cov", "-p", "no:xdist", "--no-header"]
        return int(pytest.main([*options, "--timeout=60", *payload["tests"]]))
    from migratory_simulation import detection, schedules

    for trial in detection.first_trials(payload["seeds"]):
        report = schedules.run_trial(trial.schedule, trial.seed)
        if report.violation:
            print(f"{trial}: {report.violation.splitlines()[0]}")
            return 0
    return 0


if __name__ == "__main__":
    sys.exit(main())
