"""The faults, as typed options of a plan, and how a seed draws a plan.

A plan is drawn before the run from a generator of its own. Each seed allows only some kinds (a swarm: rare
combinations come up more often than when every run has a bit of everything). A *safe* plan crashes a broker only while
every other one is ready, so that no list ever loses more than q - 1: then even a single `reset` of a history is wrong.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


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
}

# How often each kind is drawn, when the seed allows it.
WEIGHTS: dict[type, int] = {
    Crash: 10,
    Replace: 8,
    Freeze: 6,
    BreakLink: 6,
    Partition: 6,
    Clog: 3,
    ZooKeeperAway: 3,
    ZooKeeperCutOff: 3,
    ZooKeeperConnectionLost: 5,
    ExpireSession: 4,
    Slow: 2,
    DropClients: 3,
    RestartEdge: 2,
    StallClient: 1,
    Drain: 3,
    RestartAll: 3,
    Burst: 4,
    Ambush: 16,
    SlowZooKeeper: 3,
}

WILD_ONLY = frozenset({Replace, RestartAll})
"""Kinds that lose more than q - 1 incarnations."""


@dataclass(frozen=True, slots=True)
class Plan:
    """`faults` are (moment in seconds, fault), by moment."""

    safe: bool
    faults: tuple[tuple[float, Fault], ...]


def draw_plan(
    random: Random,
    brokers: tuple[str, ...],
    topics: int,
    clients: int,
    begin: float,
    end: float,
    cache: int,
    tempo: float,
) -> Plan:
    safe = random.random() < 0.7
    kinds = [kind for kind in WEIGHTS if not (safe and kind in WILD_ONLY)]
    allowed = [kind for kind in kinds if random.random() < 0.5] or kinds
    count = random.randint(2, 12 if tempo == 1.0 else 24)
    # Faults come in clusters: what breaks while something else is under way finds more than what breaks alone.
    moments: list[float] = []
    moment = random.uniform(begin, (begin + end) / 2)
    for _ in range(count):
        moments.append(min(moment, end))
        moment += tempo * random.choice((random.uniform(0.0, 0.5), random.uniform(0.0, 3.0), random.uniform(0.0, 7.0)))
    weights = [WEIGHTS[kind] for kind in allowed]
    faults = [
        (when, _draw(random, random.choices(allowed, weights)[0], brokers, topics, clients, cache, tempo))
        for when in moments
    ]
    return Plan(safe, tuple(faults))


def _draw(
    random: Random, kind: type, brokers: tuple[str, ...], topics: int, clients: int, cache: int, tempo: float
) -> Fault:
    broker = random.choice(brokers)
    one, other = random.sample(brokers, 2)
    short_or_long = tempo * random.choice(
        (random.uniform(0.1, 2.0), random.uniform(2.0, 6.0), random.uniform(5.0, 14.0))
    )
    if kind is Crash:
        return Crash(broker, tempo * random.choice((random.uniform(0.1, 1.0), random.uniform(1.0, 10.0))))
    if kind is Replace:
        some = tuple(random.sample(brokers, random.choice((len(brokers), random.randint(1, len(brokers))))))
        return Replace(some, tempo * random.uniform(4.0, 40.0))
    if kind is Freeze:
        return Freeze(broker, short_or_long)
    if kind is BreakLink:
        return BreakLink(one, other)
    if kind is Partition:
        side = tuple(random.sample(brokers, random.randint(1, len(brokers) - 1)))
        return Partition(side, short_or_long, random.random() < 0.4, random.random() < 0.4)
    if kind is Clog:
        return Clog(one, other, tempo * random.uniform(0.05, 1.5), short_or_long)
    if kind is ZooKeeperAway:
        return ZooKeeperAway(random.choice((short_or_long, tempo * random.uniform(8.0, 25.0))))
    if kind is ZooKeeperCutOff:
        return ZooKeeperCutOff(broker, short_or_long)
    if kind is ZooKeeperConnectionLost:
        return ZooKeeperConnectionLost(broker, random.randint(1, 8))
    if kind is ExpireSession:
        return ExpireSession(broker)
    if kind is Slow:
        return Slow(broker, random.uniform(0.001, 0.005), short_or_long)
    if kind is DropClients:
        return DropClients(broker)
    if kind is RestartEdge:
        return RestartEdge(broker)
    if kind is StallClient:
        return StallClient(random.randrange(clients), short_or_long)
    if kind is Drain:
        return Drain(broker, tempo * random.uniform(1.0, 5.0), tempo * random.uniform(0.1, 3.0))
    if kind is Ambush:
        actions = tuple(random.choice(ACTIONS) for _ in range(random.choice((1, 2))))
        gap = random.choice((0.0, random.uniform(0.0, 0.4), tempo * random.uniform(0.0, 4.0)))
        return Ambush(random.choice(AMBUSHED), random.choice((1, 1, 2, 5)), actions, short_or_long, gap)
    if kind is SlowZooKeeper:
        some = tuple(random.sample(brokers, random.choice((1, 1, len(brokers)))))
        return SlowZooKeeper(some, tempo * random.choice((0.2, 0.6, 1.5)), short_or_long)
    if kind is RestartAll:
        return RestartAll(tempo * random.choice((0.2, random.uniform(0.5, 6.0))))
    return Burst(random.randrange(topics), random.randint(cache // 2, cache * 3))
