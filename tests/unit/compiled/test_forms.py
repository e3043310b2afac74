"""The choice between compiled and interpreted cores, in processes of their own, on a copy of the sources.

The compiled modules are stand-ins, empty files: these tests see which file is found for a module, and load none.
`make compiled-check` runs real ones.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

import migratory_compiled
import pytest
from migratory_compiled import compiler

ROOT = Path(__file__).resolve().parents[3]
FOLDERS = {"migratory_protocol": "protocol", "migratory_broker": "broker", "migratory_client": "clients/python"}
MODULES = (
    "migratory_protocol.origins",
    "migratory_broker.core.security.rules",
    "migratory_broker.runtime.pump",
    "migratory_client.core.session",
)
FOUND = f"""
from importlib.util import find_spec
from migratory_compiled import activate
origins = [find_spec(name).origin for name in {MODULES}]
print(activate(), *({{".py": "source", ".so": "compiled"}}[origin[-3:]] for origin in origins))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with the product's sources and stand-ins of their compiled modules."""
    shutil.copytree(ROOT / "protocol/migratory_compiled", tmp_path / "migratory_compiled")
    for package, folder in FOLDERS.items():
        shutil.copytree(ROOT / folder / package, tmp_path / package)
    compiled = tmp_path / migratory_compiled.FOLDER / digest(tmp_path)
    for name in MODULES:
        module = compiled / (name.replace(".", "/") + migratory_compiled.SUFFIX)
        module.parent.mkdir(parents=True)
        module.touch()
    return tmp_path


def digest(tree: Path) -> str:
    return migratory_compiled.digest(tree / name.replace(".", "/") for name in migratory_compiled.PACKAGES)


