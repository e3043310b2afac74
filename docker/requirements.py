"""Prints the libraries of the named extras from pyproject.toml, one per line, for an image layer without sources. Run
by the Dockerfile."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """Return the requirements of the base and of these extras, each once. An extra such as `migratory[cli]` is replaced
    by the requirements that it stands for."""
    optional = project["optional-dependencies"]
    requirements_: list[str] = list(project["dependencies"])  # type: ignore[call-overload]
    for extra in extras:
        for requirement in optional[extra]:  # type: ignore[index]
            own = re.fullmatch(r"migratory\[(.*)\]", requirement)
            requirements_ += requirements(project, own[1].split(",")) if own else [requirement]
    return list(dict.fromkeys(requirements_))


if __name__ == "__main__":
    pyproject = Path(__file__).parents[1] / "pyproject.toml"
    print("\n".join(requirements(tomllib.loads(pyproject.read_text())["project"], sys.argv[1:])))
