"""Planted faults: small deliberate mistakes in the cores, which the simulation must catch.

They are data, in tests/planted/faults.toml: the file, the exact text, and the text that replaces it. A fault is applied
while its module is imported, in a process of its own; the tree is never edited. A text that is not found exactly once
fails loudly: the fault has gone stale and must be brought in step with the code.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import os
import subprocess
import sys
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[3]
FAULTS = ROOT / "tests" / "planted" / "faults.toml"


@dataclass(frozen=True)
class Edit:
    """`file` is relative to the repository; `old` occurs in it exactly once."""

    file: str
    old: str
    new: str

    @property
    def module(self) -> str:
        parts = Path(self.file).with_suffix("").parts
        start = next(index for index, part in enumerate(parts) if part.startswith("migratory_"))
        return ".".join(parts[start:])

    def applied(self) -> str:
        """The patched source. Raises ValueError when the edit no longer applies."""
        source = (ROOT / self.file).read_text()
        count = source.count(self.old)
        if count != 1:
            raise ValueError(f"{self.file}: the text to replace occurs {count} times, not once:\n{self.old}")
        return source.replace(self.old, self.new)


@dataclass(frozen=True)
class PlantedFault:
    """`breaks` are the invariants that it should break, as docs/replication.md numbers them."""

    name: str
    breaks: tuple[int, ...]
    edits: tuple[Edit, ...]
    first: int = 1  # the first seed to try: where rare circumstances are needed, the data may name good ones
    seeds: int = 0  # how many seeds it may survive, 0: as many as the others


def load(kind: str = "fault") -> tuple[PlantedFault, ...]:
    """The faults that must be caught, or those known to be "uncaught"."""
    data = tomllib.loads(FAULTS.read_text())
    faults = []
    for entry in data[kind]:
        edits = tuple(Edit(edit["file"], edit["old"], edit["new"]) for edit in entry["edit"])
        faults.append(
            PlantedFault(entry["name"], tuple(entry["breaks"]), edits, entry.get("first", 1), entry.get("seeds", 0))
        )
    return tuple(faults)


def named(name: str) -> PlantedFault:
    for fault in (*load(), *load("uncaught")):
        if fault.name == name:
            return fault
    raise SystemExit(f"no planted fault {name!r}; there are: {', '.join(fault.name for fault in load())}")


class _Loader(importlib.machinery.SourceFileLoader):
    """Compiles the patched source, past every cache of byte code."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        source = self._sources.get(fullname)
        if source is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, source)
        return spec


def install(fault: PlantedFault) -> None:
    """From now on the modules of `fault` are imported with its edits. Raises ValueError when one does not apply."""
    sources: dict[str, str] = {}
    for edit in fault.edits:
        if edit.module in sys.modules:
            raise RuntimeError(f"{edit.module} was imported before the fault was planted")
        if edit.module in sources:
            if sources[edit.module].count(edit.old) != 1:
                raise ValueError(f"{edit.file}: the second edit does not apply:\n{edit.old}")
            sources[edit.module] = sources[edit.module].replace(edit.old, edit.new)
        else:
            sources[edit.module] = edit.applied()
    sys.meta_path.insert(0, _Finder(sources))


@dataclass(frozen=True)
class Caught:
    fault: PlantedFault
    seeds: int  # tried until it was caught, 0: it survived
    seconds: float
    said: str


def _try(fault: PlantedFault, seeds: int) -> Caught:
    began = time.monotonic()
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(
        [str(ROOT / "tests" / "support"), *filter(None, [environment.get("PYTHONPATH", "")])]
    )
    command = [
        sys.executable,
        "-m",
        "migratory_simulation",
        "run",
        "--planted",
        fault.name,
        "--first",
        str(fault.first),
        "--seeds",
        str(fault.seeds or seeds),
        "--quiet",
        "--no-coverage",
    ]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    spent = time.monotonic() - began
    lines = done.stdout.splitlines()
    if done.returncode == 1 and lines and lines[0].startswith("seed "):
        number, said = lines[0].removeprefix("seed ").split(": ", 1)
        return Caught(fault, int(number) - fault.first + 1, spent, said)
    if done.returncode == 0:
        return Caught(fault, 0, spent, "SURVIVED")
    return Caught(fault, 0, spent, (done.stderr or done.stdout).strip().splitlines()[-1])


def show(seeds: int, only: tuple[str, ...], jobs: int) -> int:
    """Try every fault; print a line for each as it is known. 0 when all were caught, 1 otherwise."""
    uncaught = load("uncaught")
    faults = [fault for fault in (*load(), *(uncaught if only else ())) if not only or fault.name in only]
    stale = []
    for fault in (*faults, *uncaught):
        for edit in fault.edits:
            try:
                edit.applied()
            except ValueError as error:
                stale.append(f"{fault.name}: {error}")
    for text in stale:
        print(f"STALE {text}\n", file=sys.stderr)
    if stale or not faults:
        print(f"{len(stale)} edits no longer apply" if stale else "no such fault", file=sys.stderr)
        return 1
    width = max(len(fault.name) for fault in faults)
    survived = 0
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for caught in pool.map(lambda fault: _try(fault, seeds), faults):
            ok = caught.seeds > 0
            survived += not ok
            verdict = f"caught by seed {caught.seeds:>3}" if ok else "NOT CAUGHT       "
            print(f"{caught.fault.name:<{width}}  {verdict}  {caught.seconds:6.1f} s  {caught.said[:110]}", flush=True)
    print(f"{len(faults) - survived} of {len(faults)} planted faults caught")
    if not only:
        print(f"known not to be caught yet: {', '.join(fault.name for fault in uncaught)}")
    return 1 if survived else 0
