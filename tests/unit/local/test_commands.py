"""`migratory up` and `migratory demo` at their edges: what is wrong is said, and nothing is started."""

from __future__ import annotations

import resource
import socket
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from migratory_cli.local import demo, up
from migratory_local import java, machine

CLUSTER = """\
apiVersion: migratory.dev/v1alpha1
kind: MigratoryCluster
metadata: {name: quotes}
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "cluster.yaml"
    path.write_text(CLUSTER)
    return path


def invoke_up(file: Path, *more: str) -> Result:
    return CliRunner().invoke(up, ["-f", str(file), "--workdir", str(file.parent / "work"), *more])


@pytest.mark.parametrize("command", [up, demo])
def test_help_has_examples(command: object) -> None:
    result = CliRunner().invoke(command, ["--help"])  # type: ignore[arg-type]
    assert result.exit_code == 0
    assert "Example" in result.output


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    result = invoke_up(tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml: cannot be read: No such file or directory" in result.output


def test_every_error_of_a_file_is_shown(file: Path) -> None:
    file.write_text(CLUSTER + "spec: {brokers: {replicas: 0}, zookeeper: {replicas: 2}}\n")
    result = invoke_up(file)
    assert result.exit_code == 2
    assert "spec.brokers.replicas: 0" in result.output
    assert "spec.zookeeper.replicas: 2" in result.output


@pytest.mark.parametrize("command", ["up", "demo"])
def test_no_java(file: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(file.parent))
    work = ["--workdir", str(file.parent / "work")]
    result = CliRunner().invoke(up if command == "up" else demo, ["-f", str(file), *work])
    assert result.exit_code == 2
    assert "no Java 17 or newer" in result.output


def test_a_full_disk(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "MEMBER_BYTES", 2**60)
    result = invoke_up(file)
    assert result.exit_code == 2
    assert "make room or choose --workdir" in result.output


def test_a_work_folder_that_cannot_be(file: Path) -> None:
    (file.parent / "work").write_text("")
    result = invoke_up(file)
    assert result.exit_code == 2
    assert "is a file" in result.output


def test_more_clients_than_descriptors(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    result = CliRunner().invoke(demo, ["--subscribers", "4000", "--workdir", str(file.parent / "work")])
    assert result.exit_code == 2
    assert "a process may open 1,000 files here" in result.output


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_a_result_file_that_cannot_be_written(tmp_path: Path, option: str) -> None:
    result = CliRunner().invoke(demo, [option, str(tmp_path / "none" / "x")])
    assert result.exit_code == 2
    assert f"{option}: cannot write into" in result.output


def test_a_work_folder_where_no_files_can_be_says_so(file: Path) -> None:
    result = CliRunner().invoke(up, ["-f", str(file), "--workdir", "/proc/none/work"])
    assert result.exit_code == 2
    assert "cannot use /proc/none/work as work folder: /proc is no place for files" in result.output


def test_a_busy_port_leaves_no_folder(file: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        result = invoke_up(file, "--ports", str(port))
    assert result.exit_code == 2
    assert f"port {port} for quotes-broker-0's clients is in use" in result.output
    assert not (file.parent / "work").exists()


def test_a_demo_that_did_not_start_keeps_nothing(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(file.parent))
    result = CliRunner().invoke(demo, ["--duration", "5"])
    assert result.exit_code == 2
    assert "with a kill at least 20 s" in result.output
    assert "are kept" not in result.output
    assert list(file.parent.glob("migratory-demo-*")) == []
