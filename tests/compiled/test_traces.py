"""The simulation of a seed gives the same trace in both forms of the cores, to the last byte."""

from __future__ import annotations

import subprocess
import sys

from migratory_compiled import SWITCH
from migratory_simulation import planted

DIGESTS = """
import hashlib, sys
from migratory_compiled import activate
from migratory_simulation.options import draw_options
from migratory_simulation.world import run_seed

print(activate())
for word in sys.argv[1:]:
    profile, seed = word.split(":")
    digest = hashlib.sha256()
    report = run_seed(int(seed), lambda line: digest.update(line.encode()), draw_options(int(seed), profile))
    print(word, report.events, digest.hexdigest(), report.violation)
"""

SEEDS = ("long:4", "losses:7", *(f"short:{seed}" for seed in range(101, 113)))


def traces(switch: str) -> list[str]:
    """Return the form that ran, and a line for each seed."""
    command = [sys.executable, "-c", DIGESTS, *SEEDS]
    environment = planted.environment(**{SWITCH: switch})
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True, timeout=300)
    return done.stdout.splitlines()


def test_both_forms_give_the_same_traces() -> None:
    compiled, interpreted = traces("1"), traces("0")
    assert (compiled[0], interpreted[0]) == ("compiled", "interpreted")
    assert compiled[1:] == interpreted[1:]
    assert len({line.split()[2] for line in compiled[1:]}) == len(SEEDS)