def run(tree: Path, switch: str | None = None, code: str = FOUND) -> subprocess.CompletedProcess[str]:
    environment = {name: value for name, value in os.environ.items() if name != migratory_compiled.SWITCH}
    if switch is not None:
        environment[migratory_compiled.SWITCH] = switch
    return subprocess.run(
        [sys.executable, "-c", code], env={**environment, "PYTHONPATH": str(tree)}, capture_output=True, text=True,
        check=False, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("switch", [None, "", "1"])
def test_compiled_code_of_the_same_sources_runs(tree: Path, switch: str | None) -> None:
    assert run(tree, switch).stdout.split() == ["compiled"] * (1 + len(MODULES))


@pytest.mark.parametrize("first", MODULES)
def test_the_form_is_chosen_before_the_first_module_of_any_part(tree: Path, first: str) -> None:
    """Whichever module is imported first, none is loaded from its source beside compiled ones."""
    code = f"from importlib.util import find_spec; print(find_spec({first!r}).origin)"
    assert run(tree, code=code).stdout.strip().endswith(migratory_compiled.SUFFIX)


@pytest.mark.parametrize("package", migratory_compiled.PACKAGES)
def test_an_edit_of_any_part_turns_all_of_them_to_their_sources(tree: Path, package: str) -> None:
    edited = sorted((tree / package.replace(".", "/")).rglob("*.py"))[-1]
    edited.write_text(edited.read_text() + "\nEDITED = True\n")
    assert run(tree).stdout.split() == ["interpreted", *["source"] * len(MODULES)]
    refused = run(tree, "1")
    assert refused.returncode == 1
    assert "MIGRATORY_COMPILED=1, but no compiled form of these sources is installed" in refused.stderr


def test_a_new_a_renamed_and_a_moved_source_change_the_digest(tree: Path) -> None:
    digests = {digest(tree)}
    source = tree / "migratory_protocol/topics.py"
    source.rename(source.with_name("names.py"))
    digests.add(digest(tree))
    (tree / "migratory_protocol/new.py").touch()
    digests.add(digest(tree))
    (tree / "migratory_protocol/new.py").rename(tree / "migratory_client/core/new.py")
    digests.add(digest(tree))
    assert len(digests) == 4


def test_the_switch_chooses_the_sources(tree: Path) -> None:
    assert run(tree, "0").stdout.split() == ["interpreted", *["source"] * len(MODULES)]


def test_another_value_of_the_switch_is_refused(tree: Path) -> None:
    assert "MIGRATORY_COMPILED: 'yes' is not allowed; use 0 for interpreted" in run(tree, "yes").stderr


def test_no_compiled_code_is_needed(tree: Path) -> None:
    shutil.rmtree(tree / migratory_compiled.FOLDER)
    assert run(tree).stdout.split() == ["interpreted", *["source"] * len(MODULES)]


@pytest.fixture(scope="module")
def hook() -> ModuleType:
    spec = spec_from_file_location("hatch_build", ROOT / "hatch_build.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("source", "compilable"),
    [
        ("class Plain:\n    pass\n", True),
        ("from typing import NamedTuple\nclass Row(NamedTuple):\n    number: int\n", True),
        ("from msgspec import Struct\nclass Row(Struct):\n    number: int\n", False),
        ("import msgspec\nclass Row(msgspec.Struct):\n    number: int\n", False),
        ("from x import Base\nclass Row(Base, frozen=True):\n    number: int\n", False),
    ],
)
def test_which_modules_are_compiled(hook: ModuleType, tmp_path: Path, source: str, compilable: bool) -> None:
    path = tmp_path / "module.py"
    path.write_text(source)
    assert hook.is_compilable(path) is compilable


def test_every_module_that_is_named_exists_and_has_the_form_it_is_named_for(hook: ModuleType) -> None:
    """A renamed module would otherwise change its form unnoticed."""
    sources = [path for package in hook.packages() for path in migratory_compiled.source_files(package)]
    forms = {path.relative_to(ROOT).as_posix(): hook.is_compiled(path) for path in sources}
    assert {name for name in hook.RUNTIME if forms.get(name) is True} == hook.RUNTIME
    assert {name for name in hook.INTERPRETED if forms.get(name) is False} == hook.INTERPRETED


def test_what_is_missing_to_compile_is_named(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("CC", "no-such-compiler -pthread")
    assert compiler.missing().startswith("there is no C compiler no-such-compiler; install it")
    monkeypatch.setenv("CC", "true")
    monkeypatch.setattr(sysconfig, "get_path", lambda name: str(tmp_path))
    assert compiler.missing().startswith(f"Python's headers are missing ({tmp_path}/Python.h); install them")
    (tmp_path / "Python.h").touch()
    assert compiler.missing() == ""


def test_a_build_that_cannot_compile_says_why(
    hook: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(hook, "OUTPUT", tmp_path)
    monkeypatch.setenv("CC", "no-such-compiler")
    with pytest.raises(SystemExit, match="the cores cannot be compiled: there is no C compiler no-such-compiler"):
        hook.compile_cores()
    done = tmp_path / "lib" / migratory_compiled.FOLDER / migratory_compiled.digest(hook.packages())
    done.mkdir(parents=True)
    assert hook.compile_cores() == done  # images compile in another stage than the one that installs


STAND_IN = """#!/bin/sh
case "$*" in
"-m migratory_compiled.compiler") echo "$MISSING" ;;
*) echo "$MIGRATORY_COMPILED: $*" ;;
esac
"""


@pytest.fixture
def install(tmp_path: Path) -> Callable[..., list[str]]:
    """Return a function that runs `make install` in an environment where the product is installed already, with a
    stand-in for Python that prints its arguments. It returns what was printed."""
    environment = tmp_path / "venv"
    (environment / "bin").mkdir(parents=True)
    python = environment / "bin/python"
    python.write_text(STAND_IN)
    python.chmod(0o755)
    (environment / ".product").touch()

    def run_make(**variables: str) -> list[str]:
        inherited = {name: value for name, value in os.environ.items() if name != migratory_compiled.SWITCH}
        command = ["make", "--silent", "install", f"VENV={environment}"]
        done = subprocess.run(
            command, cwd=ROOT, env={**inherited, **variables}, capture_output=True, text=True, check=True, timeout=60
        )
        return done.stdout.splitlines()

    return run_make


def test_make_install_compiles_once_where_it_can(install: Callable[..., list[str]]) -> None:
    assert install(MISSING="")[-1] == "1: -m pip install --quiet --no-deps --editable ."
    assert install(MISSING="") == []


def test_make_install_says_in_one_line_why_it_does_not_compile(install: Callable[..., list[str]]) -> None:
    assert install(MISSING="there is no C compiler cc") == [
        "Protocol and cores run interpreted, not compiled: there is no C compiler cc"
    ]
    assert install(MISSING="", MIGRATORY_COMPILED="0") == []
