"""The brokers of a local cluster: writes their common configuration file, defines the process of each, and waits until
all are ready and name each other to clients."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from migratory_resources import MigratoryCluster, broker_config
from migratory_resources.cluster.tls import CertificateFiles

from migratory_local import LocalError
from migratory_local.processes.network import LOCAL_PLACEMENT, HttpClient, Placement
from migratory_local.processes.process import Process

_POLL_SECONDS = 0.1
LOOPBACK_HOSTS = ("localhost", "127.0.0.1", "[::1]")
"""Host headers that brokers serve when the cluster names none: a web page that resolves its own name to this machine
(DNS rebinding) sends another one."""
LOOPBACK_ORIGINS = tuple(f"{scheme}://{host}:*" for scheme in ("http", "https") for host in LOOPBACK_HOSTS)
"""Web pages that may connect when the cluster names none: those that this machine serves to itself, on any port."""
MIGRATORY_COMMAND = (sys.executable, "-P", "-c", "from migratory_cli.main import main; main()")
"""The `migratory` command in this interpreter's environment, whatever is on PATH. Files of the folder in which it was
started are never imported (-P)."""


@dataclass(frozen=True)
class BrokerPorts:
    """The ports on which one broker listens: for clients, for other brokers, and for administration."""

    clients: int
    peers: int
    admin: int


class LocalBroker:
    """A broker of a local cluster: its addresses and its process, which may be started again under the same addresses.

    :param ports: the ports on which the broker listens.
    :param config: the configuration file.
    :param logs: the folder of the log file.
    :param command: the `migratory` command, without the word `broker`.
    :param placement: the network in which the process runs.
    :param scheme: `wss` if clients need TLS, else `ws`.
    :param admin_scheme: `https` if the administration has TLS, else `http`.
    """

    def __init__(
        self,
        name: str,
        ports: BrokerPorts,
        config: Path,
        logs: Path,
        command: Sequence[str] = MIGRATORY_COMMAND,
        placement: Placement = LOCAL_PLACEMENT,
        scheme: str = "ws",
        admin_scheme: str = "http",
    ) -> None:
        self.name = name
        self.ports = ports
        self.host = host = placement.address
        self._scheme = scheme
        self._admin_scheme = admin_scheme
        self.process = Process(
            name,
            [
                *placement.command_prefix,
                *command,
                "broker",
                f"--config={config}",
                f"--name={name}",
                f"--clients={host}:{ports.clients}",
                f"--peers={host}:{ports.peers}",
                f"--admin={host}:{ports.admin}",
                f"--advertise-url={self.url}",
                f"--advertise-peer={host}:{ports.peers}",
            ],
            logs / f"{name}.log",
        )

    @property
    def url(self) -> str:
        """The WebSocket URL to which clients connect."""
        return f"{self._scheme}://{self.host}:{self.ports.clients}/ws"

    @property
    def admin_url(self) -> str:
        """The base URL of the administration listener, with /healthz, /readyz, /metrics and /v1/status."""
        return f"{self._admin_scheme}://{self.host}:{self.ports.admin}"

    async def advertised_urls(self, http: HttpClient) -> set[str]:
        """Return the URLs in the server list that the broker sends to clients now; none if the broker does not answer
        with status 200."""
        answer = await self.get_admin(http, "/v1/servers")
        if answer is None or answer[0] != 200:
            return set()
        return {server["url"] for server in json.loads(answer[1])["servers"]}

    async def get_admin(self, http: HttpClient, path: str) -> tuple[int, str] | None:
        """Request a page of the broker's administration listener. Return status and body, or None if the broker does
        not answer within the limit of `http`."""
        return await http.get_from(self.admin_url, path)

    async def is_alive(self, http: HttpClient) -> bool:
        """Return whether the broker's event loop runs: /healthz answers in time, with any status. Without free
        descriptors, for example, the broker answers 503."""
        return await self.get_admin(http, "/healthz") is not None

    async def is_ready(self, http: HttpClient) -> bool:
        answer = await self.get_admin(http, "/readyz")
        return answer is not None and answer[0] == 200


def write_config(
    cluster: MigratoryCluster, zookeeper_servers: str, folder: Path, zookeeper_tls: CertificateFiles | None = None
) -> Path:
    """Write the configuration file `broker.json` of all brokers into the folder, and return its path.

    :param zookeeper_servers: ZooKeeper's connection string.
    :param zookeeper_tls: what the brokers show to ZooKeeper, and the authority that they trust there; None for no TLS.
    :raises LocalError: the folder cannot be written.
    """
    path = folder / "broker.json"
    try:
        config = broker_config(
            cluster,
            zookeeper_servers,
            default_hosts=LOOPBACK_HOSTS,
            default_origins=LOOPBACK_ORIGINS,
            default_console=True,
        )
        if zookeeper_tls is not None:
            config.setdefault("tls", {})["zookeeper"] = zookeeper_tls.model_dump()
        path.write_text(json.dumps(config, indent=2) + "\n")
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from error
    return path


async def wait_ready(
    brokers: Sequence[LocalBroker], http: HttpClient, max_wait: float, *, fail_on_exit: bool = True
) -> None:
    """Wait until every broker is ready, and sends clients a server list with all of them.

    A broker learns a moment later that the others are ready. A client that connects before that would know a single
    address.

    :param max_wait: seconds to wait for all of this.
    :param fail_on_exit: True to raise at once if a broker's process has ended; False if a supervisor starts it again.
    :raises LocalError: a broker ended or was not ready in time (the message has its answer and the end of its log), or
        did not list all the others in time.
    """
    deadline = time.monotonic() + max_wait
    for broker in brokers:
        while not await broker.is_ready(http):
            if fail_on_exit and not broker.process.alive:
                raise LocalError(
                    f"{broker.name} ended with {broker.process.exit_code}; its log ends:\n{broker.process.tail()}"
                )
            if time.monotonic() > deadline:
                answer = await broker.get_admin(http, "/readyz")
                response = "no answer" if answer is None else f"{answer[0]} {answer[1].strip()}"
                raise LocalError(
                    f"{broker.name} was not ready within {max_wait:g} s (/readyz: {response}); its log ends:\n"
                    f"{broker.process.tail()}"
                )
            await asyncio.sleep(_POLL_SECONDS)
    urls = {broker.url for broker in brokers}
    for broker in brokers:
        while not urls <= (advertised := await broker.advertised_urls(http)):
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(urls - advertised))
                raise LocalError(f"{broker.name} did not list {missing} for its clients within {max_wait:g} s")
            await asyncio.sleep(_POLL_SECONDS)
