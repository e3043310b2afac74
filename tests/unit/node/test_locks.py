"""The lock files of the images: pyproject.toml's ranges, one version of each library, and a hash for everything."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
from migratory_supply.locks import IMAGES, LOCKS, TOOLS, read_entries, read_versions
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[3]
PYTHONS = ("3.11", "3.12", "3.13")
HASH = re.compile(r" *--hash=sha256:[0-9a-f]{64}")


def required(image: str) -> list[Requirement]:
    command = [sys.executable, str(ROOT / "docker" / "requirements.py"), image]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30).stdout
    return [Requirement(line) for line in listed.splitlines()]


def test_every_lock_is_of_an_image() -> None:
    assert {path.stem for path in LOCKS.glob("*.txt")} == {*IMAGES, *TOOLS}


@pytest.mark.parametrize("image", [*IMAGES, *TOOLS])
def test_every_entry_of_a_lock_has_hashes(image: str) -> None:
    for requirement, options in read_entries(image):
        assert options, requirement
        assert all(HASH.fullmatch(option) for option in options), requirement


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("image", [*IMAGES, *TOOLS])
def test_lock_is_within_the_ranges(image: str, python: str) -> None:
    versions = read_versions(image, python)
    for requirement in required(image):
        name = canonicalize_name(requirement.name)
        assert name in versions, f"docker/locks/{image}.txt lacks {name}: run `make locks`"
        assert versions[name] in requirement.specifier, f"{image}: {name} {versions[name]}: run `make locks`"


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("lock", "other"), [("zookeeper", "spark"), ("build", "spark"), ("compile", "build"), ("compile", "broker")]
)
def test_versions_agree_where_one_image_is_built_from_two_locks(lock: str, other: str, python: str) -> None:
    versions, others = read_versions(lock, python), read_versions(other, python)
    assert {name: version for name, version in versions.items() if others.get(name, version) != version} == {}


def test_docker_steps_use_the_locks_alone() -> None:
    """Every pip that takes something from an index wants hashes; only the product comes without, from its sources."""
    steps = (ROOT / "docker" / "install").read_text() + (ROOT / "docker" / "zookeeper" / "jars").read_text()
    commands = re.findall(r"-m pip (?:install|download) .*", steps)
    assert len(commands) == 6
    without = [line for line in commands if "$from_lock" not in line and "--require-hashes" not in line]
    assert without == ['-m pip install --quiet --no-deps --no-build-isolation "$here"']
