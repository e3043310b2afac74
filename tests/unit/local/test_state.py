"""State files of running clusters, and locks of work folders."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from migratory_local import LocalError
from migratory_local.cluster.state import (
    BrokerState,
    ClusterState,
    WorkdirLock,
    own_start_time,
    running_clusters,
    state_folder,
    write_secret,
    write_state,
)


def state(pid: int, started: float, name: str = "quotes") -> ClusterState:
    broker = BrokerState("quotes-broker-0", "ws://127.0.0.1:8800/ws", "http://127.0.0.1:8900")
    return ClusterState(name, pid, started, "/tmp/x", "127.0.0.1:2181", [broker], "")


def test_running_cluster_is_found_and_stale_files_are_removed(tmp_path: Path) -> None:
    own = state(os.getpid(), own_start_time())
    path = write_state(own, tmp_path)
    gone = write_state(state(os.getpid(), own_start_time() - 100, "old"), tmp_path / "other")
    (tmp_path / "old.1.json").write_text(gone.read_text())
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "strange.json").write_text(json.dumps({"name": "x"}))
    assert running_clusters(tmp_path) == [own]
    assert list(tmp_path.glob("*.json")) == [path]


def test_unwritable_state_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot write"):
        write_state(state(1, 1.0), tmp_path / "file")


def test_state_folder_follows_xdg_state_home(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/migratory")
    assert state_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/migratory"


def test_user_without_a_home_has_no_clusters_and_no_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    """For a user without a home folder, such as a number without an entry in /etc/passwd, there are no running
    clusters, and asking for the state folder raises LocalError with advice."""

    def none(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(none))
    assert running_clusters() == []
    with pytest.raises(LocalError, match="has no home folder: set HOME, or set XDG_STATE_HOME"):
        state_folder()


def test_stale_file_that_cannot_be_removed_is_ignored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "old.1.json").write_text("{}")
    monkeypatch.setattr(Path, "unlink", refuse)
    assert running_clusters(tmp_path) == []


def test_second_runner_cannot_lock_the_work_folder(tmp_path: Path) -> None:
    first, second = WorkdirLock(tmp_path / "w"), WorkdirLock(tmp_path / "w")
    first.acquire()
    with pytest.raises(LocalError, match=rf"in use by another runner \(pid {os.getpid()}\)"):
        second.acquire()
    first.release()
    second.acquire()
    second.release()
    second.release()


@pytest.mark.parametrize("name", ["logs", "samples", "zookeeper-0"])
def test_folder_with_other_content_is_not_a_work_folder(tmp_path: Path, name: str) -> None:
    """A folder that has other content, such as a project's `logs`, is refused as a work folder and stays unchanged;
    a folder that was a work folder before is accepted."""
    (tmp_path / name).mkdir()
    with pytest.raises(LocalError, match=rf"holds {name}, which a start would remove, but was never a work folder"):
        WorkdirLock(tmp_path).acquire()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / name).rmdir()
    lock = WorkdirLock(tmp_path)
    lock.acquire()
    lock.release()
    (tmp_path / name).mkdir()
    lock.acquire()
    lock.release()


def test_file_as_work_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="as work folder"):
        WorkdirLock(tmp_path / "file").acquire()


@pytest.mark.parametrize(("content", "written"), [("token", b"token"), (b"key", b"key")])
def test_secret_is_private_whatever_file_was_there(tmp_path: Path, content: str | bytes, written: bytes) -> None:
    path = tmp_path / "secret"
    for stale in (path, path.with_name("secret.part")):
        stale.write_text("before")
        stale.chmod(0o644)
    write_secret(path, content)
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.read_bytes() == written
    assert list(tmp_path.iterdir()) == [path]


def test_secret_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match=r"cannot write .*: No such file or directory"):
        write_secret(tmp_path / "missing" / "secret", "token")
