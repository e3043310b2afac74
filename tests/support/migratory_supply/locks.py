"""The lock files of the images: what they install."""

from __future__ import annotations

import re
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

DOCKER = Path(__file__).parents[3] / "docker"
LOCKS = DOCKER / "locks"
IMAGES = ("broker", "operator", "spark", "zookeeper")
TOOLS = ("build", "compile")
"""The locks of the tools that images are built with. They are in no image."""
PYTHON = "3.13"
"""The Python of the images' default base."""


def read_entries(lock: str) -> list[tuple[Requirement, list[str]]]:
    """Return the requirements of a lock file, each with the options that follow it."""
    text = (LOCKS / f"{lock}.txt").read_text("utf-8")
    lines = re.sub(r"^ *#.*\n", "", text, flags=re.MULTILINE).replace("\\\n", "").splitlines()
    split = [line.partition(" --") for line in lines if line.strip()]
    return [(Requirement(name), re.split(r" +(?=--)", f"--{options}")) for name, _, options in split]


def read_versions(lock: str, python: str = PYTHON) -> dict[str, str]:
    """Return the versions that a lock file installs on Linux with this Python, by the libraries' normalized names.
    Raise ValueError if a library has two, or is not pinned."""
    environment: dict[str, str] = {
        "python_version": python,
        "python_full_version": f"{python}.0",
        "sys_platform": "linux",
        "platform_python_implementation": "CPython",
        "implementation_name": "cpython",
    }
    versions: dict[str, str] = {}
    for requirement, _ in read_entries(lock):
        if requirement.marker is None or requirement.marker.evaluate(environment):
            name = canonicalize_name(requirement.name)
            pins = [pin.version for pin in requirement.specifier if pin.operator == "=="]
            if len(pins) != 1 or name in versions:
                raise ValueError(f"docker/locks/{lock}.txt: {name} must have one version for Python {python}")
            versions[name] = pins[0]
    return versions
