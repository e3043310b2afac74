"""`migratory up` and `migratory demo` with wrong input: the error names the problem, and nothing is started."""

from __future__ import annotations

import resource
import socket
import tempfile
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from migratory_cli.commands.local import demo, up
from migratory_local.processes import java, preflight

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


def invoke_up(file: Path, *options: str) -> Result:
    return CliRunner().invoke(up, ["-f", str(file), "--workdir", str(file.parent / "work"), *options])


@pytest.mark.parametrize("command", [up, demo])
def test_help_has_an_example(command: object) -> None:
    result = CliRunner().invoke(command, ["--help"])  # type: ignore[arg-type]
    assert result.exit_code == 0
    assert "Example" in result.output


def test_missing_cluster_file_is_an_error(tmp_path: Path) -> None:
    result = invoke_up(tmp_path / "none.yaml")
    assert result.exit_code == 2
    assert "none.yaml: cannot be read: No such file or directory" in result.output


def test_all_errors_of_a_cluster_file_are_shown(file: Path) -> None:
    file.write_text(CLUSTER + "spec: {brokers: {replicas: 0}, zookeeper: {replicas: 2}}\n")
    result = invoke_up(file)
    assert result.exit_code == 2
    assert "spec.brokers.replicas: 0" in result.output
    assert "spec.zookeeper.replicas: 2" in result.output


@pytest.mark.parametrize("command", ["up", "demo"])
def test_missing_java_is_an_error(file: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(java, "_bundled_java", lambda: None)
    monkeypatch.delenv("JAVA_HOME", raising=False)
    monkeypatch.setenv("PATH", str(file.parent))
    work = ["--workdir", str(file.parent / "work")]
    result = CliRunner().invoke(up if command == "up" else demo, ["-f", str(file), *work])
    assert result.exit_code == 2
    assert "need Java 17 or newer, but there is none" in result.output


def test_full_disk_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(preflight, "MEMBER_BYTES", 2**60)
    result = invoke_up(file)
    assert result.exit_code == 2
    assert "free some space or choose --workdir" in result.output


def test_file_as_work_folder_is_an_error(file: Path) -> None:
    (file.parent / "work").write_text("")
    result = invoke_up(file)
    assert result.exit_code == 2
    assert "is a file" in result.output


def test_low_descriptor_limit_is_an_error(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1000, 1000))
    result = CliRunner().invoke(demo, ["--subscribers", "4000", "--workdir", str(file.parent / "work")])
    assert result.exit_code == 2
    assert "a process may open 1,000 files here" in result.output


@pytest.mark.parametrize("option", ["--json", "--html"])
def test_unwritable_result_file_is_an_error(tmp_path: Path, option: str) -> None:
    result = CliRunner().invoke(demo, [option, str(tmp_path / "none" / "x")])
    assert result.exit_code == 2
    assert f"{option}: cannot write into" in result.output


def test_work_folder_on_a_virtual_filesystem_is_an_error(file: Path) -> None:
    result = CliRunner().invoke(up, ["-f", str(file), "--workdir", "/proc/none/work"])
    assert result.exit_code == 2
    assert "cannot use /proc/none/work as work folder: the filesystem of /proc holds no files" in result.output


def test_port_in_use_leaves_no_work_folder(file: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        result = invoke_up(file, "--ports", str(port))
    assert result.exit_code == 2
    assert f"port {port} for quotes-broker-0's clients is in use" in result.output
    assert not (file.parent / "work").exists()


def test_demo_that_does_not_start_leaves_no_folder(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(file.parent))
    result = CliRunner().invoke(demo, ["--duration", "5"])
    assert result.exit_code == 2
    assert "use 20 or more" in result.output
    assert "are kept" not in result.output
    assert list(file.parent.glob("migratory-demo-*")) == []
