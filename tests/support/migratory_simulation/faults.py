"""The faults, as typed options of a plan; `plans.py` draws them, `injector.py` and `rollouts.py` carry them out."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Crash:
    """The process is gone with its memory; a new one starts after `downtime`."""

    broker: str
    downtime: float


@dataclass(frozen=True, slots=True)
class Replace:
    """A new process of the same name starts while the old one, cut off from everybody but its clients and perhaps
    other such ones, still runs for `lasts` seconds."""

    brokers: tuple[str, ...]
    lasts: float


@dataclass(frozen=True, slots=True)
class Freeze:
    broker: str
    lasts: float


@dataclass(frozen=True, slots=True)
class BreakLink:
    one: str
    other: str


@dataclass(frozen=True, slots=True)
class Partition:
    """`side` and the others don't hear each other; `one_way`: only what `side` sends is lost. `zookeeper`: `side` is
    cut from ZooKeeper, too."""

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
    """The ensemble has no majority."""

    lasts: float


@dataclass(frozen=True, slots=True)
class ZooKeeperCutOff:
    """One broker can't reach the ensemble."""

    broker: str
    lasts: float


@dataclass(frozen=True, slots=True)
class ZooKeeperConnectionLost:
    """The connection breaks under requests, `times` times: each ends as unknown, carried out or not."""

    broker: str
    times: int


@dataclass(frozen=True, slots=True)
class ExpireSession:
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
    """Every process ends at once; all start again within `spread` seconds: the histories are gone."""

    spread: float


@dataclass(frozen=True, slots=True)
class Ambush:
    """Strikes in the middle of a step: as a broker sends the `count`-th message of the kind `at` from now on (or a
    transaction, "ZkCommit"). What it would have done after that in this step is not done if it crashes.

    `actions`, one or two: crash, freeze, isolate (cut from every peer), break or block the link that it sends over, cut
    it from or lose the connection to ZooKeeper, expire its session, take its clients: lasting or down for `lasts`
    seconds. The second follows `gap` seconds after the first.
    """

    at: str
    count: int
    actions: tuple[str, ...]
    lasts: float
    gap: float


@dataclass(frozen=True, slots=True)
class ClockJump:
    """A broker's clocks jump: its monotonic one forward by `ahead` seconds (a virtual machine that slept), and its
    wall clock by `wall` seconds either way, which its process's next life will see."""

    broker: str
    ahead: float
    wall: float


@dataclass(frozen=True, slots=True)
class SilentClient:
    """A client's connection carries nothing for `lasts` seconds, in one direction or both, and neither side is told."""

    client: int
    to_broker: bool
    to_client: bool
    lasts: float


@dataclass(frozen=True, slots=True)
class FallBehind:
    """Everything that peers send to `broker` takes `delay` seconds longer, for `lasts` seconds; after `gap` seconds the
    clients of all others are dropped, so that some come to it who have seen more than it has. `crash`: so is the
    process of one of the others, with its clients."""

    broker: str
    delay: float
    lasts: float
    gap: float
    crash: str


@dataclass(frozen=True, slots=True)
class RollingRestart:
    """Every broker in turn drains, ends and starts again; the next one only when all say that they are ready."""

    period: float
    downtime: float


@dataclass(frozen=True, slots=True)
class Grow:
    """A broker that was never there joins."""


@dataclass(frozen=True, slots=True)
class Shrink:
    """A broker drains, ends and never comes back."""

    broker: str
    period: float


@dataclass(frozen=True, slots=True)
class SlowZooKeeper:
    """Requests and answers of these brokers take about `delay` seconds."""

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
    """One topic gets `count` publications beyond the load: more than its cache holds."""

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
"""What can strike in an exhaustive search (`exhaust.py`); `small.py` says what each does."""
