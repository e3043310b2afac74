"""What the machine must have, who runs what, and who holds a work folder."""

from __future__ import annotations

import json
import resource
import shutil
from collections import namedtuple
from pathlib import Path

import pytest
from migratory_local.errors import LocalError
from migratory_local.machine import allow_descriptors, check_platform, check_room
from migratory_local.state import (
    BrokerState,
    ClusterState,
    FolderLock,
    own_start_time,
    publish,
    running_clusters,
    state_folder,
)

Usage = namedtuple("Usage", "total used free")


def state(pid: int, started: float, name: str = "quotes") -> ClusterState:
    broker = BrokerState("quotes-broker-0", "ws://127.0.0.1:8800/ws", "http://127.0.0.1:8900")
    return ClusterState(name, pid, started, "/tmp/x", "127.0.0.1:2181", [broker], "")


def test_only_linux() -> None:
    check_platform("linux")
    with pytest.raises(LocalError, match=r"needs Linux .* not darwin"):
        check_platform("darwin")


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    check_room(tmp_path / "not" / "yet", 3)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: Usage(100, 99, 2**20))
    with pytest.raises(LocalError, match=r"1 MiB free, 72 MiB are needed; make room or choose --workdir"):
        check_room(tmp_path, 3)


def test_descriptors(monkeypatch: pytest.MonkeyPatch) -> None:
    limits = [1024, 5000]
    monkeypatch.setattr(resource, "getrlimit", lambda _: tuple(limits))
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.__setitem__(slice(None), new))
    allow_descriptors(100)
    assert limits == [1024, 5000]
    allow_descriptors(4000)
    assert limits == [4300, 5000]
    with pytest.raises(LocalError, match=r"may open 5,000 files .* 5,301 may be needed for 5,001 .*\(4,700\)"):
        allow_descriptors(5001)
    limits[1] = resource.RLIM_INFINITY
    allow_descriptors(1_000_000)
    assert limits[0] == 1_000_300


def test_a_running_cluster_is_found(tmp_path: Path) -> None:
    import os

    mine = state(os.getpid(), own_start_time())
    path = publish(mine, tmp_path)
    gone = publish(state(os.getpid(), own_start_time() - 100, "old"), tmp_path / "other")
    (tmp_path / "old.1.json").write_text(gone.read_text())
    (tmp_path / "broken.json").write_text("{")
    (tmp_path / "strange.json").write_text(json.dumps({"name": "x"}))
    assert running_clusters(tmp_path) == [mine]
    assert list(tmp_path.glob("*.json")) == [path]


def test_a_state_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="cannot write"):
        publish(state(1, 1.0), tmp_path / "file")


def test_the_state_folder(monkeypatch: pytest.MonkeyPatch) -> None:
    assert state_folder({"XDG_STATE_HOME": "/x"}) == Path("/x/migratory")
    assert state_folder({"XDG_STATE_HOME": "relative"}) == Path.home() / ".local/state/migratory"


def test_a_user_without_a_home_runs_no_cluster_and_is_told_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    """A container's user may be a mere number: `status`, `pub` and `sub` once ended with pathlib's traceback."""

    def none(_: type[Path]) -> Path:
        raise RuntimeError("Could not determine home directory.")

    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.setattr(Path, "home", classmethod(none))
    assert running_clusters() == []
    with pytest.raises(LocalError, match="has no home: set HOME, or XDG_STATE_HOME"):
        state_folder()


def test_what_a_killed_runner_left_where_nothing_may_be_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, missing_ok: bool = False) -> None:
        raise PermissionError(13, "Permission denied", str(path))

    (tmp_path / "old.1.json").write_text("{}")
    monkeypatch.setattr(Path, "unlink", refuse)
    assert running_clusters(tmp_path) == []


def test_one_runner_per_work_folder(tmp_path: Path) -> None:
    import os

    first, second = FolderLock(tmp_path / "w"), FolderLock(tmp_path / "w")
    first.take()
    with pytest.raises(LocalError, match=rf"in use by another runner \(pid {os.getpid()}\)"):
        second.take()
    first.release()
    second.take()
    second.release()
    second.release()


@pytest.mark.parametrize("name", ["logs", "samples", "zookeeper-0"])
def test_a_folder_of_something_else_is_no_work_folder(tmp_path: Path, name: str) -> None:
    """`--workdir .`, or "" from a variable that is not set, in a project with a folder `logs`: it once was removed."""
    (tmp_path / name).mkdir()
    with pytest.raises(LocalError, match=rf"holds {name}, which a start clears, but was never a work folder"):
        FolderLock(tmp_path).take()
    assert [path.name for path in tmp_path.iterdir()] == [name]
    (tmp_path / name).rmdir()
    lock = FolderLock(tmp_path)
    lock.take()
    lock.release()
    (tmp_path / name).mkdir()
    lock.take()
    lock.release()


def test_a_work_folder_that_cannot_be(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LocalError, match="as work folder"):
        FolderLock(tmp_path / "file").take()
