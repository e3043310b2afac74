"""The scene of a fault on a Kubernetes: the cluster, its load, and proofs that several faults share."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from typing import Any, ClassVar

from migratory_node.kubectl import KubectlError
from migratory_node.load import LoadPod
from migratory_node.pods import is_ready

from migratory_chaos.brokers import BrokerScene
from migratory_chaos.engine import Observation
from migratory_chaos.kubernetes.environment import Operator
from migratory_chaos.kubernetes.local_node import LocalNode
from migratory_chaos.kubernetes.target import BROKER, Target


class KubernetesScene(BrokerScene):
    """The scene of a fault on a Kubernetes.

    :param marks: the number of moments that were marked in the load generator so far. :param wait_healthy: returns what
    is wrong when cluster and clients do not become healthy in time.
    """

    PROOF_SECONDS: ClassVar[float] = 150.0
    PROOF_INTERVAL: ClassVar[float] = 0.5
    TRANSIENT: ClassVar[tuple[type[Exception], ...]] = (KubectlError,)

    def __init__(
        self,
        kind: str,
        options: dict[str, Any],
        chance: random.Random,
        load_began: float,
        cluster: Target,
        load: LoadPod,
        marks: int,
        operator: Operator,
        node: LocalNode | None,
        wait_healthy: Callable[[], Awaitable[list[str]]],
    ) -> None:
        super().__init__(kind, options, chance, load_began)
        self.cluster: Target = cluster
        self.load = load
        self.operator = operator
        self.wait_healthy = wait_healthy
        self._node = node
        self._reconnects = 0
        self.record.marks = (marks, marks)

    @property
    def node(self) -> LocalNode:
        if self._node is None:
            raise RuntimeError("this fault needs a node of this machine, and the cluster has none")
        return self._node

    def start_injection(self, *victims: str, broker: str | None = None) -> None:
        """Mark this moment in the load generator, and record the injection. With `broker` the load generator notes
        that broker's clients, and whether all of them resume."""
        self._reconnects = self._count_reconnects()
        self.load.mark(self.record.kind, broker)
        first, end = self.record.marks
        self.record.marks = (first, end + 1)
        self.note_injection(*victims)

    def _count_reconnects(self) -> int:
        return int(self.load.status().get("reconnects", 0))

    async def wait_replaced(self, uids: dict[str, str], within: float | None = None) -> None:
        """Prove that each of these pods was replaced by another within `within` seconds.

        :param uids: by name, from before the injection.
        :param within: None for the scene's usual time.
        """

        async def look() -> Observation:
            now = {pod: self.cluster.kube.get("pod", pod) for pod in uids}
            others = [name for name, pod in now.items() if pod is not None and pod["metadata"]["uid"] != uids[name]]
            return len(others) == len(uids), ", ".join(others) or "none"

        await self.wait_until("another pod of the name", ", ".join(sorted(uids)), look, within)

    async def wait_reconnects(self, clients: int) -> None:
        """Prove that at least `clients` clients reconnected since the injection. Wait for it up to a minute."""

        async def look() -> Observation:
            seen = self._count_reconnects() - self._reconnects
            return seen >= clients, seen

        await self.wait_until("reconnects of clients", f">= {clients}", look, 60.0)

    def count_clients(self, broker: str) -> int:
        """Return the number of subscribers connected to a broker."""
        return int((self.load.status().get("connections") or {}).get(broker, 0))

    async def pick_broker(self, coordinator: bool = False) -> str:
        """Return the broker that coordinates most topic groups if `coordinator`, otherwise a random ready broker."""
        if coordinator:
            groups = await self.cluster.count_coordinated()
            return max(sorted(groups), key=lambda name: groups[name])
        return self.random.choice(sorted(name for name, pod in self.cluster.pods(BROKER).items() if is_ready(pod)))
