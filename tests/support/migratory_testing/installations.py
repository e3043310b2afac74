"""Wheels of this tree, and virtual environments that have exactly the libraries that a wheel requires. Both are made
without a network: the libraries are links to those of the tests' own environment."""

from __future__ import annotations

import importlib.metadata
import os
import subprocess
import sys
import venv
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name


def build_wheel(project: Path, folder: Path) -> Path:
    """Build the wheel of the project in the folder `project`, by its build backend, and return its path below
    `folder`."""
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"]
    environment = {**os.environ, "MIGRATORY_COMPILED": "0"}
    subprocess.run([*command, "--wheel-dir", str(folder), str(project)], env=environment, check=True, timeout=300)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_environment(folder: Path, wheel: Path, extra: str = "") -> Path:
    """Make a virtual environment that has what the wheel requires with this extra, and not the wheel itself. Return its
    interpreter."""
    venv.create(folder, symlinks=True)
    (site_packages,) = folder.glob("lib/python*/site-packages")
    (own,) = importlib.metadata.distributions(path=[str(wheel)])
    for library in _requirements(own, extra):
        files = library.files
        assert files is not None, f"{library.name} has no list of its files"
        for name in {file.parts[0] for file in files} - {"..", "__pycache__"}:
            (site_packages / name).symlink_to(str(library.locate_file(name)))
    return folder / "bin" / "python"


def install(python: Path, wheel: Path) -> None:
    """Install a wheel into the environment of an interpreter. Raise CalledProcessError if what the wheel requires is
    not there."""
    pip = [sys.executable, "-m", "pip", "--python", str(python), "install", "--quiet", "--no-index"]
    subprocess.run([*pip, str(wheel)], check=True, timeout=300)


def _requirements(own: importlib.metadata.Distribution, extra: str) -> list[importlib.metadata.Distribution]:
    """Return all distributions that one requires with an extra, directly or not, without itself."""
    libraries: dict[str, importlib.metadata.Distribution] = {}
    seen, todo = set(), [(own, extra)]
    while todo:
        required_by, of_extra = todo.pop()
        for line in required_by.requires or ():
            requirement = Requirement(line)
            if requirement.marker is not None and not requirement.marker.evaluate({"extra": of_extra}):
                continue
            name = canonicalize_name(requirement.name)
            distribution = own if name == canonicalize_name(own.name) else importlib.metadata.distribution(name)
            if distribution is not own:
                libraries[name] = distribution
            for wanted in requirement.extras or ("",):
                if (name, wanted) not in seen:
                    seen.add((name, wanted))
                    todo.append((distribution, wanted))
    return list(libraries.values())
