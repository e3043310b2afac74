"""A bounded sample of mutants of the cores: first the unit tests that execute the line, then seeds of the simulation.

The sample is drawn from a seed, so that a run can be repeated and a longer one begins with the same mutants. Survivors
that are understood are in tests/mutation/survivors.toml, found again by file, line text and change: one that is not
there fails the run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from typing import NamedTuple

from migratory_simulation.patches import ROOT, module_name
from migratory_simulation.planted import environment

from migratory_mutation.covering import Covering, fails
from migratory_mutation.sites import Site, sites

CORES = {"logic": "broker/migratory_broker/core/logic", "edge": "broker/migratory_broker/core/edge"}
SURVIVORS = ROOT / "tests" / "mutation" / "survivors.toml"
SIMULATION_LIMIT = 600.0  # seconds for the seeds of one mutant


class Mutant(NamedTuple):
    file: str
    site: Site

    @property
    def where(self) -> str:
        return f"{self.file.removeprefix('broker/migratory_broker/core/')}:{self.site.line}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Stays the same when lines move."""
        return self.file, self.site.text, self.site.title

    def sources(self) -> dict[str, str]:
        return {module_name(ROOT / self.file): self.site.applied((ROOT / self.file).read_text())}


class Outcome(NamedTuple):
    """`by`: "unit", "simulation", or "" for a survivor; `said`: the test, or the invariant, that noticed."""

    mutant: Mutant
    by: str
    said: str


def draw(core: str, count: int, seed: int) -> list[Mutant]:
    """`count` mutants of a core, every site as likely as any other."""
    mutants = [
        Mutant(str(path.relative_to(ROOT)), site)
        for path in sorted((ROOT / CORES[core]).rglob("*.py"))
        for site in sites(path.read_text())
    ]
    Random(f"mutants {core} {seed}").shuffle(mutants)
    return mutants[:count]


def simulate(mutant: Mutant, seeds: int) -> str:
    """What a simulation of so many seeds says against it, "" if nothing."""
    try:
        done = subprocess.run(
            [sys.executable, "-m", "migratory_mutation.simulated"],
            input=json.dumps({"sources": mutant.sources(), "seeds": seeds}),
            cwd=ROOT,
            env=environment(),
            capture_output=True,
            text=True,
            check=False,
            timeout=SIMULATION_LIMIT,
        )
    except subprocess.TimeoutExpired:
        return "no end"
    return done.stdout.strip() or (done.stderr.strip().splitlines()[-1] if done.returncode else "")


def judge(mutant: Mutant, covering: Covering, seeds: int) -> Outcome:
    failed = fails(mutant.sources(), covering.tests(mutant.file, [mutant.site.line]))
    if failed:
        return Outcome(mutant, "unit", failed)
    found = simulate(mutant, seeds)
    return Outcome(mutant, "simulation" if found else "", found)


def explained(path: Path = SURVIVORS) -> dict[tuple[str, str, str], str]:
    data = tomllib.loads(path.read_text()) if path.exists() else {}
    return {(entry["file"], entry["line"], entry["change"]): entry["why"] for entry in data.get("survivor", [])}


def run(cores: Sequence[str], count: int, seed: int, seeds: int, jobs: int, folder: Path) -> int:
    """Print what becomes of each mutant, then a table. 0 when every survivor is explained, 1 otherwise."""
    covering = Covering(folder)
    known = explained()
    mutants = [mutant for core in cores for mutant in draw(core, count, seed)]
    counts: Counter[tuple[str, str]] = Counter()
    unexplained = []
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for outcome in pool.map(lambda mutant: judge(mutant, covering, seeds), mutants):
            mutant, verdict = outcome.mutant, outcome.by or "survived"
            if not outcome.by:
                verdict = "explained" if mutant.key in known else "SURVIVED"
                if mutant.key not in known:
                    unexplained.append(mutant)
            counts[mutant.file.split("/")[3], verdict.lower()] += 1
            print(f"{verdict:<10}  {mutant.where:<28}  {mutant.site.title:<60}  {outcome.said[:90]}", flush=True)
    print(table(cores, counts))
    for mutant in unexplained:
        print(f"\n[[survivor]]\nfile = {json.dumps(mutant.file)}\nline = {json.dumps(mutant.site.text)}")
        print(f'change = {json.dumps(mutant.site.title)}\nwhy = ""')
    return 1 if unexplained else 0


def table(cores: Sequence[str], counts: Counter[tuple[str, str]]) -> str:
    columns = ("unit", "simulation", "explained", "survived")
    lines = ["", "| core | mutants | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 2) + "|"]
    for core in cores:
        row = [counts[core, column] for column in columns]
        lines.append(f"| {core} | {sum(row)} | " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)
