"""One life of a broker in a small cluster (`small.py`): a production `Logic`, and what is under way to and from it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace

from migratory_broker.core.logic import events as ev
from migratory_broker.core.logic.config import LogicConfig
from migratory_broker.core.logic.core import Logic

from migratory_simulation.probe import Probe
from migratory_simulation.zookeeper import Session

TEMPO = 0.25  # of the product's time limits
SCALED = (
    "session_timeout",
    "fencing",
    "progress_timeout",
    "bootstrap_wait",
    "resume_wait",
    "resume_limit",
    "heartbeat",
    "publish_wait",
    "publish_retry_after",
    "relist_delay",
    "balance_every",
    "relook",
)

Ask = ev.ZkGet | ev.ZkChildren | ev.ZkCommit
Answer = ev.ZkReply | ev.ZkChanged | ev.ZkSession


class Node:
    """One life of a broker, for `Small` and for the probe."""

    def __init__(
        self,
        number: int,
        name: str,
        brokers: tuple[str, ...],
        copies: int,
        session: Session,
        local_now: Callable[[], float],
    ) -> None:
        self.number = number
        self.name = name
        self.label = f"{name}#{number}"
        self.running = True
        self.draining = False
        self.frozen = False
        self.admission = ev.Admission(False, "learning")
        self.wanted: dict[str, tuple[int, str]] = {}
        self.asks: deque[tuple[int, Ask]] = deque()
        self.answers: deque[tuple[int, Answer]] = deque()
        self.watches: set[tuple[str, bool]] = set()  # path, and whether its children are meant
        self.suspended = False
        self.steps = 0
        self.session = session
        self.local_now = local_now
        base = LogicConfig("small", name, brokers, min_copies=copies, groups=1)
        self.logic = Logic(
            replace(
                base, url=f"ws://{name}", peer=self.label, **{field: getattr(base, field) * TEMPO for field in SCALED}
            )
        )

    @property
    def incarnation(self) -> int:
        return Probe.incarnation(self.logic)
