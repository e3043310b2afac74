"""Planted faults: small deliberate mistakes in the cores, each of which the simulation must detect.

They are data, in tests/planted/*.toml: structural edits of the product's source (patches.py). A fault is applied while
its module is imported, in a process of its own; the working tree is never edited. An edit that does not match exactly
once is an error: the code has changed, and the fault must follow it.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import multiprocessing
import os
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from types import CodeType, ModuleType

import migratory_compiled

from migratory_simulation.patches import ROOT, Edit, patched

PLANTED = ROOT / "tests" / "planted"

WITHOUT_ASSERTIONS = tuple(Edit(f"context.{name}", "if not condition: ...", "") for name in ("must", "expect"))
"""The edits that take out the cores' own assertions and their checks of peers' messages, so that the invariants must
detect a fault from outside."""


@dataclass(frozen=True)
class PlantedFault:
    """A deliberate mistake: its edits and the invariants that it should break, as docs/concepts/replication.md numbers
    them."""

    name: str
    area: str
    breaks: tuple[int, ...]
    edits: tuple[Edit, ...]
    assertions: bool = False
    """True if the cores' own assertions and checks stay in: without them no invariant is about this fault."""
    hint: str = ""
    """The trial to begin with, such as "tail cut 2", for a fault whose search takes long."""


def load() -> tuple[PlantedFault, ...]:
    """Return all faults, in the order of the files. The area is the file's name."""
    faults = []
    for path in sorted(PLANTED.glob("faults-*.toml")):
        for entry in tomllib.loads(path.read_text())["fault"]:
            entry["breaks"] = tuple(entry["breaks"])
            edits = tuple(Edit(edit["at"], edit.get("old"), edit["new"]) for edit in entry.pop("edit"))
            faults.append(PlantedFault(area=path.stem.removeprefix("faults-"), edits=edits, **entry))
    return tuple(faults)


def named(name: str) -> PlantedFault:
    """Return the fault of this name. Raise SystemExit with the list of names when there is none."""
    for fault in load():
        if fault.name == name:
            return fault
    raise SystemExit(f"no planted fault {name!r}; there are: {', '.join(fault.name for fault in load())}")


class _Loader(importlib.machinery.SourceFileLoader):
    """A loader that compiles the patched source and bypasses every cache of byte code."""

    def __init__(self, fullname: str, path: str, source: str) -> None:
        super().__init__(fullname, path)
        self._source = source

    def get_code(self, fullname: str) -> CodeType:
        return compile(self._source, self.path, "exec", dont_inherit=True)


class _Finder(importlib.abc.MetaPathFinder):
    """A finder that lets the import of the modules in `sources` compile these sources in place of the files."""

    def __init__(self, sources: dict[str, str]) -> None:
        self._sources = sources

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """Return the specification of a module with changed source, with a loader that compiles that. Return None for
        every other module."""
        source = self._sources.get(fullname)
        if source is None:
            return None
        spec = importlib.machinery.PathFinder.find_spec(fullname, path, target)
        if spec is not None and spec.origin is not None:
            spec.loader = _Loader(fullname, spec.origin, source)
        return spec


def plant(fault: PlantedFault) -> None:
    """Let later imports load the modules of `fault` with its edits and, unless the fault keeps them, without the cores'
    own assertions. Raise ValueError when an edit does not apply, RuntimeError when one of the modules is imported
    already."""
    install_sources(patched([*fault.edits, *(() if fault.assertions else WITHOUT_ASSERTIONS)]))


def install_sources(sources: dict[str, str]) -> None:
    """Let later imports load these modules (name -> source) from these sources, and all others interpreted: compiled
    code would not call the changed one. Raise RuntimeError when one is imported already, or the compiled form is."""
    for module in sources:
        if module in sys.modules:
            raise RuntimeError(f"{module} was imported before the fault was planted")
    os.environ[migratory_compiled.SWITCH] = "0"
    if migratory_compiled.activate() != "interpreted":
        raise RuntimeError("the compiled form of the cores was imported before the fault was planted")
    sys.meta_path.insert(0, _Finder(sources))


def fresh_processes(jobs: int) -> ProcessPoolExecutor:
    """Return a pool in which each task runs in a process of its own that has not imported the cores, so that the
    task may plant a fault."""
    return ProcessPoolExecutor(jobs, multiprocessing.get_context("spawn"), max_tasks_per_child=1)


def environment(**more: str) -> dict[str, str]:
    """Return the environment of a child process that imports what this process imports."""
    return {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), **more}


def run_command(*words: str) -> subprocess.CompletedProcess[str]:
    """Run `python -m migratory_simulation` with these arguments, and return the completed process with its output.
    Raise subprocess.TimeoutExpired after five minutes."""
    command = [sys.executable, "-m", "migratory_simulation", *words]
    return subprocess.run(
        command, cwd=ROOT, env=environment(), capture_output=True, text=True, check=False, timeout=300
    )
