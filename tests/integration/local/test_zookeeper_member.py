"""The command of a ZooKeeper member's pod (docker/zookeeper/member) with real processes: a member that lost its
volume."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble, ZooKeeperMember
from migratory_local.processes.java import find_java, zookeeper_class_path
from migratory_local.processes.process import Process
from migratory_testing.waiting import poll

pytestmark = pytest.mark.real
MEMBER = Path(__file__).parents[3] / "docker" / "zookeeper" / "member"
SILENCE = 3.0
"""Seconds in which two members that may vote elect a leader several times over."""


@pytest.fixture
def ensemble(tmp_path: Path) -> Iterator[ZooKeeperEnsemble]:
    """Run three members by the pod's command, each with its configuration and data in its folder."""
    lib = tmp_path / "lib"
    lib.mkdir()
    for jar in map(Path, zookeeper_class_path().split(":")):
        (lib / jar.name).symlink_to(jar)
    made = ZooKeeperEnsemble(tmp_path / "zookeeper", 3)
    for member in made.members:
        # As the operator writes them: the members in a file of their own.
        lines = (member.folder / "zoo.cfg").read_text().splitlines()
        servers = [line for line in lines if line.startswith("server.")]
        (member.folder / "members").write_text("".join(f"{line}:participant\n" for line in servers))
        environment = {
            "PATH": f"{find_java().executable.parent}:{os.environ['PATH']}",
            "POD_NAME": f"quotes-{member.name}",
            "ZOOKEEPER_CONFIG": str(member.folder),
            "ZOOKEEPER_DATA": str(member.folder),
            "ZOOKEEPER_LIB": str(lib),
        }
        member.process = Process(member.name, [str(MEMBER)], member.process.log, environment=environment)
    with made:
        yield made


def write(ensemble: ZooKeeperEnsemble, path: str) -> None:
    client = KazooClient(ensemble.servers, timeout=4.0)
    client.start(timeout=10)
    client.create(path)
    client.stop()
    client.close()


def exists(member: ZooKeeperMember, path: str) -> bool:
    client = KazooClient(member.address, timeout=4.0)
    client.start(timeout=10)
    client.sync("/")
    found = client.exists(path) is not None
    client.stop()
    client.close()
    return found


def lose_volume(member: ZooKeeperMember) -> None:
    shutil.rmtree(member.folder / "version-2")


def assert_waits(empty: ZooKeeperMember, other: ZooKeeperMember) -> None:
    """Wait until a member has started without data, and assert that it and the other one elect no leader."""
    poll(lambda: "Unexpected empty data tree" in empty.process.tail(), "a start without data")
    deadline = time.monotonic() + SILENCE
    while time.monotonic() < deadline:
        assert (empty.mode(), other.mode()) == (None, None)


def test_a_member_that_lost_its_volume_does_not_vote_while_others_have_data(ensemble: ZooKeeperEnsemble) -> None:
    first, second, third = ensemble.members
    write(ensemble, "/before")
    for member in ensemble.members:
        (member.folder / "founded").touch()
    second.process.kill()
    write(ensemble, "/confirmed")
    first.process.kill()
    third.process.kill()
    lose_volume(third)
    # The second one has not seen the last write. Together with a third one that votes it would undo that.
    second.process.start()
    third.process.start()
    assert_waits(third, second)
    first.process.start()
    ensemble.wait_ready()
    assert third.mode() == "follower"
    assert (third.folder / "myid").read_text() == "3\n"
    assert exists(third, "/confirmed")

    # A majority lost its volumes: the operator takes the file away, and the kubelet starts what has ended.
    for member in ensemble.members:
        member.process.kill()
    lose_volume(first)
    lose_volume(third)
    second.process.start()
    (third.folder / "founded").touch()
    size = third.process.log.stat().st_size
    third.process.start()
    poll(lambda: "Unexpected empty data tree" in third.process.log.read_text()[size:], "a start without data")
    (third.folder / "founded").unlink()
    poll(lambda: not third.process.alive, "the end of a member that waits in vain")
    third.process.start()
    poll(lambda: (second.mode(), third.mode()) == ("leader", "follower"), "a quorum")
    assert exists(third, "/confirmed")


def test_a_member_starts_when_its_own_name_has_an_address(tmp_path: Path) -> None:
    """Regression: a single member that started before DNS knew its pod found no leader until it was started again."""
    programs, data = tmp_path / "programs", tmp_path / "data"
    for folder in (programs, data):
        folder.mkdir()
    (tmp_path / "zoo.cfg").write_text("tickTime=2000\n")
    (tmp_path / "members").write_text("server.1=a-0.a:1:2:participant\nserver.2=a-1.a:1:2:participant\n")
    for name, script in (
        ("getent", f"echo $2 >>{tmp_path}/asked; test -e {tmp_path}/known"),
        ("java", f"touch {tmp_path}/started"),
    ):
        (programs / name).write_text(f"#!/bin/sh\n{script}\n")
        (programs / name).chmod(0o755)
    environment = {
        "PATH": f"{programs}:{os.environ['PATH']}",
        "POD_NAME": "a-1",
        "ZOOKEEPER_CONFIG": str(tmp_path),
        "ZOOKEEPER_DATA": str(data),
        "ZOOKEEPER_CHECK_SECONDS": "0.1",
    }
    member = Process("member", [str(MEMBER)], tmp_path / "log", environment=environment)
    member.start()
    try:
        asked = tmp_path / "asked"
        poll(lambda: asked.exists() and len(asked.read_text().splitlines()) > 1, "a second look-up of the own name")
        assert (member.alive, (tmp_path / "started").exists()) == (True, False)
        (tmp_path / "known").touch()
        poll((tmp_path / "started").exists, "the start")
        assert set(asked.read_text().splitlines()) == {"a-1.a"}
    finally:
        member.kill()
