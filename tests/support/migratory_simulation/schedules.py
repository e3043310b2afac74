"""Directed schedules: situations that rules are about and that random plans rarely produce.

Each is a script (scripts_*.py) over a small cluster without other faults. Its seed draws the delays, the clients and
the moments. Correct code holds all invariants in it; several planted faults are detected by nothing else within
reasonable time.
"""

from __future__ import annotations

from collections.abc import Callable

from migratory_simulation import (
    scripted,
    scripts_partitions,
    scripts_restarts,
    scripts_suspicion,
    scripts_takeover,
    scripts_topics,
    scripts_updates,
)
from migratory_simulation.world import Report, World, run_seed

SCRIPTS = (
    scripts_takeover,
    scripts_suspicion,
    scripts_restarts,
    scripts_partitions,
    scripts_updates,
    scripts_topics,
)
"""The modules of the scripts. Importing one registers its schedules."""
ALL = scripted.SCHEDULES
"""The schedules by name."""


def run_trial(name: str, seed: int, sink: Callable[[str], None] | None = None) -> Report:
    """Run the schedule of this name with the seed, or for "" the plan that the seed draws. Return the report. `sink`
    receives the lines of the trace. Raise KeyError for an unknown name."""
    if not name:
        return run_seed(seed, sink)
    schedule = ALL[name]

    def direct(world: World) -> None:
        scripted.ScriptedCluster(world, name, schedule.script)

    return run_seed(seed, sink, schedule.options(seed), direct)
