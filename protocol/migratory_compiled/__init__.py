"""The compiled form of the protocol, the cores and modules of the runtime: whether this process runs it, and how its
modules are imported.

`hatch_build.py` compiles them. The package of each compiled part calls `activate` before any of its modules is
imported. Compiled code lies in a folder that is named after the digest of its sources, so code whose sources were
edited is never found (docs/decisions/0008-compiled-cores.md).
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from functools import cache
from hashlib import sha256
from importlib.abc import MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.util import spec_from_file_location
from pathlib import Path
from types import ModuleType
from typing import Literal

Form = Literal["compiled", "interpreted"]

PACKAGES = ("migratory_protocol", "migratory_broker.core", "migratory_broker.runtime", "migratory_client.core")
"""The packages that are compiled, as far as their modules can be. Their compiled code is valid only for all of these
sources together, because it has constants and layouts of other modules in it."""

SWITCH = "MIGRATORY_COMPILED"
"""The environment variable that chooses the form: 0 for interpreted, 1 for compiled or an error, unset for compiled
where it is there. With 1 the product is built compiled, else interpreted."""

FOLDER = "migratory_cores"
"""The folder on the module search path that has a folder for each compiled set of sources."""

SUFFIX = EXTENSION_SUFFIXES[0]
"""The suffix of compiled modules, with Python's version and the platform: `.cpython-311-x86_64-linux-gnu.so`."""


def switch() -> str:
    """Return the value of the environment variable MIGRATORY_COMPILED, "" when it is unset. Raise ImportError for a
    value that is not allowed."""
    value = os.environ.get(SWITCH, "")
    if value not in ("", "0", "1"):
        raise ImportError(
            f"{SWITCH}: {value!r} is not allowed; use 0 for interpreted, 1 for compiled, or unset it for "
            "compiled where it is there"
        )
    return value


def source_files(package: Path) -> list[Path]:
    """Return the Python files in the folder of a package and below it, in an order that does not depend on the
    machine."""
    return sorted(package.rglob("*.py"))


def digest(packages: Iterable[Path]) -> str:
    """Return the digest of the names and contents of all sources in these folders, for this version of Python and this
    platform: 32 hexadecimal digits."""
    content = sha256(SUFFIX.encode())
    for package in packages:
        for path in source_files(package):
            text = path.read_bytes()
            content.update(f"{path.relative_to(package).as_posix()}\0{len(text)}\0".encode())
            content.update(text)
    return content.hexdigest()[:32]


def _package_folder(name: str) -> Path | None:
    """Return the folder of a package, without importing it. Return None if its topmost package is not installed as
    files. The folder of an inner package is not checked."""
    root, *inner = name.split(".")
    spec = PathFinder.find_spec(root)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(next(iter(spec.submodule_search_locations)), *inner)


def _compiled_folder() -> Path | None:
    """Return the folder that has the compiled form of exactly these sources, None when there is none."""
    packages = [folder for name in PACKAGES if (folder := _package_folder(name)) is not None]
    spec = PathFinder.find_spec(FOLDER)
    if spec is None or len(packages) < len(PACKAGES):
        return None
    name = digest(packages)
    folders = (Path(location, name) for location in spec.submodule_search_locations or ())
    return next((folder for folder in folders if folder.is_dir()), None)


class _CompiledFinder(MetaPathFinder):
    """A finder of the compiled modules in a folder, by their whole names. It finds no other modules."""

    def __init__(self, folder: Path) -> None:
        self._files = {
            ".".join(path.relative_to(folder).parts).removesuffix(SUFFIX): path for path in folder.rglob(f"*{SUFFIX}")
        }

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        file = self._files.get(fullname)
        return None if file is None else spec_from_file_location(fullname, file)


@cache
def activate() -> Form:
    """Let later imports load the compiled modules, if there are any of exactly these sources and the environment
    variable MIGRATORY_COMPILED does not forbid it. Return the form that this process runs. Later calls return the same,
    and change nothing.

    Raises ImportError when the variable demands the compiled form and there is none of these sources, and when its
    value is not allowed.
    """
    wanted = switch()
    if wanted == "0":
        return "interpreted"
    folder = _compiled_folder()
    if folder is not None:
        sys.meta_path.insert(0, _CompiledFinder(folder))
        return "compiled"
    if wanted == "1":
        raise ImportError(
            f"{SWITCH}=1, but no compiled form of these sources is installed: they were edited "
            "after they were compiled, or never compiled; run `make compiled`, or unset the variable"
        )
    return "interpreted"
