"""The group: lazy loading, missing extras, help."""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec

import click
import pytest
from click.testing import CliRunner
from migratory_cli import main as main_module
from migratory_cli.main import COMMANDS, LazyGroup, MissingExtra, main

HEAVY = ("pyspark", "kazoo", "pandas", "aiohttp", "psutil", "prometheus_client", "pydantic")


def imported_after(code: str) -> set[str]:
    """The heavy libraries that are loaded after `code` in a new interpreter."""
    script = f"import sys\n{code}\nprint(*(name for name in {HEAVY!r} if name in sys.modules))"
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return set(result.stdout.splitlines()[-1].split()) if result.stdout.strip() else set()


def test_help_lists_every_command_and_loads_none() -> None:
    result = CliRunner().invoke(main, ["--help"])
    assert result.exit_code == 0
    for name, lazy in COMMANDS.items():
        assert name in result.output
        assert lazy.summary in result.output
    code = "from migratory_cli.main import main\nmain(['--help'], standalone_mode=False)"
    assert imported_after(code) == set()


def test_a_broker_does_not_load_spark_and_a_client_neither_spark_nor_kazoo() -> None:
    load = "from migratory_cli.main import main\nimport click\nmain.get_command(click.Context(main), {!r})"
    assert not imported_after(load.format("broker")) & {"pyspark", "pandas", "pydantic"}
    for name in ("pub", "sub"):
        assert imported_after(load.format(name)) <= {"aiohttp"}
    assert imported_after(load.format("status")) <= {"aiohttp"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_table_names_what_exists(name: str) -> None:
    assert find_spec(COMMANDS[name].module) is not None
    command = LazyGroup("x").get_command(click.Context(main), name)
    assert isinstance(command, click.Command)
    assert command.help


def test_the_core_of_the_client_loads_neither_aiohttp_nor_asyncio() -> None:
    code = "import migratory_client.core.session\nassert 'asyncio' not in sys.modules"
    assert imported_after(code) == set()


def test_a_missing_extra_is_named_with_the_line_that_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named 'kazoo' ({name})", name="kazoo")

    monkeypatch.setattr(main_module, "import_module", missing)
    result = CliRunner().invoke(main, ["broker", "--help"])
    assert result.exit_code == MissingExtra.exit_code
    assert 'pip install "migratory[broker]"' in result.output
    assert "kazoo" in result.output


def test_a_broken_installation_is_not_taken_for_a_missing_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> object:
        raise ModuleNotFoundError(f"No module named {name!r}", name=name)

    monkeypatch.setattr(main_module, "import_module", missing)
    for name in ("broker", "pub"):
        result = CliRunner().invoke(main, [name])
        assert isinstance(result.exception, ModuleNotFoundError)


def test_what_is_no_command_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(main, ["publish"])
    assert result.exit_code == 2
    assert "No such command 'publish'" in result.output
    monkeypatch.setitem(COMMANDS, "odd", main_module._Lazy("migratory_cli.main", "COMMANDS", None, ""))
    assert isinstance(CliRunner().invoke(main, ["odd"]).exception, TypeError)


def test_the_version_is_the_packages() -> None:
    assert CliRunner().invoke(main, ["--version"]).output.startswith("migratory, version ")


@pytest.mark.parametrize("name", ["pub", "sub", "status"])
def test_help_has_examples_and_exit_codes(name: str) -> None:
    result = CliRunner().invoke(main, [name, "--help"])
    assert result.exit_code == 0
    assert "Examples:" in result.output
    assert "Exit codes:" in result.output
