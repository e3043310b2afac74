"""Runs a ZooKeeper ensemble of 1, 3 or 5 members, from the jars that PySpark brings.

The command `srvr` shows whether a member is ready: one that reports its mode (leader, follower, standalone) has a
quorum, one without a quorum answers "not currently serving requests". ("ruok" says nothing about a quorum.)
"""

from __future__ import annotations

import contextlib
import re
import signal
import socket
import ssl
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self, cast

from migratory_resources.cluster.process_config import ZOOKEEPER_LOG4J, zookeeper_config, zookeeper_tls_lines

from migratory_local import LocalError
from migratory_local.processes.java import Java, find_java, zookeeper_class_path
from migratory_local.processes.network import LOCAL_PLACEMENT, LOOPBACK, Placement, check_free, free_ports
from migratory_local.processes.process import Process, stop_all

SIZES = (1, 3, 5)
Mode = Literal["leader", "follower", "observer", "standalone"]

_JVM_FLAGS = ("-Xmx64m", "-Xss512k", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Djava.awt.headless=true")
"""Flags of a JVM that is small and starts quickly: with PySpark 4.3 three members are up in 1.7 s at about 80 MB
each."""
_PREALLOCATE_KB = 4096
"""KiB by which a transaction log grows. The default, 64 MiB per member, fills the disk of a small machine."""
_MODE = re.compile(r"^Mode: (\w+)", re.MULTILINE)
_REQUEST_TIMEOUT = 1.0
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 3.0
"""Seconds for members to end after SIGTERM. They save nothing that the next start needs."""


@dataclass(frozen=True)
class ZooKeeperTls:
    """PEM files with which ZooKeeper's members authenticate to each other, and members and clients to each other."""

    identity: Path
    """The private key, followed by the certificate, which has the members' addresses."""
    authority: Path

    def client_context(self) -> ssl.SSLContext:
        """Return the context of a connection to a member. Raise OSError if a file cannot be used."""
        context = ssl.create_default_context(cafile=str(self.authority))
        context.load_cert_chain(self.identity)
        return context


class ZooKeeperMember:
    """A member of the ensemble: its ports, its data folder and its process, which the ensemble sets. `number` counts
    from 1, as ZooKeeper's `myid` does; the name counts from 0.

    :param ports: the ports for clients, quorum and election.
    :param placement: the network in which the process runs.
    :param tls: None for ports without TLS.
    """

    def __init__(
        self,
        number: int,
        folder: Path,
        ports: tuple[int, int, int],
        placement: Placement = LOCAL_PLACEMENT,
        tls: ZooKeeperTls | None = None,
    ) -> None:
        self.number = number
        self.name = f"zookeeper-{number - 1}"
        self.folder = folder
        self.placement = placement
        self._tls = tls
        self.port, self.quorum_port, self.election_port = ports
        self.process: Process

    @property
    def address(self) -> str:
        return f"{self.placement.address}:{self.port}"

    def mode(self) -> Mode | None:
        """Return the member's current mode, or None while it is down or has no quorum. Wait about a second for one that
        hangs."""
        context = None if self._tls is None else self._tls.client_context()
        match = _MODE.search(four_letter_command(self.port, "srvr", self.placement.address, context))
        return None if match is None else cast(Mode, match.group(1))


class ZooKeeperEnsemble:
    """An ensemble with its data under `folder`. Creating it writes the members' configuration and starts nothing;
    `with` starts the members, waits until they are ready, and ends them. A member that is started again has the same
    data and ports.

    :param size: number of members: 1, 3 or 5.
    :param java: the Java runtime; by default the first suitable one that `find_java` returns.
    :param first_port: the first of three ports per member (client, quorum, election); free ports by default.
    :param placements: the network of each member; this machine's loopback address by default.
    :param min_session: the shortest session that a client may request, in seconds.
    :param tls: the certificate of all members, for mutual TLS on all their ports; no TLS by default.
    :raises LocalError: the size is not allowed, a port is in use, Java or the jars are missing, or the folder cannot be
        written.
    """

    def __init__(
        self,
        folder: Path,
        size: int = 3,
        *,
        java: Java | None = None,
        first_port: int | None = None,
        placements: Sequence[Placement] | None = None,
        min_session: float = 1.0,
        tls: ZooKeeperTls | None = None,
    ) -> None:
        if size not in SIZES:
            raise LocalError(f"{size} ZooKeeper members are not allowed; use 1, 3 or 5")
        self.folder = folder
        self._tls = tls
        self._min_session_ms = round(min_session * 1000)
        ports = list(range(first_port, first_port + 3 * size)) if first_port is not None else free_ports(3 * size)
        for port in ports:
            check_free(port, "ZooKeeper")
        self.members = [
            ZooKeeperMember(
                index + 1,
                folder / f"zookeeper-{index}",
                (ports[3 * index], ports[3 * index + 1], ports[3 * index + 2]),
                placement,
                tls,
            )
            for index, placement in enumerate(placements or [LOCAL_PLACEMENT] * size)
        ]
        java = java or find_java()
        class_path = zookeeper_class_path()
        for member in self.members:
            self._write_files(member)
            member.process = Process(
                member.name, self._command(member, java, class_path), folder / "logs" / f"{member.name}.log"
            )

    @property
    def servers(self) -> str:
        """ZooKeeper's connection string of all members, such as "127.0.0.1:10001,127.0.0.1:10004"."""
        return ",".join(member.address for member in self.members)

    @property
    def processes(self) -> list[Process]:
        return [member.process for member in self.members]

    def start(self) -> None:
        for member in self.members:
            member.process.start()

    def wait_ready(self, timeout: float = 30.0) -> None:
        """Wait until every member reports its mode. The calling thread is blocked meanwhile.

        :raises LocalError: a member ends or is not ready after `timeout` seconds; the message has the end of its log.
        """
        deadline = time.monotonic() + timeout
        for member in self.members:
            while member.mode() is None:
                if not member.process.alive:
                    raise LocalError(
                        f"{member.name} ended with {member.process.exit_code}; its log ends:\n{member.process.tail()}"
                    )
                if time.monotonic() > deadline:
                    raise LocalError(
                        f"{member.name} was not ready within {timeout:g} s; its log ends:\n{member.process.tail()}"
                    )
                time.sleep(_POLL_SECONDS)

    def leader(self) -> ZooKeeperMember | None:
        """Return the member that is the leader, or the only member; None while there is no leader."""
        return next((member for member in self.members if member.mode() in ("leader", "standalone")), None)

    def kill(self, member: ZooKeeperMember) -> None:
        """Kill a member with SIGKILL. The ensemble does not start it again."""
        member.process.kill()

    def freeze(self, member: ZooKeeperMember) -> None:
        """Stop a member with SIGSTOP: its sockets stay open, and it answers nothing."""
        member.process.signal(signal.SIGSTOP)

    def thaw(self, member: ZooKeeperMember) -> None:
        """Continue a member that `freeze` stopped."""
        member.process.signal(signal.SIGCONT)

    def stop(self) -> None:
        """End the processes of all members, with SIGKILL after `_GRACE_SECONDS`. Their data stays on the disk."""
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

    def _write_files(self, member: ZooKeeperMember) -> None:
        """Write a member's `myid`, configuration and logging configuration into its folder, which is created.

        :raises LocalError: they cannot be written.
        """
        address, port, tls = member.placement.address, member.port, self._tls
        members = [f"{other.placement.address}:{other.quorum_port}:{other.election_port}" for other in self.members]
        if tls is None:
            lines = [f"clientPortAddress={address}"]
        else:
            lines = zookeeper_tls_lines(port, str(tls.identity), str(tls.authority))
            lines.append(f"secureClientPortAddress={address}")
        plain = port if tls is None else None
        text = zookeeper_config(str(member.folder), plain, lines, members, self._min_session_ms)
        try:
            member.folder.mkdir(parents=True, exist_ok=True)
            (member.folder / "myid").write_text(f"{member.number}\n")
            (member.folder / "zoo.cfg").write_text(text)
            (member.folder / "log4j2.properties").write_text(ZOOKEEPER_LOG4J)
        except OSError as error:
            raise LocalError(f"cannot write {member.name}'s files: {error}") from error

    @staticmethod
    def _command(member: ZooKeeperMember, java: Java, class_path: str) -> list[str]:
        """Return the command that runs a member in its placement."""
        return [
            *member.placement.command_prefix,
            str(java.executable),
            *_JVM_FLAGS,
            f"-Dzookeeper.preAllocSize={_PREALLOCATE_KB}",
            f"-Dlog4j2.configurationFile={member.folder / 'log4j2.properties'}",
            "-cp",
            class_path,
            "org.apache.zookeeper.server.quorum.QuorumPeerMain",
            str(member.folder / "zoo.cfg"),
        ]


def four_letter_command(port: int, command: str, host: str = LOOPBACK, context: ssl.SSLContext | None = None) -> str:
    """Return the answer to a ZooKeeper four-letter command such as `srvr`, or "" if the member cannot be reached or
    does not answer within a second.

    :param context: the TLS context of the connection; None for no TLS.
    """
    with contextlib.ExitStack() as stack:
        try:
            connection = stack.enter_context(socket.create_connection((host, port), timeout=_REQUEST_TIMEOUT))
            if context is not None:
                connection = stack.enter_context(context.wrap_socket(connection, server_hostname=host))
            connection.sendall(command.encode())
            parts = []
            while part := connection.recv(4096):
                parts.append(part)
        except OSError:
            return ""
    return b"".join(parts).decode(errors="replace")
