"""Dependencies: every library that a part imports is declared for it, and every declared library is imported."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
EXTRAS = {
    "protocol": None,
    "clients/python": None,
    "cli": "all",
    "broker": "broker",
    "loadtest": "loadtest",
    "resources": "resources",
    "local": "local",
    "operator": "operator",
    "spark": "spark",
}
"""The extra of pyproject.toml that declares a part's libraries, by folder; None for a part that needs only the base's.

The command line has the extra `all`: each command imports the libraries of the part that it runs, when it runs.
"""
NOT_IMPORTED = {
    "tzdata": "read by zoneinfo",
    "pandas": "imported by PySpark",
}
"""Libraries that are declared although no module imports them, with the reason."""
LIBRARIES = importlib.metadata.packages_distributions()


def normalized(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def declared(extra: str | None) -> set[str]:
    """Return the normalized names of the libraries that the base and an extra declare, including those of the
    product's other extras that the extra names."""
    project = PROJECT["project"]
    requirements = [*project["dependencies"], *(project["optional-dependencies"][extra] if extra else ())]
    libraries: set[str] = set()
    for requirement in requirements:
        if own := re.fullmatch(r"migratory\[(.*)\]", requirement):
            for part in own[1].split(","):
                libraries |= declared(part.strip())
        else:
            libraries.add(normalized(re.split(r"[\[<>=!~; ]", requirement, maxsplit=1)[0]))
    return libraries


def imports(folder: str) -> Iterator[tuple[str, str]]:
    """Yield file and top-level name of every absolute import, except of the standard library and the product."""
    for path in sorted((ROOT / folder).rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                names = [str(node.module)]
            for name in {name.partition(".")[0] for name in names}:
                if name not in sys.stdlib_module_names and not name.startswith("migratory_"):
                    yield str(path.relative_to(ROOT)), name


def test_groups_that_the_makefile_installs_are_declared() -> None:
    installed = set(re.findall(r"--group (\w+)", (ROOT / "Makefile").read_text("utf-8")))
    assert installed == set(PROJECT["dependency-groups"])


@pytest.mark.parametrize("folder", EXTRAS)
def test_every_import_is_declared_for_its_part(folder: str) -> None:
    libraries = declared(EXTRAS[folder])
    undeclared = [
        f"{path}: {name}"
        for path, name in imports(folder)
        if not {normalized(library) for library in LIBRARIES.get(name, ())} & libraries
    ]
    assert undeclared == [], f"declare the library in the extra {EXTRAS[folder]!r} of pyproject.toml"


def test_every_declared_library_is_imported() -> None:
    imported = {normalized(library) for folder in EXTRAS for _, name in imports(folder) for library in LIBRARIES[name]}
    everything = declared(None).union(*(declared(extra) for extra in EXTRAS.values()))
    assert everything - imported == NOT_IMPORTED.keys()
