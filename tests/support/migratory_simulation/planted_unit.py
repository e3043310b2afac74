"""Which planted faults the unit tests let pass: `python -m migratory_simulation planted --unit`.

For each fault the unit tests that execute one of its lines run with it in place. What comes out is kept in
tests/planted/unit.toml with the day and the digest of the fault; a fault that was changed since is to be run again.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

from migratory_simulation import planted
from migratory_simulation.planted import PLANTED, ROOT, PlantedFault

KEPT = PLANTED / "unit.toml"
HEAD = """# Written by `python -m migratory_simulation planted --unit`: what the unit tests say about each fault.
# `failed` is the first test that fails, "" where all pass: then only the simulation catches it.
"""


class Result(NamedTuple):
    failed: str
    tests: int  # that execute a line of it
    day: str
    digest: str


def load(path: Path = KEPT) -> dict[str, Result]:
    if not path.exists():
        return {}
    return {
        entry["fault"]: Result(entry["failed"], entry["tests"], entry["day"], entry["digest"])
        for entry in tomllib.loads(path.read_text()).get("unit", [])
    }


def save(results: dict[str, Result], path: Path = KEPT) -> None:
    blocks = [
        f"[[unit]]\nfault = {json.dumps(fault.name)}\nfailed = {json.dumps(result.failed)}\ntests = {result.tests}\n"
        f"day = {json.dumps(result.day)}\ndigest = {json.dumps(result.digest)}\n"
        for fault in planted.load()
        if (result := results.get(fault.name)) is not None
    ]
    path.write_text("\n".join([HEAD, *blocks]))


def lines_of(fault: PlantedFault) -> dict[str, set[int]]:
    """File -> lines that its edits replace."""
    lines: dict[str, set[int]] = {}
    for edit in fault.edits:
        source = (ROOT / edit.file).read_text()
        begin = source.index(edit.old)
        first = source.count("\n", 0, begin) + 1
        lines.setdefault(edit.file, set()).update(range(first, first + edit.old.rstrip("\n").count("\n") + 1))
    return lines


def show(faults: Sequence[PlantedFault], jobs: int, cache: Path) -> int:
    """Run and keep them; 0 always: how many may pass is the business of a test."""
    from migratory_mutation.covering import Covering, fails

    covering = Covering(cache)
    kept = load()
    today = datetime.now(UTC).date().isoformat()

    def attempt(fault: PlantedFault) -> tuple[PlantedFault, Result]:
        tests = sorted({test for file, lines in lines_of(fault).items() for test in covering.tests(file, lines)})
        failed = fails(planted.patched(fault.edits), tests)
        return fault, Result(failed, len(tests), today, fault.digest)

    width = max(len(fault.name) for fault in faults)
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for fault, result in pool.map(attempt, faults):
            kept[fault.name] = result
            save(kept)
            verdict = result.failed or "passes"
            print(f"{fault.name:<{width}}  {result.tests:>4} tests  {verdict}", flush=True)
    survivors = sum(not kept[fault.name].failed for fault in faults)
    print(f"{survivors} of {len(faults)} planted faults pass the unit tests")
    return 0
