"""`migratory drain` where it cannot drain. `integration/local/test_up.py` drains a broker of a real cluster."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from migratory_cli.commands import drain as drain_module
from migratory_cli.main import main
from migratory_local.cluster.state import BrokerState, ClusterState
from migratory_local.processes.network import HttpClient


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the work folder of a running cluster "b" whose two brokers do not answer."""
    brokers = [BrokerState(f"b-broker-{n}", f"ws://127.0.0.1:{n + 1}/ws", f"http://127.0.0.1:{n + 1}") for n in (0, 1)]
    state = ClusterState("b", os.getpid(), 0.0, str(tmp_path), "", brokers)
    monkeypatch.setattr(drain_module, "choose_cluster", lambda name: state)
    (tmp_path / "broker.json").write_text(json.dumps({"drain": {"period": 1.0}, "delivery": {"minCopies": 1}}))
    return tmp_path


def drain(*words: str) -> Result:
    return CliRunner().invoke(main, ["drain", *words])


def test_drain_without_a_cluster_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drain_module, "choose_cluster", lambda name: None)
    result = drain("b-broker-0")
    assert result.exit_code == 2
    assert "no cluster runs on this machine" in result.output


def test_drain_of_an_unknown_broker_names_the_known_ones(workdir: Path) -> None:
    result = drain("b-broker-7")
    assert result.exit_code == 2
    assert "cluster b has no broker 'b-broker-7'; it has b-broker-0, b-broker-1" in result.output


def test_broker_that_does_not_answer_is_not_marked_as_drained(workdir: Path) -> None:
    result = drain("b-broker-1")
    assert result.exit_code == 1
    assert "b-broker-1 does not answer at http://127.0.0.1:2." in result.output
    assert not (workdir / "drained").exists()


def test_back_of_a_broker_that_is_not_drained_is_an_error(workdir: Path) -> None:
    result = drain("--back", "b-broker-1")
    assert result.exit_code == 2
    assert "b-broker-1 is not drained" in result.output


def test_missing_work_folder_is_an_error(workdir: Path) -> None:
    (workdir / "broker.json").unlink()
    result = drain("b-broker-1")
    assert result.exit_code == 1
    assert "cannot read the configuration of the brokers" in result.output


def test_back_waits_until_the_broker_is_ready(workdir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async def ready(*_: object) -> tuple[int, str]:
        return 200, "ready"

    monkeypatch.setattr(HttpClient, "get_from", ready)
    drained = workdir / "drained" / "b-broker-1"
    drained.parent.mkdir()
    drained.touch()
    result = drain("--back", "b-broker-1")
    assert result.exit_code == 0, result.output
    assert result.output == "b-broker-1 is ready. Within a minute or two, clients of other brokers move to it\n"
    assert not drained.exists()
