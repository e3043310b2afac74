"""The brokers of a local cluster: one configuration file, one process each, ready when `/readyz` says so."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from migratory_resources import MigratoryCluster, broker_config

from migratory_local.errors import LocalError
from migratory_local.http import Http
from migratory_local.place import HERE, Place
from migratory_local.process import Process

_POLL_SECONDS = 0.1
# The command line as a module of this interpreter: it works in any environment that this module works in.
COMMAND = (sys.executable, "-c", "from migratory_cli.main import main; main()")


@dataclass(frozen=True)
class Ports:
    clients: int
    peers: int
    admin: int


class Broker:
    """One broker's addresses and its process, which may be started again under the same addresses."""

    def __init__(
        self,
        name: str,
        ports: Ports,
        config: Path,
        logs: Path,
        command: Sequence[str] = COMMAND,
        place: Place = HERE,
    ) -> None:
        self.name = name
        self.ports = ports
        self.host = host = place.address
        self.process = Process(
            name,
            [
                *place.enter,
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
        """Where clients connect."""
        return f"ws://{self.host}:{self.ports.clients}/ws"

    @property
    def admin_url(self) -> str:
        return f"http://{self.host}:{self.ports.admin}"

    async def lists(self, http: Http) -> set[str]:
        """The URLs that it would give to a client now."""
        answer = await http.get_from(f"{self.host}:{self.ports.clients}", "/v1/servers")
        if answer is None or answer[0] != 200:
            return set()
        return {server["url"] for server in json.loads(answer[1])["servers"]}

    async def ask(self, http: Http, path: str) -> tuple[int, str] | None:
        """A page of its administration; None when it does not answer."""
        return await http.get_from(f"{self.host}:{self.ports.admin}", path)

    async def ready(self, http: Http) -> bool:
        answer = await self.ask(http, "/readyz")
        return answer is not None and answer[0] == 200


def write_config(cluster: MigratoryCluster, zookeeper_servers: str, folder: Path) -> Path:
    """:raises LocalError: when the folder can't be written."""
    path = folder / "broker.json"
    try:
        path.write_text(json.dumps(broker_config(cluster, zookeeper_servers), indent=2) + "\n")
    except OSError as error:
        raise LocalError(f"cannot write {path}: {error.strerror}") from error
    return path


async def wait_ready(brokers: Sequence[Broker], http: Http, within: float, *, died_is_final: bool = True) -> None:
    """Returns when every one of `brokers` is ready and names all of them to its clients.

    A broker hears of the others' readiness a moment later: a client that came in between would know one address only.

    :param within: seconds.
    :param died_is_final: a broker that ended makes an error at once; not so when a supervisor starts it again.
    :raises LocalError: naming the broker, with what it said and the end of its log.
    """
    deadline = time.monotonic() + within
    for broker in brokers:
        while not await broker.ready(http):
            if died_is_final and not broker.process.alive:
                raise LocalError(
                    f"{broker.name} ended with {broker.process.exit_code}; its log ends:\n{broker.process.tail()}"
                )
            if time.monotonic() > deadline:
                answer = await broker.ask(http, "/readyz")
                said = "no answer" if answer is None else f"{answer[0]} {answer[1].strip()}"
                raise LocalError(
                    f"{broker.name} was not ready within {within:g} s (/readyz: {said}); its log ends:\n"
                    f"{broker.process.tail()}"
                )
            await asyncio.sleep(_POLL_SECONDS)
    urls = {broker.url for broker in brokers}
    for broker in brokers:
        while not urls <= (listed := await broker.lists(http)):
            if time.monotonic() > deadline:
                missing = ", ".join(sorted(urls - listed))
                raise LocalError(f"{broker.name} did not name {missing} to its clients within {within:g} s")
            await asyncio.sleep(_POLL_SECONDS)
