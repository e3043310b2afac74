"""What a fault is: a typed value that strikes the cluster, and leaves proofs that it did.

A fault whose proof does not hold makes the run fail: an eviction that evicted nobody shows nothing. Faults take their
victims when they strike, by the run's random numbers.
"""

from __future__ import annotations

import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any

from migratory_chaos_k8s.load import LoadPod
from migratory_chaos_k8s.machine_node import MachineNode
from migratory_chaos_k8s.place import Operator
from migratory_chaos_k8s.target import BROKER, POLL, Target, ready_now, until

PROOF_SECONDS = 150.0
"""Until the effect of a blow must show: images are there, but the machine may be busy."""


@dataclass(frozen=True)
class Proof:
    """`at`: seconds since the load began."""

    what: str
    expected: str
    seen: str
    holds: bool
    at: float


@dataclass
class Scene:
    """What a fault works on, and what it leaves. `began`: when it first took something away. `over`: from when on the
    cluster is left to itself. Both in seconds by the load's clock."""

    kind: str
    target: Target
    load: LoadPod
    random: random.Random
    operator: Operator
    machine: MachineNode | None
    offset: float
    whole: Callable[[], list[str]]
    victims: list[str] = field(default_factory=list)
    proofs: list[Proof] = field(default_factory=list)
    notes: dict[str, object] = field(default_factory=dict)
    began: float | None = None
    over: float | None = None
    _reconnects: int = 0

    @property
    def now(self) -> float:
        return round(time.monotonic() - self.offset, 2)

    def blow(self, *victims: str, broker: str | None = None) -> None:
        """Call it right before something is taken away. With `broker` the load notes who is connected there, and that
        all of them resume."""
        self._reconnects = int(self.load.status().get("reconnects", 0))
        at = self.load.mark(self.kind, broker)
        self.victims += victims
        if self.began is None:
            self.began = round(at, 2)

    def left_alone(self) -> None:
        """Nothing more is done to the cluster: it recovers from now on."""
        self.over = self.now

    def prove(self, what: str, expected: object, seen: object, holds: bool | None = None) -> bool:
        """By default it holds when `seen` equals `expected`."""
        good = expected == seen if holds is None else holds
        self.proofs.append(Proof(what, str(expected), str(seen), good, self.now))
        return good

    def happens(
        self,
        what: str,
        expected: str,
        look: Callable[[], tuple[bool, object]],
        within: float = PROOF_SECONDS,
        poll: float = POLL,
    ) -> bool:
        """Proved by what `look` says (whether it happened, what was seen), for so many seconds at most."""
        seen: list[tuple[bool, object]] = []

        def once() -> bool:
            seen.append(look())
            return seen[-1][0]

        until(once, within, poll)
        holds, what_was_seen = seen[-1]
        return self.prove(what, expected, what_was_seen, holds)

    # ---- proofs that several faults need --------------------------------------------------------------------------

    def replaced(self, uids: dict[str, str], within: float = PROOF_SECONDS) -> bool:
        """Each of these pods is another one now. :param uids: from before the blow."""

        def look() -> tuple[bool, object]:
            now = {pod: self.target.uid(pod) for pod in uids}
            others = [pod for pod, uid in now.items() if uid and uid != uids[pod]]
            return len(others) == len(uids), f"{', '.join(others) or 'none'}"

        return self.happens("another pod of the name", ", ".join(sorted(uids)), look, within)

    def left_by(self, clients: int) -> bool:
        """So many clients at least lost a link, or left for another broker, since the blow."""

        def look() -> tuple[bool, object]:
            seen = int(self.load.status().get("reconnects", 0)) - self._reconnects
            return seen >= clients, seen

        return self.happens("reconnects of clients", f">= {clients}", look, 60.0)

    def clients(self, broker: str) -> int:
        """Subscribers that are on it."""
        return int((self.load.status().get("connections") or {}).get(broker, 0))

    def busiest(self) -> tuple[str, int]:
        """The broker that coordinates most topic groups, and how many. With as many, the first of the names."""
        led = self.target.coordinated()
        name = max(sorted(led), key=lambda one: led[one])
        return name, led[name]

    def some_broker(self) -> str:
        return self.random.choice(sorted(name for name, pod in self.target.pods(BROKER).items() if ready_now(pod)))


class Fault(ABC):
    """Subclasses are frozen dataclasses: what a seed drew is data. `schedule.py` names their kinds."""

    @abstractmethod
    def strike(self, scene: Scene) -> None:
        """Strikes, proves, ends; whatever happens, nothing of it is left when this returns."""

    def as_data(self) -> dict[str, Any]:
        return asdict(self)  # type: ignore[call-overload, no-any-return]
