"""Planted faults: small deliberate mistakes in the cores, which the simulation must catch.

They are data, in tests/planted/*.toml: the file, the exact text, and the text that replaces it. A fault is applied
while its module is imported, in a process of its own; the tree is never edited. A text that is not found exactly once
fails loudly: the fault has gone stale and must be brought in step with the code.

`hunt.py` tries the faults, `planted_unit.py` shows which of them the unit tests let pass.
"""

from __future__ import annotations

import hashlib
import importlib.abc
import importlib.machinery
import sys
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, ModuleType

ROOT = Path(__file__).resolve().parents[3]
PLANTED = ROOT / "tests" / "planted"


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


WITHOUT_ASSERTIONS = Edit(
    "broker/migratory_broker/core/logic/context.py",
    "    if not condition:\n        raise InvariantError(rule)\n",
    "",
)
"""The cores' own assertions taken out: then a wrong version must be caught by the invariants, from outside."""


@dataclass(frozen=True)
class PlantedFault:
    """`breaks` are the invariants that it should break, as docs/replication.md numbers them. `assertions`: the cores'
    own assertions stay, because without them the fault is none that an invariant speaks of."""

    name: str
    area: str
    breaks: tuple[int, ...]
    edits: tuple[Edit, ...]
    assertions: bool = False

    @property
    def digest(self) -> str:
        """Of what is planted: results that were kept are of this very fault."""
        text = "\0".join(part for edit in self.edits for part in (edit.file, edit.old, edit.new))
        return hashlib.sha256(text.encode()).hexdigest()[:12]


def load() -> tuple[PlantedFault, ...]:
    """All faults, in the order of the files. The area is the file's name."""
    faults = []
    for path in sorted(PLANTED.glob("faults-*.toml")):
        for entry in tomllib.loads(path.read_text())["fault"]:
            edits = tuple(Edit(edit["file"], edit["old"], edit["new"]) for edit in entry["edit"])
            area = path.stem.removeprefix("faults-")
            faults.append(
                PlantedFault(entry["name"], area, tuple(entry["breaks"]), edits, entry.get("assertions", False))
            )
    return tuple(faults)


def named(name: str) -> PlantedFault:
    for fault in load():
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


def plant(fault: PlantedFault) -> None:
    """From now on the modules of `fault` are imported with its edits. Raises ValueError when one does not apply."""
    install([*fault.edits, *(() if fault.assertions else (WITHOUT_ASSERTIONS,))])


def install(edits: Iterable[Edit]) -> None:
    """The same for any edits."""
    install_sources(patched(edits))


def patched(edits: Iterable[Edit]) -> dict[str, str]:
    """Module -> source with the edits, several of one file one after the other. Raises ValueError as `applied`."""
    sources: dict[str, str] = {}
    for edit in edits:
        if edit.module not in sources:
            sources[edit.module] = edit.applied()
        elif sources[edit.module].count(edit.old) != 1:
            raise ValueError(f"{edit.file}: the second edit does not apply:\n{edit.old}")
        else:
            sources[edit.module] = sources[edit.module].replace(edit.old, edit.new)
    return sources


def install_sources(sources: dict[str, str]) -> None:
    """From now on these modules are imported from these sources."""
    for module in sources:
        if module in sys.modules:
            raise RuntimeError(f"{module} was imported before the fault was planted")
    sys.meta_path.insert(0, _Finder(sources))
