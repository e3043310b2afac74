"""The scene of a fault on a Kubernetes: the cluster, its load, and proofs that several faults share."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import ClassVar

from migratory_node.kubectl import KubectlError

from migratory_chaos.engine import Observation, Scene
from migratory_chaos.kubernetes.environment import Operator
from migratory_chaos.kubernetes.load_pod import LoadPod
from migratory_chaos.kubernetes.local_node import LocalNode
from migratory_chaos.kubernetes.target import BROKER, Target, is_ready


class KubernetesScene(Scene):
    """The scene of a fault on a Kubernetes.

    :param wait_healthy: returns what is wrong when cluster and clients do not become healthy in time.
    """

    PROOF_SECONDS: ClassVar[float] = 150.0
    PROOF_INTERVAL: ClassVar[float] = 0.5
    TRANSIENT: ClassVar[tuple[type[Exception], ...]] = (KubectlError,)

    def __init__(
        self,
        kind: str,
        chance: random.Random,
        load_began: float,
        target: Target,
        load: LoadPod,
        operator: Operator,
        node: LocalNode | None,
        wait_healthy: Callable[[], Awaitable[list[str]]],
    ) -> None:
        super().__init__(kind, chance, load_began)
        self.target = target
        self.load = load
        self.operator = operator
        self.wait_healthy = wait_healthy
        self._node = node
        self._reconnects = 0
        self.marks = (load.marks, load.marks)

    @property
    def node(self) -> LocalNode:
        if self._node is None:
            raise RuntimeError("this fault needs a node of this machine, and the cluster has none")
        return self._node

    def start_injection(self, *victims: str, broker: str | None = None) -> None:
        """Mark an injection in the load. With `broker` the load notes its clients, and whether all of them resume."""
        self._reconnects = self._count_reconnects()
        self.load.mark(self.kind, broker)
        self.marks = (self.marks[0], self.load.marks)
        self.note_injection(*victims)

    def _count_reconnects(self) -> int:
        return int(self.load.status().get("reconnects", 0))

    async def wait_replaced(self, uids: dict[str, str], within: float | None = None) -> bool:
        """Prove that each of these pods was replaced by another. :param uids: by name, from before the injection."""

        async def look() -> Observation:
            now = {pod: self.target.uid(pod) for pod in uids}
            others = [pod for pod, uid in now.items() if uid and uid != uids[pod]]
            return len(others) == len(uids), ", ".join(others) or "none"

        return await self.wait_until("another pod of the name", ", ".join(sorted(uids)), look, within)

    async def wait_reconnects(self, clients: int) -> bool:
        """Prove that at least that many clients reconnected since the injection."""

        async def look() -> Observation:
            seen = self._count_reconnects() - self._reconnects
            return seen >= clients, seen

        return await self.wait_until("reconnects of clients", f">= {clients}", look, 60.0)

    def expect_takeovers(self, victim: str, groups: int) -> Callable[[], Awaitable[bool]]:
        """Return a function that proves, when awaited later, that other brokers took over the victim's groups."""
        others = [name for name in self.target.pods(BROKER) if name != victim]
        before = self.target.takeovers(others)

        async def look() -> Observation:
            found = self.target.takeovers(others) - before
            return found >= groups, f"{found:g}"

        async def prove() -> bool:
            return await self.wait_until("epochs activated by the others", f">= {groups}", look)

        return prove

    def count_clients(self, broker: str) -> int:
        """Return the number of subscribers connected to a broker."""
        return int((self.load.status().get("connections") or {}).get(broker, 0))

    def busiest_coordinator(self) -> tuple[str, int]:
        """Return the broker that coordinates most topic groups, and their number. Ties go to the smaller name."""
        groups = self.target.coordinated()
        name = max(sorted(groups), key=lambda one: groups[one])
        return name, groups[name]

    def pick_broker(self) -> str:
        """Return a random ready broker."""
        return self.random.choice(sorted(name for name, pod in self.target.pods(BROKER).items() if is_ready(pod)))
