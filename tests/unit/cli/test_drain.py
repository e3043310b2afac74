"""`migratory drain` where nothing can be drained: it says why, and leaves no broker held. With a cluster it is
`integration/local/test_up.py::test_a_broker_is_drained_and_comes_back`."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from migratory_cli import running
from migratory_cli.main import main
from migratory_local.state import BrokerState, ClusterState


@pytest.fixture
def workdir(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Of a cluster whose brokers do not answer."""
    brokers = [BrokerState(f"b-broker-{n}", f"ws://127.0.0.1:{n + 1}/ws", f"http://127.0.0.1:{n + 1}") for n in (0, 1)]
    state = ClusterState("b", os.getpid(), 0.0, str(tmp_path), "", brokers)
    monkeypatch.setattr(running, "choose", lambda cluster: state)
    (tmp_path / "broker.json").write_text(json.dumps({"drain": {"period": 1.0}, "delivery": {"minCopies": 1}}))
    return tmp_path


def drain(*words: str) -> Result:
    return CliRunner().invoke(main, ["drain", *words])


def test_without_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "choose", lambda cluster: None)
    result = drain("b-broker-0")
    assert result.exit_code == 2
    assert "no cluster runs on this machine" in result.output


def test_a_broker_that_is_none(workdir: Path) -> None:
    result = drain("b-broker-7")
    assert result.exit_code == 2
    assert "no broker 'b-broker-7' here; it runs b-broker-0, b-broker-1" in result.output


def test_a_broker_that_does_not_answer_is_not_held(workdir: Path) -> None:
    result = drain("b-broker-1")
    assert result.exit_code == 1
    assert "b-broker-1 does not answer at http://127.0.0.1:2." in result.output
    assert not (workdir / "drained").exists()


def test_one_that_was_not_drained_does_not_come_back(workdir: Path) -> None:
    result = drain("--back", "b-broker-1")
    assert result.exit_code == 2
    assert "b-broker-1 was not drained" in result.output


def test_a_work_folder_that_is_gone_is_no_traceback(workdir: Path) -> None:
    (workdir / "broker.json").unlink()
    result = drain("b-broker-1")
    assert result.exit_code == 1
    assert "configuration of its brokers can't be read" in result.output
