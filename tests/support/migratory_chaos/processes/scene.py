"""The scene of a fault of local processes: the cluster, its clients, and proofs that several faults share."""

from __future__ import annotations

import contextlib
import random
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from migratory_local.processes.process import Process

from migratory_chaos.brokers import BrokerScene
from migratory_chaos.engine import Observation
from migratory_chaos.processes.cluster import ChaosCluster
from migratory_chaos.processes.network import Network

FENCING_SECONDS = 6.0
"""Seconds of silence of all other brokers after which a broker is fenced and replaced."""


class ProcessScene(BrokerScene):
    """The scene of a fault of local processes.

    :param burst: makes the publishers send more at once than can be acknowledged immediately.
    """

    def __init__(
        self,
        kind: str,
        options: dict[str, Any],
        chance: random.Random,
        load_began: float,
        cluster: ChaosCluster,
        burst: Callable[[], Awaitable[None]],
    ) -> None:
        super().__init__(kind, options, chance, load_began)
        self.cluster: ChaosCluster = cluster
        self._burst = burst

    @property
    def network(self) -> Network:
        if self.cluster.network is None:
            raise RuntimeError("this fault needs network namespaces, and the run has none")
        return self.cluster.network

    async def start_injection(self, *victims: str) -> None:
        """Send a burst and note the injection, so that publications are in flight when the fault takes effect."""
        await self._burst()
        self.note_injection(*victims)

    async def pick_brokers(self, count: int, coordinator: bool) -> list[str]:
        """Return the names of `count` random brokers, or of those with most groups, most first, if `coordinator`."""
        names = self.cluster.broker_names()
        self.random.shuffle(names)
        if coordinator:
            groups = await self.cluster.count_coordinated()
            names.sort(key=lambda name: -groups.get(name, 0))
        return names[:count]

    @contextlib.contextmanager
    def held(self, names: Sequence[str]) -> Iterator[None]:
        """For the time of the context, keep the supervisor from starting these processes again, or killing them because
        they hang."""
        for name in names:
            self.cluster.supervisor.hold(name)
        try:
            yield
        finally:
            for name in names:
                self.cluster.supervisor.release(name)

    @contextlib.asynccontextmanager
    async def frozen(self, processes: Sequence[Process]) -> AsyncIterator[None]:
        """Stop these processes with SIGSTOP for the time of the context, prove it, and hold them at the supervisor."""
        with self.held([process.name for process in processes]):
            try:
                for process in processes:
                    process.signal(signal.SIGSTOP)
                await self._wait_stopped(processes)
                yield
            finally:
                for process in processes:
                    process.signal(signal.SIGCONT)

    def kill_broker(self, name: str) -> None:
        """Kill a broker with SIGKILL, and prove its death by the exit code and the outcome of the next connection."""
        broker = self.cluster.broker(name)
        broker.process.kill()
        self.prove_killed(name, broker.process.exit_code, (broker.host, broker.ports.clients))

    def prove_killed(self, name: str, exit_code: int | None, address: tuple[str, int]) -> None:
        self.prove(f"exit code of {name}", -9, exit_code)
        self.prove(f"a connection to {name}", "refused", try_connection(*address))

    async def _wait_stopped(self, processes: Sequence[Process]) -> None:
        async def look() -> Observation:
            states = [process_state(process.pid) for process in processes]
            return set(states) == {"T"}, ", ".join(states)

        names = ", ".join(process.name for process in processes)
        await self.wait_until(f"state of {names}", "T", look, 5.0)


def process_state(pid: int | None) -> str:
    """Return the kernel's letter for the state of a process, such as R, S, T (stopped) or Z; empty when there is no
    such process."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return ""


def try_connection(host: str, port: int) -> str:
    """Return the outcome of a new connection: "refused", "accepted" or "silence"."""
    try:
        with socket.create_connection((host, port), timeout=1.0):
            return "accepted"
    except ConnectionRefusedError:
        return "refused"
    except OSError:
        return "silence"
