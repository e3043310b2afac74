"""A real ZooKeeper ensemble of 1, 3 or 5 members, from the jars that PySpark brings.

Ready is what `srvr` says: a member that names its mode (leader, follower, standalone) has a quorum; one that merely
runs answers "not currently serving requests". ("ruok" is no sign of a quorum.)
"""

from __future__ import annotations

import re
import signal
import socket
import time
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast

from migratory_resources.cluster.process_config import ZOOKEEPER_LOG4J, zookeeper_config

from migratory_local.errors import LocalError
from migratory_local.java import Java, find_java, spark_jars
from migratory_local.place import HERE, Place
from migratory_local.ports import HOST, check_free, free_ports
from migratory_local.process import Process, stop_all

SIZES = (1, 3, 5)
Mode = Literal["leader", "follower", "observer", "standalone"]

# Measured with PySpark 4.3: three members are up in 1.7 s at about 105 MB each.
_FLAGS = ("-Xmx64m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
# Each transaction log is written ahead with zeros; the default of 64 MiB a member suits no demo.
_PREALLOCATE_KB = 4096
_MODE = re.compile(r"^Mode: (\w+)", re.MULTILINE)
_ASK_SECONDS = 1.0
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0


class Member:
    """One member: its ports, its data folder and its process. `number` counts from 1, as in ZooKeeper's `myid`."""

    def __init__(self, number: int, folder: Path, ports: tuple[int, int, int], place: Place = HERE) -> None:
        self.number = number
        self.name = f"zookeeper-{number - 1}"
        self.folder = folder
        self.place = place
        self.port, self.quorum_port, self.election_port = ports
        self.process: Process

    @property
    def address(self) -> str:
        return f"{self.place.address}:{self.port}"

    def mode(self) -> Mode | None:
        """What it is now; None while it is down or has no quorum."""
        found = _MODE.search(four_letters(self.port, "srvr", self.place.address))
        return None if found is None else cast(Mode, found.group(1))


class Ensemble:
    """`size` members with data under `folder`; a member that is started again finds its data and its ports.

    :param size: 1, 3 or 5.
    :param first_port: members use this port and the following ones (client, quorum and election port each);
        free ones by default.
    :param places: where each member runs; on this machine's loopback address by default.
    :param min_session: the shortest session that a client may ask for, in seconds.
    """

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        *,
        java: Java | None = None,
        first_port: int | None = None,
        places: Sequence[Place] | None = None,
        min_session: float = 1.0,
    ) -> None:
        if size not in SIZES:
            raise LocalError(f"{size} ZooKeeper members: allowed are 1, 3, 5")
        self.folder = folder
        self._min_session_ms = round(min_session * 1000)
        ports = list(range(first_port, first_port + 3 * size)) if first_port is not None else free_ports(3 * size)
        for port in ports:
            check_free(port, "ZooKeeper")
        self.members = [
            Member(
                index + 1,
                folder / f"zookeeper-{index}",
                (ports[3 * index], ports[3 * index + 1], ports[3 * index + 2]),
                place,
            )
            for index, place in enumerate(places or [HERE] * size)
        ]
        java = java or find_java()
        jars = spark_jars()
        for member in self.members:
            self._write(member)
            member.process = Process(
                member.name, self._command(member, java, jars), folder / "logs" / f"{member.name}.log"
            )

    @property
    def servers(self) -> str:
        """The connection string: "127.0.0.1:1,127.0.0.1:2"."""
        return ",".join(member.address for member in self.members)

    @property
    def processes(self) -> list[Process]:
        return [member.process for member in self.members]

    def start(self) -> None:
        for member in self.members:
            member.process.start()

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Returns when every running member names its mode.

        :raises LocalError: when one died or the time is up, with the end of its log.
        """
        deadline = time.monotonic() + timeout
        for member in self.members:
            while member.mode() is None:
                if not member.process.alive:
                    raise LocalError(
                        f"{member.name} ended with {member.process.exit_code}; its log ends:\n{member.process.tail()}"
                    )
                if time.monotonic() > deadline:
                    raise LocalError(f"{member.name} not ready within {timeout:g} s; its log:\n{member.process.tail()}")
                time.sleep(_POLL_SECONDS)

    def leader(self) -> Member | None:
        """The member that leads (or the only one); None while there is none."""
        return next((member for member in self.members if member.mode() in ("leader", "standalone")), None)

    def kill(self, member: Member) -> None:
        """SIGKILL."""
        member.process.kill()

    def freeze(self, member: Member) -> None:
        """SIGSTOP: it holds its sockets and answers nothing."""
        member.process.signal(signal.SIGSTOP)

    def thaw(self, member: Member) -> None:
        member.process.signal(signal.SIGCONT)

    def stop(self) -> None:
        """Ends all members. Their data stays."""
        stop_all(self.processes, _GRACE_SECONDS)

    def __enter__(self) -> Self:
        try:
            self.start()
            self.wait_ready()
        except BaseException:
            self.stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _write(self, member: Member) -> None:
        address = [f"clientPortAddress={member.place.address}"]
        members = [f"{other.place.address}:{other.quorum_port}:{other.election_port}" for other in self.members]
        text = zookeeper_config(str(member.folder), member.port, address, members, self._min_session_ms)
        try:
            member.folder.mkdir(parents=True, exist_ok=True)
            (member.folder / "myid").write_text(f"{member.number}\n")
            (member.folder / "zoo.cfg").write_text(text)
            (member.folder / "log4j2.properties").write_text(ZOOKEEPER_LOG4J)
        except OSError as error:
            raise LocalError(f"cannot write {member.name}'s files: {error}") from error

    @staticmethod
    def _command(member: Member, java: Java, jars: Path) -> list[str]:
        return [
            *member.place.enter,
            str(java.executable),
            *_FLAGS,
            f"-Dzookeeper.preAllocSize={_PREALLOCATE_KB}",
            f"-Dlog4j2.configurationFile={member.folder / 'log4j2.properties'}",
            "-cp",
            f"{jars}/*",
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(member.folder / "zoo.cfg"),
        ]


def four_letters(port: int, command: str, host: str = HOST) -> str:
    """The answer to one of ZooKeeper's four-letter commands; empty when nobody answers within a second."""
    try:
        with socket.create_connection((host, port), timeout=_ASK_SECONDS) as connection:
            connection.sendall(command.encode())
            parts = []
            while part := connection.recv(4096):
                parts.append(part)
    except OSError:
        return ""
    return b"".join(parts).decode(errors="replace")
