"""Brokers with credentials on a real ZooKeeper member: their nodes are for them alone, also those that are older than
the credentials. A broker with the wrong password says so."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError
from kazoo.security import OPEN_ACL_UNSAFE, make_digest_acl
from migratory_local.cluster.zookeeper import ZooKeeperEnsemble
from migratory_testing.onebroker import closed_at_the_end, zookeeper_member
from migratory_testing.processes import Brokers
from migratory_testing.rawclient import RawClient
from migratory_testing.waiting import poll

__all__ = ["closed_at_the_end", "zookeeper_member"]
pytestmark = [pytest.mark.real, pytest.mark.timeout(240)]

USER, PASSWORD = "market", "correct:horse battery"
PROTECTED = [make_digest_acl(USER, PASSWORD, all=True)]


@pytest.fixture
def servers(zookeeper_member: ZooKeeperEnsemble, tmp_path: Path) -> str:
    """Return ZooKeeper's connection string with a root of this test's own: no other cluster is below its
    `/migratory`."""
    client = connected(zookeeper_member.servers, None)
    client.create(f"/{tmp_path.name}")
    closed(client)
    return f"{zookeeper_member.servers}/{tmp_path.name}"


@pytest.fixture
def owner(servers: str) -> Iterator[KazooClient]:
    """Yield a client with the credentials."""
    client = connected(servers, [("digest", f"{USER}:{PASSWORD}")])
    yield client
    closed(client)


@pytest.fixture
def stranger(servers: str) -> Iterator[KazooClient]:
    """Yield a client without credentials."""
    client = connected(servers, None)
    yield client
    closed(client)


def connected(servers: str, auth_data: list[tuple[str, str]] | None) -> KazooClient:
    client = KazooClient(servers, auth_data=auth_data)
    client.start()
    return client


def closed(client: KazooClient) -> None:
    client.stop()
    client.close()


def settings(servers: str, folder: Path, password: str = PASSWORD, **more: Any) -> dict[str, Any]:
    """Return the section `zookeeper` with credentials, whose password is in a file of the folder."""
    file = folder / "password"
    file.write_text(password + "\n")
    return {"servers": servers, "credentials": {"user": USER, "passwordFile": str(file), **more}}


def tree(client: KazooClient, path: str) -> list[str]:
    """Return the paths of a node and of all nodes below it."""
    return [path, *(below for name in client.get_children(path) for below in tree(client, f"{path}/{name}"))]


ROOT = "/migratory/test"


async def test_nodes_are_for_the_brokers_alone_and_a_takeover_still_works(
    servers: str, tmp_path: Path, owner: KazooClient, stranger: KazooClient
) -> None:
    with Brokers(tmp_path / "b", servers) as brokers:
        brokers.configure(zookeeper=settings(servers, tmp_path))
        brokers.start_all()
        leader = brokers.coordinator("t", "b0")
        other = next(broker for broker in brokers.all() if broker is not leader)
        publisher = await RawClient.join(other, name="publisher")
        await publisher.publish("t", b"1", 1)

        paths = ["/migratory", *tree(owner, ROOT)]
        assert len(paths) > 20, "with records, identities and ephemerals"
        assert any(owner.exists(path).ephemeralOwner for path in paths)
        assert [path for path in paths if owner.get_acls(path)[0] != PROTECTED] == []
        for path in paths:
            attempts: list[Callable[[], Any]] = [
                partial(stranger.get, path),
                partial(stranger.get_children, path),
                partial(stranger.set, path, b"x"),
                partial(stranger.create, f"{path}/x"),
                partial(stranger.set_acls, path, OPEN_ACL_UNSAFE),
            ]
            for attempt in attempts:
                with pytest.raises(NoAuthError):
                    attempt()
            if path != "/migratory":  # ZooKeeper's root is open, but a node with children cannot be deleted
                with pytest.raises(NoAuthError):
                    stranger.delete(path)

        leader.kill()
        await asyncio.to_thread(poll, lambda: brokers.coordinator("t", other.name) is not leader, "a takeover")
        await publisher.publish("t", b"2", 2)
        leader.start()
        leader.wait_ready()
        for broker in brokers.all():
            assert broker.status()["zookeeper_denied"] == ""
            assert broker.process is not None
            process = psutil.Process(broker.process.pid)
            said = [broker.log.read_text(), str(broker.status()), *process.cmdline(), *process.environ().values()]
            assert not any(PASSWORD in text for text in said)


async def test_nodes_are_protected_and_opened_again_in_a_running_cluster(
    servers: str, tmp_path: Path, owner: KazooClient
) -> None:
    """The steps of docs/how-to/secure.md: a broker without credentials runs beside those with `protect: false`, and
    these beside one that protects the nodes. `protect: false` opens them again."""

    def have(acl: list[Any]) -> Callable[[], bool]:
        return lambda: all(owner.get_acls(path)[0] == acl for path in tree(owner, ROOT))

    with Brokers(tmp_path / "b", servers) as brokers:
        broker = brokers["b0"]
        broker.start()
        broker.event("zookeeper_state")
        brokers.configure(zookeeper=settings(servers, tmp_path, protect=False))
        for other in brokers.all()[1:]:
            other.start()
        for each in brokers.all():
            each.wait_ready()
        for protect, acl in ((True, PROTECTED), (False, OPEN_ACL_UNSAFE)):
            brokers.configure(zookeeper=settings(servers, tmp_path, protect=protect))
            broker.signal(signal.SIGTERM)
            assert broker.wait() == 0
            broker.start()
            broker.wait_ready()
            assert broker.event("zookeeper_acls_changed")["protected"] is protect
            await asyncio.to_thread(poll, have(acl), f"all nodes have {acl}")
            assert [each.name for each in brokers.all() if not each.ready() or each.status()["zookeeper_denied"]] == []


@pytest.mark.parametrize("credentials", ["wrong", "none"])
async def test_broker_that_is_denied_access_says_so_and_ends(
    servers: str, tmp_path: Path, owner: KazooClient, credentials: str
) -> None:
    owner.create("/migratory")
    owner.create(ROOT, acl=PROTECTED)
    section = settings(servers, tmp_path, password="secret guess") if credentials == "wrong" else {"servers": servers}
    with Brokers(tmp_path / "b", servers) as brokers:
        brokers.configure(zookeeper={**section, "startTimeout": 4.0})
        broker = brokers["b0"]
        broker.start()
        assert broker.event("zookeeper_access_denied")["path"] == ROOT
        status = broker.status()
        assert (status["ready"], status["reason"]) == (False, "zookeeper_access_denied")
        assert (status["zookeeper_denied"], status["zookeeper_connected"]) == (ROOT, False)
        assert "zookeeper_access_denied" in broker.get("/readyz")[1]
        assert broker.metric("migratory_zookeeper_denied_total") >= 1
        assert broker.wait(30) == 4
        assert f"denied access to {ROOT}" in broker.event("start_failed")["reason"]
        assert len([line for line in broker.lines() if line["event"] == "zookeeper_access_denied"]) == 1
        assert "secret guess" not in broker.log.read_text()


async def test_access_that_is_taken_from_running_brokers_is_reported(
    servers: str, tmp_path: Path, owner: KazooClient
) -> None:
    """They serve on, as without ZooKeeper: no takeover is possible as long."""
    with Brokers(tmp_path / "b", servers) as brokers:
        brokers.start_all()
        broker, paths = brokers["b0"], tree(owner, ROOT)
        for acl in (PROTECTED, OPEN_ACL_UNSAFE):
            for path in paths:
                owner.set_acls(path, acl)
            denied = acl == PROTECTED
            await asyncio.to_thread(
                poll, lambda denied=denied: bool(broker.status()["zookeeper_denied"]) == denied, f"denied: {denied}"
            )
            assert broker.ready()
        assert broker.event("zookeeper_access_denied")["user"] == ""
        assert broker.metric("migratory_zookeeper_denied_total") >= 1
