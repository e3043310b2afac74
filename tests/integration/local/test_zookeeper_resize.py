"""An ensemble of real members is resized by the operator's own steps, from one to five and back, under writes."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import KazooException
from migratory_local.cluster.certificates import DevelopmentAuthority, write_certificates
from migratory_local.cluster.zookeeper import ZooKeeperMember
from migratory_local.processes.java import find_java, zookeeper_class_path
from migratory_local.processes.network import free_ports
from migratory_local.processes.process import Process
from migratory_operator import names
from migratory_operator.api.cluster_pods import ensemble_configs
from migratory_operator.names import Object
from migratory_operator.objects import zookeeper
from migratory_operator.reconcile.ensemble import next_ensemble_step
from migratory_operator.reconcile.observed import key_of
from migratory_resources.cluster.process_config import ZOOKEEPER_LOG4J, zookeeper_config, zookeeper_tls_lines
from migratory_resources.validation.custom_resources import read_cluster
from migratory_testing.kubernetes import NEW, SETTINGS, cluster, observe, pod
from migratory_testing.waiting import until

pytestmark = pytest.mark.real
COMMAND = Path(__file__).parents[3] / "docker" / "zookeeper" / "member"
LIMIT = 90.0
"""Seconds for one change of size."""


class Members:
    """Up to five members that run as in pods, the command of the image in folders of their own, and an operator that
    carries out its own steps with them.

    :param certificates: the folder with the members' certificate, for TLS; None for none.
    """

    def __init__(self, folder: Path, certificates: Path | None = None) -> None:
        ports = free_ports(20)
        self.certificates = certificates
        self.secure_ports = ports[15:]
        lib = folder / "lib"
        lib.mkdir()
        for jar in map(Path, zookeeper_class_path().split(":")):
            (lib / jar.name).symlink_to(jar)
        self.replicas = 1
        self.configs: list[tuple[int, ...]] = []
        """The voting members of each configuration that was observed."""
        self.members: list[ZooKeeperMember] = []
        for ordinal in range(5):
            own = (ports[3 * ordinal], ports[3 * ordinal + 1], ports[3 * ordinal + 2])
            member = ZooKeeperMember(ordinal + 1, folder / f"zookeeper-{ordinal}", own)
            environment = {
                "PATH": f"{find_java().executable.parent}:{os.environ['PATH']}",
                "POD_NAME": f"quotes-{member.name}",
                "ZOOKEEPER_CONFIG": str(member.folder),
                "ZOOKEEPER_DATA": str(member.folder / "data"),
                "ZOOKEEPER_LIB": str(lib),
                "ZOOKEEPER_PORT": str(member.port),
                "ZOOKEEPER_CHECK_SECONDS": "0.5",
            }
            log = folder / f"{member.name}.log"
            member.process = Process(member.name, [str(COMMAND)], log, environment=environment)
            self.members.append(member)

    @property
    def servers(self) -> str:
        return ",".join(member.address for member in self.members)

    def start(self, member: ZooKeeperMember) -> None:
        """Start a member's pod, with an empty volume if it has none."""
        data = member.folder / "data"
        data.mkdir(parents=True, exist_ok=True)
        lines = ["clientPortAddress=127.0.0.1"]
        if self.certificates is not None:
            files = str(self.certificates / "zookeeper.pem"), str(self.certificates / "ca.crt")
            lines += zookeeper_tls_lines(self.secure_ports[member.number - 1], *files)
        (member.folder / "zoo.cfg").write_text(zookeeper_config(str(data), member.port, lines, []))
        (member.folder / "log4j2.properties").write_text(ZOOKEEPER_LOG4J)
        member.process.start()

    def stop(self, member: ZooKeeperMember) -> None:
        """End a member with everything that its command started, as a container ends."""
        if member.process.pid is not None:
            with suppress(ProcessLookupError):
                os.killpg(member.process.pid, signal.SIGKILL)
            member.process.wait(5.0)

    async def reconcile(self, size: int) -> str:
        """Observe the members, and carry out the operator's next step towards `size`. Return its message."""
        resource = cluster({"zookeeper": {"replicas": size}})
        pods = tuple(self._pod(member) for member in self.members if member.process.alive)
        stateful_set: Object = {
            "kind": "StatefulSet",
            "metadata": {"name": "quotes-zookeeper", "generation": 1},
            "spec": {"replicas": self.replicas},
            "status": {"observedGeneration": 1, "updateRevision": NEW},
        }
        observed = observe(resource, objects={key_of(stateful_set): stateful_set}, pods=pods)
        observed = replace(observed, ensembles=await ensemble_configs(pods))
        if observed.ensemble is not None:
            voters = tuple(sorted(observed.ensemble.members))
            if self.configs[-1:] != [voters]:
                self.configs.append(voters)
        step = next_ensemble_step(read_cluster(resource), observed)
        change = step.reconfiguration
        asked = None if change is None else (change.version, change.members)
        membership = zookeeper.MemberInstructions(step.voters, asked, is_founded=step.voters is not None)
        self._write(zookeeper.objects(step.cluster, observed.owner, SETTINGS, membership)[0]["data"])
        self.replicas = step.cluster.spec.zookeeper.replicas
        for member in self.members:
            if member.number > self.replicas:
                self.stop(member)
                # The StatefulSet deletes the claims of members that it removes.
                shutil.rmtree(member.folder / "data", ignore_errors=True)
            elif not member.process.alive:
                self.start(member)
        return step.message

    async def resize(self, size: int) -> None:
        """Reconcile until the ensemble has this size."""
        async with asyncio.timeout(LIMIT):
            message = await self.reconcile(size)
            while message or self.configs[-1:] != [tuple(range(1, size + 1))]:
                await asyncio.sleep(0.2)
                message = await self.reconcile(size)

    def _write(self, files: dict[str, str]) -> None:
        """Write the files of the ConfigMap that say which members there are, with the members' real addresses."""
        by_id = {str(member.number): member for member in self.members}

        def address(line: re.Match[str]) -> str:
            member = by_id[line[1]]
            return f"server.{line[1]}=127.0.0.1:{member.quorum_port}:{member.election_port}:participant"

        for member in self.members:
            member.folder.mkdir(parents=True, exist_ok=True)
            for name in ("members", "reconfigure", "founded"):
                path = member.folder / name
                if name not in files:
                    path.unlink(missing_ok=True)
                    continue
                new = path.with_suffix(".new")
                new.write_text(re.sub(r"^server\.(\d+)=.*$", address, files[name], flags=re.MULTILINE))
                new.rename(path)

    @staticmethod
    def _pod(member: ZooKeeperMember) -> Object:
        made = pod(f"quotes-{member.name}", names.ZOOKEEPER, ready=member.mode() is not None, podIP="127.0.0.1")
        ports = [{"name": "zookeeper", "containerPort": member.port}]
        return {**made, "spec": {"containers": [{"ports": ports}]}}


