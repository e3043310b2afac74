"""The kinds of faults. `plans.py` draws them; `injector.py` and `rollouts.py` inject them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crash:
    """A process ends with its memory. A new one starts after `downtime` seconds."""

    broker: str
    downtime: float


@dataclass(frozen=True, slots=True)
class Replace:
    """A new process of the same name starts while the old one runs on for `lasts` seconds. The old one is cut off
    from everybody but its clients and perhaps other replaced processes."""

    brokers: tuple[str, ...]
    lasts: float


@dataclass(frozen=True, slots=True)
class Freeze:
    """A process stops handling events for a while."""

    broker: str
    lasts: float


@dataclass(frozen=True, slots=True)
class BreakLink:
    """The connection between two brokers is reset."""

    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Partition:
    """The brokers in `side` and the others do not hear each other. `one_way`: only messages from `side` are lost.
    `zookeeper`: `side` is cut from ZooKeeper, too."""

    side: tuple[str, ...]
    lasts: float
    one_way: bool
    zookeeper: bool


@dataclass(frozen=True, slots=True)
class Clog:
    """Messages from `one` to `other` take `delay` seconds longer."""

    one: str
    other: str
    delay: float
    lasts: float


@dataclass(frozen=True, slots=True)
class ZooKeeperAway:
    """The ensemble loses its majority."""

    lasts: float


@dataclass(frozen=True, slots=True)
class ZooKeeperCutOff:
    """One broker cannot reach the ensemble."""

    broker: str
    lasts: float


@dataclass(frozen=True, slots=True)
class ZooKeeperConnectionLost:
    """The connection breaks under requests, `times` times. Each request ends as unknown, executed or not."""

    broker: str
    times: int


@dataclass(frozen=True, slots=True)
class ExpireSession:
    """The ensemble ends a broker's session."""

    broker: str


@dataclass(frozen=True, slots=True)
class Slow:
    """Every event takes the broker `cost` seconds."""

    broker: str
    cost: float
    lasts: float


@dataclass(frozen=True, slots=True)
class DropClients:
    """All client connections of a broker break."""

    broker: str


@dataclass(frozen=True, slots=True)
class RestartEdge:
    """An I/O process is killed and replaced."""

    broker: str


@dataclass(frozen=True, slots=True)
class StallClient:
    """A client does not read for a while."""

    client: int
    lasts: float


@dataclass(frozen=True, slots=True)
class Drain:
    """A planned stop: the broker drains for `period`, ends, and a new process starts."""

    broker: str
    period: float
    downtime: float


@dataclass(frozen=True, slots=True)
class RestartAll:
    """Every process ends at once, and all start again within `spread` seconds. The histories are lost."""

    spread: float


@dataclass(frozen=True, slots=True)
class Ambush:
    """A fault in the middle of a step: it strikes when a broker sends the `count`-th message of the kind `at` (or a
    transaction, "ZkCommit"). The rest of the step is lost in a crash.

    `actions`, one or two: crash, freeze, isolate (cut from every peer), break or block the link of the message, cut
    from or lose the connection to ZooKeeper, expire the session, drop the clients. They last `lasts` seconds; the
    second action follows `gap` seconds after the first.
    """

    at: str
    count: int
    actions: tuple[str, ...]
    lasts: float
    gap: float


@dataclass(frozen=True, slots=True)
class ClockJump:
    """A broker's monotonic clock jumps `ahead` seconds, as after a suspended virtual machine. The wall clock of its
    next process is `wall` seconds off."""

    broker: str
    ahead: float
    wall: float


@dataclass(frozen=True, slots=True)
class SilentClient:
    """A client's connection delivers nothing for `lasts` seconds, in one direction or both, and neither side is
    told."""

    client: int
    to_broker: bool
    to_client: bool
    lasts: float


@dataclass(frozen=True, slots=True)
class FallBehind:
    """All messages from peers to `broker` take `delay` seconds longer, for `lasts` seconds. After `gap` seconds the
    clients of all other brokers are dropped, so that some connect to it that have seen more than it has. `crash`
    names another broker that crashes at the same moment."""

    broker: str
    delay: float
    lasts: float
    gap: float
    crash: str


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """Every broker in turn drains, ends and starts again; the next one only when all report ready."""

    period: float
    downtime: float


@dataclass(frozen=True, slots=True)
class Grow:
    """A new broker joins."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """A broker drains, ends and never returns."""

    broker: str
    period: float


@dataclass(frozen=True, slots=True)
class SlowZooKeeper:
    """Requests of these brokers to ZooKeeper, and the answers, take about `delay` seconds."""

    brokers: tuple[str, ...]
    delay: float
    lasts: float


AMBUSHED = (
    "Accept",
    "Accept",
    "Accept",
    "Accepted",
    "Prepare",
    "Promise",
    "Sync",
    "Sync",
    "Synced",
    "Activated",
    "HandOver",
    "Standing",
    "Forward",
    "Answers",
    "ZkCommit",
    "ZkCommit",
    "ZkCommit",
)
ACTIONS = (
    "crash",
    "crash",
    "crash",
    "crash",
    "freeze",
    "isolate",
    "isolate",
    "break link",
    "break link",
    "block link",
    "block link",
    "lose zookeeper",
    "lose zookeeper",
    "cut zookeeper",
    "expire session",
    "expire session",
    "drop clients",
)


@dataclass(frozen=True, slots=True)
class Burst:
    """`count` extra publications on one topic, more than its cache holds."""

    topic: int
    count: int


Fault = (
    Crash
    | Replace
    | Freeze
    | BreakLink
    | Partition
    | Clog
    | ZooKeeperAway
    | ZooKeeperCutOff
    | ZooKeeperConnectionLost
    | ExpireSession
    | Slow
    | DropClients
    | RestartEdge
    | StallClient
    | Drain
    | RestartAll
    | Burst
    | Ambush
    | SlowZooKeeper
    | ClockJump
    | SilentClient
    | FallBehind
    | RollingRestart
    | Grow
    | Shrink
)

NAMES: dict[type, str] = {
    Crash: "crash",
    Replace: "replaced while running",
    Freeze: "freeze",
    BreakLink: "link break",
    Partition: "partition",
    Clog: "clog",
    ZooKeeperAway: "zookeeper away",
    ZooKeeperCutOff: "zookeeper cut off",
    ZooKeeperConnectionLost: "zookeeper connection lost",
    ExpireSession: "session expiry",
    Slow: "slow broker",
    DropClients: "clients dropped",
    RestartEdge: "edge restart",
    StallClient: "client stalled",
    Drain: "drain",
    RestartAll: "restart of all",
    Burst: "burst",
    Ambush: "ambush",
    SlowZooKeeper: "slow zookeeper",
    ClockJump: "clock jump",
    SilentClient: "silent client",
    FallBehind: "broker behind",
    RollingRestart: "rolling restart",
    Grow: "broker added",
    Shrink: "broker removed",
}

STRIKES = ("crash", "crash lost", "break", "expire", "lose done", "lose undone")
"""The kinds of faults in an exhaustive search; `untimed.py` implements them."""
