"""Real processes say which form they run, and tools that need the sources run them beside a compiled form."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from migratory_compiled import SWITCH, Form
from migratory_fuzz import corpus, targets
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_simulation import planted
from migratory_testing.processes import Brokers
from migratory_testing.rawclient import RawClient, close_all, payload


@pytest.fixture(scope="module")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperEnsemble]:
    with ZooKeeperEnsemble(tmp_path_factory.mktemp("zookeeper"), 1) as running:
        yield running


@pytest.mark.real
@pytest.mark.parametrize("io_processes", [0, 1])
async def test_brokers_of_both_forms_serve_clients_and_say_their_form(
    zookeeper: ZooKeeperEnsemble, tmp_path: Path, form: Form, io_processes: int
) -> None:
    cluster = f"{form}{io_processes}"
    with Brokers(tmp_path, zookeeper.servers, cluster=cluster, ioProcesses=io_processes) as brokers:
        brokers.start_all()
        assert {broker.status()["cores"] for broker in brokers.all()} == {form}
        reader, writer = [await RawClient.join(brokers[name]) for name in ("b0", "b1")]
        try:
            await reader.subscribe("quotes/eur")
            await writer.publish("quotes/eur", b"1.0842", 1)  # returns when two brokers hold it
            assert payload(await reader.receive("message")) == b"1.0842"
        finally:
            await close_all()


def test_the_version_says_the_form(form: Form) -> None:
    command = [sys.executable, "-m", "migratory_cli.main", "--version"]
    said = subprocess.run(command, env=planted.environment(), capture_output=True, text=True, check=True, timeout=60)
    assert said.stdout.rstrip().endswith(f", {form} cores")


def test_fuzzers_run_the_sources(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """They count branches and steps, of which compiled code shows none."""
    monkeypatch.delenv(SWITCH)
    stored = tmp_path / "input"
    stored.write_bytes(corpus.inputs(targets.load("codec"))[0])
    code = f"""
from click.testing import CliRunner
from migratory_compiled import activate
from migratory_fuzz.__main__ import main
assert CliRunner().invoke(main, ["replay", "codec", {str(stored)!r}]).exit_code == 0
print(activate())
"""
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=planted.environment(), capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout == "interpreted\n"
