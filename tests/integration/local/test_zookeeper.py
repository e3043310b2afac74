"""The ZooKeeper ensemble from PySpark's jars: quorum, failover of the leader, restart of members. Also errors at the
start."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from migratory_local import LocalError
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_testing.waiting import poll

pytestmark = pytest.mark.real


def test_write_succeeds_after_the_leader_is_killed(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    ensemble = zookeeper_ensemble
    assert sorted(member.mode() or "" for member in ensemble.members) == ["follower", "follower", "leader"]
    client = KazooClient(ensemble.servers, timeout=4.0)
    client.start(timeout=10)
    try:
        client.create("/before", b"1")
        leader = ensemble.leader()
        assert leader is not None
        ensemble.kill(leader)
        assert not leader.process.alive

        def can_write() -> bool:
            try:
                client.ensure_path("/after")
            except (KazooException, client.handler.timeout_exception):
                return False
            return True

        poll(can_write)
        assert client.get("/before")[0] == b"1"
        successor = ensemble.leader()
        assert successor not in (None, leader)

        leader.process.start()
        poll(lambda: leader.mode() == "follower")
    finally:
        client.stop()
        client.close()


def test_members_without_a_quorum_have_no_mode(zookeeper_ensemble: ZooKeeperEnsemble) -> None:
    first, second, third = zookeeper_ensemble.members
    zookeeper_ensemble.freeze(first)
    zookeeper_ensemble.kill(second)
    poll(lambda: third.mode() is None)
    assert zookeeper_ensemble.leader() is None
    zookeeper_ensemble.thaw(first)
    poll(lambda: zookeeper_ensemble.leader() is not None)


def test_single_member_is_standalone(tmp_path: Path) -> None:
    with ZooKeeperEnsemble(tmp_path, 1) as ensemble:
        assert ensemble.members[0].mode() == "standalone"
        processes = ensemble.processes
    assert not any(process.alive for process in processes)


def test_port_in_use_is_an_error_before_the_start(tmp_path: Path) -> None:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        port = listener.getsockname()[1]
        with pytest.raises(LocalError, match=rf"port {port} for ZooKeeper is in use"):
            ZooKeeperEnsemble(tmp_path, 1, first_port=port)


def test_member_that_cannot_start_is_an_error_with_its_log(tmp_path: Path) -> None:
    ensemble = ZooKeeperEnsemble(tmp_path, 1)
    (ensemble.members[0].folder / "zoo.cfg").write_text("nonsense=\n")
    with pytest.raises(LocalError, match=r"(?s)zookeeper-0 ended with \d+; its log ends:.*dataDir"), ensemble:
        raise AssertionError("it became ready")


def test_two_members_are_an_error(tmp_path: Path) -> None:
    with pytest.raises(LocalError, match="2 ZooKeeper members are not allowed; use 1, 3 or 5"):
        ZooKeeperEnsemble(tmp_path, 2)
