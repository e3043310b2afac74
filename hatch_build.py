"""The build of the cores' compiled form: a build hook of hatchling, and a program.

As a hook it puts the compiled form into wheels and editable installs when `MIGRATORY_COMPILED=1`. As a program
(`python hatch_build.py`) it compiles into out/compiled, and prints the folder for PYTHONPATH. Both need a C compiler
and Python's headers, unless out/compiled has the compiled form of these sources already.

It is not hatch-mypyc, which puts compiled modules beside their sources: in an editable install an edited source would
not run then (docs/decisions/0008-compiled-cores.md).
"""

from __future__ import annotations

import ast
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from contextlib import chdir
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

ROOT = Path(__file__).resolve().parent
sys.path.insert(0, str(ROOT / "protocol"))
import migratory_compiled  # noqa: E402 - from this tree, which is not installed yet
from migratory_compiled import compiler  # noqa: E402

FOLDERS = (ROOT / "protocol", ROOT / "broker", ROOT / "broker", ROOT / "clients/python")
"""The folders of the packages of `migratory_compiled.PACKAGES`, in that order."""

INTERPRETED = {
    "clients/python/migratory_client/core/settings.py",
    "broker/migratory_broker/core/edge/config.py",
    "broker/migratory_broker/core/logic/config.py",
    "broker/migratory_broker/core/security/rules.py",
    "protocol/migratory_protocol/origins.py",
    "protocol/migratory_protocol/positions.py",
}
"""Modules with classes whose annotations are read when they run, by msgspec or dataclasses: mypyc keeps the names of
fields only, so that msgspec would accept a position of negative numbers."""

RUNTIME = {
    "broker/migratory_broker/runtime/pump.py",
    "broker/migratory_broker/runtime/clients/connection.py",
    "broker/migratory_broker/runtime/clients/multicast.py",
    "broker/migratory_broker/runtime/clients/pending.py",
    "broker/migratory_broker/runtime/clients/unhandled.py",
}
"""The modules of the runtime through which every publication passes. Its others are not compiled: they wait for the
outside world, or derive from classes of libraries."""

OUTPUT = ROOT / "out/compiled"

FLAGS = ["--explicit-package-bases", "--ignore-missing-imports"]
"""Options of the type checker. It follows imports to libraries whose code is not compiled and which a build lacks."""


def packages() -> list[Path]:
    """Return the folders of the packages to compile."""
    return [Path(folder, *name.split(".")) for folder, name in zip(FOLDERS, migratory_compiled.PACKAGES, strict=True)]


def is_compilable(source: Path) -> bool:
    """Return whether mypyc can compile a module. It cannot compile classes of msgspec, nor classes with keywords; and a
    package's `__init__` has nothing to gain."""
    classes = [node for node in ast.walk(ast.parse(source.read_text())) if isinstance(node, ast.ClassDef)]
    bases = {ast.unparse(base) for node in classes for base in node.bases}
    keywords = any(node.keywords for node in classes)
    return source.name != "__init__.py" and not keywords and bases.isdisjoint({"Struct", "msgspec.Struct"})


def is_compiled(source: Path) -> bool:
    """Return whether a module of `packages` belongs to the compiled form."""
    name = source.relative_to(ROOT).as_posix()
    if name.startswith("broker/migratory_broker/runtime/"):
        return name in RUNTIME
    return name not in INTERPRETED and is_compilable(source)


def compile_cores() -> Path:
    """Compile the cores, if that is not done yet, and return the folder with the compiled modules. Exit with what is
    missing when it is not possible, and with what the type checker or the C compiler said when it fails."""
    name = migratory_compiled.digest(packages())
    done = OUTPUT / "lib" / migratory_compiled.FOLDER / name
    if not done.is_dir():
        if missing := compiler.missing():
            sys.exit(f"the cores cannot be compiled: {missing}")
        done.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=OUTPUT) as temporary:
            built = Path(temporary, "lib")
            _compile(built)
            if migratory_compiled.digest(packages()) != name:
                sys.exit("the sources changed while they were compiled; compile them again")
            built.rename(done)  # the folder appears whole, or not at all
    return done


def _compile(target: Path) -> None:
    os.environ["MYPYPATH"] = os.pathsep.join(map(str, FOLDERS))
    from mypyc.build import mypycify
    from setuptools import Distribution
    from setuptools.command.build_ext import build_ext

    sources = [
        str(path.relative_to(ROOT))  # as tracebacks show it
        for package in packages()
        for path in migratory_compiled.source_files(package)
        if is_compiled(path)
    ]
    cache = OUTPUT / "build"
    with chdir(ROOT):
        extensions = mypycify(
            [*FLAGS, f"--cache-dir={cache / 'mypy'}", "--config-file=", *sources],
            opt_level="1",  # half of the compiler's time at "3"; most of the time is spent in Python's own functions
            debug_level="0",
            multi_file=True,
            group_name=migratory_compiled.FOLDER,
            target_dir=str(cache),
        )
        command = build_ext(Distribution({"name": migratory_compiled.FOLDER, "ext_modules": extensions}))
        command.build_lib, command.build_temp = str(target), str(cache / "objects")
        command.ensure_finalized()
        command.build_extensions = lambda: _build_parallel(command)
        command.run()


def _build_parallel(command: Any) -> None:
    """Build the extensions one after the other, and the objects of each on all cores: one of them has all the code."""
    compile_all = command.compiler.compile

    def compile_parallel(sources: list[str], **options: Any) -> list[str]:
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            return [name for names in pool.map(lambda one: compile_all([one], **options), sources) for name in names]

    command.compiler.compile = compile_parallel
    for extension in command.extensions:
        command.build_extension(extension)


def _is_wanted() -> bool:
    return migratory_compiled.switch() == "1"


class CompiledCores(BuildHookInterface):  # type: ignore[type-arg]
    """The hook. Its option `compile-with` has the requirements that it compiles with."""

    PLUGIN_NAME = "custom"

    def dependencies(self) -> list[str]:
        return list(self.config["compile-with"]) if _is_wanted() else []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile the cores, and put them into the wheel `version`, "standard" or "editable"."""
        if not _is_wanted():
            return
        compiled = compile_cores()
        place = f"{migratory_compiled.FOLDER}/{compiled.name}"
        build_data["force_include_editable" if version == "editable" else "force_include"][str(compiled)] = place
        build_data["pure_python"] = False
        build_data["infer_tag"] = True


if __name__ == "__main__":
    print(compile_cores().parents[1])
