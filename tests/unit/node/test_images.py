"""Each image has the libraries that its programs import: its modules can be imported while all other libraries are
hidden. The wheel of the product that it has is the same from every checkout."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
DOCKERFILE = (ROOT / "Dockerfile").read_text()
RUN = {
    "broker": [
        "migratory_cli.commands.broker",
        "migratory_cli.commands.bench",
        "migratory_cli.commands.pub",
        "migratory_cli.commands.sub",
    ],
    "operator": ["migratory_operator.main", "migratory_operator.apply_crds"],
    "spark": [
        "migratory_cli.commands.sla",
        "migratory_spark.jobs.sla_report",
        "migratory_spark.jobs.sla_compare",
        "migratory_spark.jobs.recorder_compact",
        "migratory_spark.alerting.rules",
        "migratory_spark.session",
        "migratory_local.processes.java",
        "migratory_spark.prometheus.source",
    ],
}
"""The modules that run in each image, by the image's stage."""

# The named distributions and their requirements are visible, everything else is hidden.
_SCRIPT = """
import importlib, importlib.metadata as metadata, re, sys
from packaging.requirements import Requirement

modules, named = sys.argv[1].split(","), sys.argv[2:]
allowed, extras, todo = set(), set(), [Requirement(line) for line in named]
while todo:
    one = todo.pop()
    key = (re.sub(r"[-_.]+", "-", one.name).lower(), frozenset(one.extras))
    if key in extras:
        continue
    extras.add(key)
    allowed.add(key[0])
    for line in metadata.requires(one.name) or ():
        needed = Requirement(line)
        markers = [{"extra": extra} for extra in one.extras] or [{"extra": ""}]
        if needed.marker is None or any(needed.marker.evaluate(marker) for marker in markers):
            todo.append(needed)
hidden = {
    module
    for module, owners in metadata.packages_distributions().items()
    if not any(re.sub(r"[-_.]+", "-", owner).lower() in allowed for owner in owners)
    and not module.startswith("migratory_")
}
for module in [name for name in sys.modules if name.partition(".")[0] in hidden]:
    del sys.modules[module]

class Without:
    def __init__(self, finder):
        self.finder = finder

    def __getattr__(self, name):
        return getattr(self.finder, name)

    def find_spec(self, name, path=None, target=None):
        return None if name.partition(".")[0] in hidden else self.finder.find_spec(name, path, target)

sys.meta_path[:] = [Without(finder) for finder in sys.meta_path]
for module in modules:
    importlib.import_module(module)
print(len(hidden))
"""


@pytest.mark.parametrize("stage", RUN)
def test_image_has_the_libraries_of_its_modules(stage: str) -> None:
    part = re.search(rf"AS build-{stage}\n(.*?)AS {stage}\n", DOCKERFILE, re.S)
    assert part is not None
    assert re.findall(r"/build/docker/install ([a-z ]+)\n", part[1]) == [stage]
    script = [sys.executable, str(ROOT / "docker" / "requirements.py"), stage]
    named = subprocess.run(script, capture_output=True, text=True, check=True, timeout=30).stdout.splitlines()
    command = [sys.executable, "-c", _SCRIPT, ",".join(RUN[stage]), *named]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert result.returncode == 0, result.stderr
    assert int(result.stdout) > 10, "nothing was hidden"


def test_wheel_of_the_product_is_the_same_from_every_checkout(tmp_path: Path) -> None:
    """Neither the files' times nor their group's permissions are in it, which differ between checkouts."""
    wheels = []
    for number in (1, 2):
        tree = tmp_path / str(number)
        for part in ("protocol", "broker", "clients", "loadtest", "resources", "local", "operator", "spark", "cli"):
            shutil.copytree(ROOT / part, tree / part, ignore=shutil.ignore_patterns("node_modules", "__pycache__"))
        for name in ("pyproject.toml", "hatch_build.py", "README.md", "LICENSE"):
            shutil.copy(ROOT / name, tree)
        for path in tree.rglob("*"):
            os.utime(path, (number * 1e9, number * 1e9), follow_symlinks=False)
            if path.is_file() and not path.is_symlink():
                path.chmod(path.stat().st_mode & ~0o022 | 0o020 * (number - 1))
        command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel"]
        environment = {**os.environ, "MIGRATORY_COMPILED": "0"}
        subprocess.run(command, cwd=tree, env=environment, capture_output=True, timeout=60, check=True)
        (wheel,) = (tree / "dist").iterdir()
        wheels.append(wheel.read_bytes())
    assert wheels[0] == wheels[1]
