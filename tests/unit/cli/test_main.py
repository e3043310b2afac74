"""The `migratory` command: lazy imports, missing libraries, help."""

from __future__ import annotations

import subprocess
import sys
from importlib import metadata
from importlib.util import find_spec

import click
import pytest
from click.testing import CliRunner
from migratory_cli import main as main_module
from migratory_cli.main import COMMANDS, LazyGroup, MissingExtra, main

HEAVY = ("pyspark", "kazoo", "pandas", "aiohttp", "psutil", "prometheus_client", "pydantic")


def imported_after(code: str) -> set[str]:
    """Return those of the libraries in HEAVY that a new interpreter has imported after it ran `code`."""
    script = f"import sys\n{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split()) if result.stdout.strip() else set()


def test_help_lists_every_command_and_imports_none() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, spec in COMMANDS.items():
        assert name in result.output
        assert spec.summary in result.output
    code = "from migratory_cli.main import main\nmain(['--help'], standalone_mode=False)"
    assert imported_after(code) == set()


def test_broker_does_not_import_spark_and_clients_import_only_aiohttp() -> None:
    load = "from migratory_cli.main import main\nimport click\nmain.get_command(click.Context(main), {!r})"
    assert not imported_after(load.format("broker")) & {"pyspark", "pandas", "pydantic"}
    for name in ("pub", "sub"):
        assert imported_after(load.format(name)) <= {"aiohttp"}
    assert imported_after(load.format("status")) <= {"aiohttp"}


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_in_the_table_exists(name: str) -> None:
    assert find_spec(COMMANDS[name].module) is not None
    command = LazyGroup("x").get_command(click.Context(main), name)
    assert isinstance(command, click.Command)
    assert command.help


def test_client_core_imports_neither_aiohttp_nor_asyncio() -> None:
    code = "import migratory_client.core.session\nassert 'asyncio' not in sys.modules"
    assert imported_after(code) == set()


def test_missing_library_is_named_with_the_way_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named 'kazoo' ({name})", name="kazoo")

    monkeypatch.setattr(main_module, "import_module", missing)
    result = CliRunner().invoke(main, ["broker", "--help"])
    assert result.exit_code == MissingExtra.exit_code
    assert "extra `broker`" in result.output
    assert "make install" in result.output
    assert "pip install" not in result.output
    assert "kazoo" in result.output


def test_broken_installation_is_not_reported_as_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(main_module, "import_module", missing)
    for name in ("broker", "pub"):
        result = CliRunner().invoke(main, [name])
        assert isinstance(result.exception, ModuleNotFoundError)


def test_unknown_command_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["publish"])
    assert result.exit_code == 2
    assert "No such command 'publish'" in result.output
    monkeypatch.setitem(COMMANDS, "odd", main_module._CommandSpec("migratory_cli.main", "COMMANDS", None, ""))
    assert isinstance(CliRunner().invoke(main, ["odd"]).exception, TypeError)


def test_version_is_that_of_the_package() -> None:
    output = CliRunner().invoke(main, ["--version"]).output
    assert output == f"migratory, version {metadata.version('migratory')}, interpreted cores\n"


@pytest.mark.parametrize("name", ["pub", "sub", "status"])
def test_help_has_examples_and_exit_codes(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert "Exit codes:" in result.output
