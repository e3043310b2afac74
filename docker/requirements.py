"""The libraries of the extras that are named, one a line, from pyproject.toml: for an image's layer without sources."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """The product's own extras (`migratory[...]`) are followed."""
    optional = project["optional-dependencies"]
    found: list[str] = list(project["dependencies"])  # type: ignore[call-overload]
    for extra in extras:
        for requirement in optional[extra]:  # type: ignore[index]
            own = re.fullmatch(r"migratory\[(.*)\]", requirement)
            found += requirements(project, own[1].split(",")) if own else [requirement]
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    print("\n".join(requirements(tomllib.loads(pyproject.read_text())["project"], sys.argv[1:])))