@pytest.fixture
def members(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Members]:
    """Yield members that are not started yet, with TLS if the fixture's parameter is "tls"."""
    certificates = tmp_path / "tls" if getattr(request, "param", "") == "tls" else None
    if certificates is not None:
        write_certificates(certificates, DevelopmentAuthority(), [], "127.0.0.1", ["127.0.0.1"])
    made = Members(tmp_path, certificates)
    yield made
    for member in made.members:
        made.stop(member)


class Writer(threading.Thread):
    """A client that writes all the time, and remembers what was confirmed."""

    def __init__(self, servers: str) -> None:
        super().__init__(daemon=True)
        self.client = KazooClient(servers, timeout=4.0)
        self.confirmed: list[str] = []
        self.failures = 0
        self.ended = threading.Event()

    def run(self) -> None:
        self.client.start(timeout=30)
        self.client.ensure_path("/written")
        number = 0
        while not self.ended.wait(0.01):
            number += 1
            try:
                self.confirmed.append(self.client.create(f"/written/{number}"))
            except (KazooException, self.client.handler.timeout_exception):
                self.failures += 1


async def test_from_one_member_to_five_and_back_no_confirmed_write_is_lost(members: Members) -> None:
    await members.resize(1)
    writer = Writer(members.servers)
    writer.start()
    marks: list[Any] = []
    for size in (3, 5, 3, 1):
        await members.resize(size)
        written = len(writer.confirmed)
        await until(lambda: len(writer.confirmed) >= written + 10, "ten more writes")  # noqa: B023 - within this round
        marks.append((size, len(writer.confirmed), writer.failures))
    writer.ended.set()
    await asyncio.to_thread(writer.join, 10)
    present = set(writer.client.get_children("/written"))
    session_kept = writer.client.client_id
    writer.client.stop()
    writer.client.close()
    assert [path for path in writer.confirmed if path.rpartition("/")[2] not in present] == []
    assert session_kept is not None
    up = [tuple(range(1, size + 1)) for size in range(1, 6)]
    assert members.configs == [*up, *reversed(up[:-1])]
    print("size, confirmed, failed:", marks)


@pytest.mark.parametrize("members", ["tls"], indirect=True)
async def test_members_with_tls_join_and_leave(members: Members) -> None:
    for size in (1, 3, 1):
        await members.resize(size)
    assert members.configs == [(1,), (1, 2), (1, 2, 3), (1, 2), (1,)]
