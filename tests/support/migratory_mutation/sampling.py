"""A bounded sample of mutants of the cores, tried with the unit tests that execute the line, then with the
simulation.

The sample is drawn from a seed: a run can be repeated, and a larger sample begins with the same mutants. Understood
survivors are listed in tests/mutation/survivors.toml by file, line text and change; any other survivor fails the
run.
"""

from __future__ import annotations

import json
import tomllib
from collections import Counter
from collections.abc import Sequence
from itertools import repeat
from pathlib import Path
from random import Random
from typing import NamedTuple

from migratory_simulation import detection, planted
from migratory_simulation.patches import ROOT, module_name

from migratory_mutation.covering import Covering, first_failure
from migratory_mutation.sites import Site, sites

CORES = {"logic": "broker/migratory_broker/core/logic", "edge": "broker/migratory_broker/core/edge"}
SURVIVORS = ROOT / "tests" / "mutation" / "survivors.toml"


class Mutant(NamedTuple):
    """A mutant: a file with one possible change, its site."""

    file: str
    site: Site

    @property
    def where(self) -> str:
        return f"{self.file.removeprefix('broker/migratory_broker/core/')}:{self.site.line}"

    @property
    def key(self) -> tuple[str, str, str]:
        """Return file, line text and change, by which survivors.toml names the mutant. The same change of an equal line
        in the file has the same key."""
        return self.file, self.site.text, self.site.title

    def sources(self) -> dict[str, str]:
        """Return the changed source of the mutant's module, by the module's name."""
        return {module_name(ROOT / self.file): self.site.applied((ROOT / self.file).read_text())}


class Outcome(NamedTuple):
    """The outcome of a mutant: detected by "unit" or "simulation", or "" for a survivor. `said` names the test or
    violation."""

    mutant: Mutant
    by: str
    said: str


def draw(core: str, count: int, seed: int) -> list[Mutant]:
    """Return `count` mutants of a core (all, if there are fewer), drawn with equal chance from all sites."""
    mutants = [
        Mutant(str(path.relative_to(ROOT)), site)
        for path in sorted((ROOT / CORES[core]).rglob("*.py"))
        for site in sites(path.read_text())
    ]
    Random(f"mutants {core} {seed}").shuffle(mutants)
    return mutants[:count]


def judge(mutant: Mutant, tests: Sequence[str], seeds: int) -> Outcome:
    """Put the mutant in place in this process, which has not imported the cores yet. Try the unit tests, then `seeds`
    trials of the simulation, and return the outcome.

    The cores' own assertions count, as they are part of what runs.
    """
    planted.install_sources(mutant.sources())
    if failed := first_failure(tests):
        return Outcome(mutant, "unit", failed)
    verdict = detection.search(detection.first_trials(seeds), least=0)
    return Outcome(mutant, "simulation" if verdict.by else "", verdict.message if verdict.by else "")


def explained(path: Path = SURVIVORS) -> dict[tuple[str, str, str], str]:
    """Return the reasons of the explained survivors, by their `Mutant.key`."""
    data = tomllib.loads(path.read_text()) if path.exists() else {}
    return {(entry["file"], entry["line"], entry["change"]): entry["why"] for entry in data.get("survivor", [])}


def run(cores: Sequence[str], count: int, seed: int, seeds: int, jobs: int, folder: Path) -> int:
    """Try the mutants; print each outcome and a table. Return 0 when every survivor is explained, 1 otherwise."""
    covering = Covering(folder)
    known = explained()
    mutants = [mutant for core in cores for mutant in draw(core, count, seed)]
    counts: Counter[tuple[str, str]] = Counter()
    unexplained = []
    tests = [covering.tests(mutant.file, [mutant.site.line]) for mutant in mutants]
    with planted.fresh_processes(jobs) as pool:
        for outcome in pool.map(judge, mutants, tests, repeat(seeds)):
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
    """Return the numbers of outcomes of each core as a table."""
    columns = ("unit", "simulation", "explained", "survived")
    lines = ["", "| core | mutants | " + " | ".join(columns) + " |", "| --- " * (len(columns) + 2) + "|"]
    for core in cores:
        row = [counts[core, column] for column in columns]
        lines.append(f"| {core} | {sum(row)} | " + " | ".join(map(str, row)) + " |")
    return "\n".join(lines)
