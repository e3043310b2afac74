"""Orientation in the tree: every folder has a row in a page, every package has a docstring, files that are named exist,
and modules do not import each other in circles."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import tomllib
from graphlib import TopologicalSorter
from pathlib import Path

import grimp
import pytest

ROOT = Path(__file__).parents[3]
TESTS = ROOT / "tests"
IGNORED = {line.strip("/") for line in (ROOT / ".gitignore").read_text("utf-8").split()}
WITH_MODULES = (
    "protocol", "broker", "clients", "loadtest", "resources", "local", "operator", "spark", "cli", "benchmarks", "tests"
)  # fmt: skip
MODULES = [
    *(str(path) for folder in (*WITH_MODULES, "docker") for path in (ROOT / folder).rglob("*.py")),
    *map(str, ROOT.glob("*.py")),
]
PACKAGES = [path for folder in WITH_MODULES for path in sorted((ROOT / folder).rglob("__init__.py"))]


def folders(under: Path) -> set[str]:
    """Return the names of the folders in a folder, without caches, results and hidden folders."""
    present = {path.name for path in under.iterdir() if path.is_dir()} - IGNORED
    return {name for name in present if name == ".ci" or not name.startswith((".", "_"))}


def named(page: Path, cell: int) -> set[str]:
    """Return the paths in one cell of each row of a page's tables; the first cell is 1."""
    rows = [line.split("|")[cell] for line in page.read_text("utf-8").splitlines() if line.startswith("| ")]
    return {path for text in rows for path in re.findall(r"`([\w./]+)`", text)}


def test_every_top_folder_has_a_row() -> None:
    page = ROOT / "docs" / "architecture.md"
    documented = {path.partition("/")[0] for path in named(page, 1) | named(page, 2)}
    assert folders(ROOT) - documented == set()


def test_modules_import_each_other_in_no_circle() -> None:
    """Imports for types alone count too: they tell a reader that neither module can be understood before the other."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["tool"]["importlinter"]
    graph = grimp.build_graph(*settings["root_packages"], cache_dir=None)
    imports = {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}
    TopologicalSorter(imports).prepare()  # raises CycleError, which names one


def test_folders_of_tests_and_rows_of_their_page_match() -> None:
    assert named(TESTS / "README.md", 1) == folders(TESTS) - {"support"} | folders(TESTS / "support")


@pytest.mark.parametrize("path", PACKAGES, ids=lambda path: str(path.parent.relative_to(ROOT)))
def test_a_package_has_a_docstring_that_names_existing_modules(path: Path) -> None:
    text = ast.get_docstring(ast.parse(path.read_text("utf-8")))
    assert text, "no docstring"
    for name in re.findall(r"(?<![\w/…])([\w/]+\.py)\b", text):
        places = (path.parent / name, path.parents[1] / name, ROOT / name)
        assert any(place.is_file() for place in places), name


@pytest.mark.parametrize("page", sorted((ROOT / "docs").rglob("*.md")), ids=lambda page: str(page.relative_to(ROOT)))
def test_modules_named_by_a_page_exist(page: Path) -> None:
    for name in re.findall(r"`([\w/]+\.py)`", page.read_text("utf-8")):
        assert any(path.endswith(f"/{name}") for path in MODULES), name


def test_images_and_type_checks_cover_every_package_of_the_wheel() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))
    packages = project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    folders = {package.partition("/")[0] for package in packages}
    assert folders == {path.parts[-3] for path in ROOT.glob("*/migratory_*/__init__.py")} | {"clients"}
    assert folders <= {path.partition("/")[0] for path in project["tool"]["mypy"]["files"]}
    assert folders <= set(re.findall(r"^!(\w+)$", (ROOT / ".dockerignore").read_text("utf-8"), re.M))
    copied = re.findall(r"^COPY (\w+) /build/\1$", (ROOT / "Dockerfile").read_text("utf-8"), re.M)
    assert {folder for folder in copied if copied.count(folder) >= 3} == folders  # each stage that installs
    listed = re.search(r"git ls-files .*? -- (.*?) \|", (ROOT / "docker" / "build").read_text("utf-8"), re.S)
    assert listed is not None
    assert folders <= set(listed[1].split())


def test_the_build_context_of_images_has_the_console_and_its_client(tmp_path: Path) -> None:
    docker = tmp_path / "docker"
    docker.write_text(f"""#!/bin/sh
case "$1" in build) for last; do :; done; cp -a "$last" {tmp_path}/context ;; image) echo 1 ;; esac
""")
    docker.chmod(0o755)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    command = [str(ROOT / "docker" / "build"), "broker"]
    subprocess.run(command, env=environment, capture_output=True, check=True, timeout=60)
    console = Path("broker", "migratory_broker", "console")
    for name in ("index.html", "client/index.js", "client/core/session.js"):
        assert (tmp_path / "context" / console / name).read_bytes() == (ROOT / console / name).read_bytes()
