"""A wheel has the compiled cores if it was built with `MIGRATORY_COMPILED=1`, and else none; and each runs so. It has
the files of the console."""

from __future__ import annotations

import os
import subprocess
import sys
import zipfile
from hashlib import sha256
from pathlib import Path

import migratory_compiled
import pytest
from migratory_broker.runtime.clients.console import load_files
from migratory_compiled import SWITCH

ROOT = Path(__file__).resolve().parents[2]


def build(folder: Path, switch: str | None) -> Path:
    """Build a wheel of this tree into a folder, with the build tools of this environment, and return its path."""
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    if switch is not None:
        environment[SWITCH] = switch
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, check=True, timeout=600)
    (wheel,) = folder.glob("*.whl")
    return wheel


def run(wheel: Path, folder: Path, code: str, *arguments: str) -> list[str]:
    """Run Python code with the packages of a wheel, with no other source of the product in reach. Return the lines that
    it printed."""
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder)
    shadow = folder / migratory_compiled.FOLDER
    if not shadow.exists():  # the compiled form of the same sources that this environment may have
        shadow.mkdir()
        (shadow / "__init__.py").touch()
    environment = {name: value for name, value in os.environ.items() if name != SWITCH}
    environment["PYTHONPATH"] = str(folder)
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=True, timeout=60)
    return done.stdout.splitlines()


def version_of(wheel: Path, folder: Path) -> str:
    """Return what the command in a wheel says about its version."""
    code = (
        "from migratory_broker.core.edge import core; print(core.__file__)\nfrom migratory_cli.main import main; main()"
    )
    loaded, said = run(wheel, folder, code, "--version")
    assert Path(loaded).is_relative_to(folder)
    return said


# a build that compiles takes minutes where `make compiled` has not compiled these sources before
@pytest.mark.timeout(900)
def test_a_wheel_that_was_built_compiled_runs_compiled(tmp_path: Path) -> None:
    wheel = build(tmp_path, "1")
    assert not wheel.name.endswith("-py3-none-any.whl")
    compiled = [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(migratory_compiled.SUFFIX)]
    (folder,) = {name.split("/")[1] for name in compiled if name.startswith(f"{migratory_compiled.FOLDER}/")}
    for name in ("migratory_broker/core/edge/core", "migratory_protocol/frames", "migratory_client/core/session"):
        assert f"{migratory_compiled.FOLDER}/{folder}/{name}{migratory_compiled.SUFFIX}" in compiled
    assert version_of(wheel, tmp_path / "installed").endswith(", compiled cores")


@pytest.mark.parametrize("switch", [None, "0"])
def test_another_wheel_has_the_sources_alone(tmp_path: Path, switch: str | None) -> None:
    wheel = build(tmp_path, switch)
    assert wheel.name.endswith("-py3-none-any.whl")
    assert not [name for name in zipfile.ZipFile(wheel).namelist() if name.endswith(migratory_compiled.SUFFIX)]
    assert version_of(wheel, tmp_path / "installed").endswith(", interpreted cores")


def test_a_wheel_serves_the_console_of_this_tree(tmp_path: Path) -> None:
    code = """
from hashlib import sha256
from migratory_broker.runtime.clients import console
print(console.__file__)
for path, (kind, content) in console.load_files().items():
    print(path, sha256(content).hexdigest())
"""
    loaded, *served = run(build(tmp_path, None), tmp_path / "installed", code)
    assert Path(loaded).is_relative_to(tmp_path)
    assert "/console/client/core/session.js" in {line.split()[0] for line in served}
    assert sorted(served) == sorted(
        f"{path} {sha256(content).hexdigest()}" for path, (_, content) in load_files().items()
    )
